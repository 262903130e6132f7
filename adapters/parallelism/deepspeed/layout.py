"""Where the weights lie that ZeRO 3 has spread: each process has an equal run of every parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch import Tensor, nn

from hexloop.ports.parallelism import Spread


@frozen
class ZeroLayout:
    """Answers `hexloop.ports.parallelism.Layout` for a module whose parameters DeepSpeed has partitioned."""

    rank: int
    world_size: int

    uneven = False

    def state(self, model: nn.Module) -> Mapping[str, Any]:
        """The state dict, whose parameters know their partitions."""
        return model.state_dict(keep_vars=True)

    def parameters(self, model: nn.Module) -> Mapping[str, Tensor]:
        """As the model names them."""
        return dict(model.named_parameters())

    def spread(self, tensor: Tensor, parameter: Tensor) -> Spread | None:
        """Equal runs, of which the last ones reach beyond the end of the parameter, or lie there."""
        if not hasattr(tensor, "ds_id"):
            return None
        of: Any = tensor
        size, count = of.ds_tensor.ds_numel, of.ds_numel
        bounds = [min(number * size, count) for number in range(self.world_size + 1)]
        runs = tuple((bounds[rank], bounds[rank + 1] - bounds[rank]) for rank in range(self.world_size))
        return Spread(tuple(of.ds_shape), runs, runs[self.rank])

    def local(self, tensor: Tensor) -> Tensor:
        """The process's run, without what fills it up; a copy of it where it lies on a disk."""
        of: Any = tensor
        partition = of.ds_tensor
        if partition.status.name == "NOT_AVAILABLE":
            read = torch.empty(partition.ds_numel, dtype=partition.dtype)
            of.nvme_swapper.swap_into_buffer(of, read)
            partition = read
        spread = self.spread(tensor, tensor)
        assert spread is not None
        own: Tensor = partition.detach().view(-1).narrow(0, 0, spread.own[1])
        return own

    def like(self, parameter: Tensor, local: Tensor) -> Tensor:
        """A moment of a process's run is a run of the moment."""
        of: Any = parameter
        return local.to(of.ds_tensor.device)

    def norm(self, own: Tensor) -> Tensor:
        """The norm of all runs, from that of this process's."""
        squared = own.to(torch.float32).square()
        dist.all_reduce(squared)
        return squared.sqrt()
