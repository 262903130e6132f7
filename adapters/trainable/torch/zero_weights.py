"""The weights of a module that a DeepSpeed engine trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.tensors import part_of, tensor_of
from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions, whole_shape
from hexloop.ports.state import JSON, Part


class ZeroModelState(ModelState):
    """Answers the Exportable port for the module of an engine. Both methods are collective.

    Rank 0 alone exports parts, whole tensors under the module's own names, one gathered at a time. All load.
    partitions: the full-precision masters of the weights, which follow what is loaded; None where there are none.
    """

    def __init__(self, engine: Any, partitions: ZeroPartitions | None) -> None:
        super().__init__(engine.module)
        self._partitions = partitions

    def export(self) -> Iterator[Part]:
        """Every tensor of the state dict, each once; extra state as a JSON document each."""
        for name, tensor in self.gathered():
            if tensor is not None:
                yield part_of(name, tensor)
        if dist.get_rank() == 0:
            yield from self.extra_parts()

    def gathered(self) -> Iterator[tuple[str, Tensor | None]]:
        """Each tensor by its name: whole on rank 0, None elsewhere. Collective."""
        first = dist.get_rank() == 0
        for name, tensor in self.named_tensors().items():
            if not hasattr(tensor, "ds_id"):
                yield name, tensor.detach() if first else None
                continue
            with _gathered(tensor):
                whole = tensor.detach().cpu().clone() if first else None
            yield name, whole

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors, and let the masters follow."""
        found = {part.name: part for part in parts}
        spread = {name: tensor for name, tensor in self._state().items() if hasattr(tensor, "ds_id")}
        super().load(found.values())
        for name in sorted(found.keys() & spread.keys()):  # in the same order in every process
            value = tensor_of(found[name])
            with _gathered(spread[name], modifier_rank=0):
                if dist.get_rank() == 0:
                    with torch.no_grad():
                        spread[name].copy_(value)
        if self._partitions is not None:
            self._follow(found)

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return tuple(whole_shape(tensor))

    def is_copied(self, tensor: Tensor) -> bool:
        """Whether loading may copy into the tensor as it is."""
        return not hasattr(tensor, "ds_id")

    def _follow(self, found: dict[str, Part]) -> None:
        assert self._partitions is not None
        for name, tensor in self._state().items():
            if name not in found or found[name].dtype == JSON or self._partitions.place(tensor) is None:
                continue
            whole = tensor_of(found[name]) if hasattr(tensor, "ds_id") else tensor.detach()
            self._partitions.follow(tensor, whole.to(tensor.dtype))


def _gathered(parameter: Tensor, modifier_rank: int | None = None) -> Any:
    """A context in which a spread parameter is whole in every process; rank `modifier_rank` may change it there."""
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=modifier_rank)
