"""The weights of a module that a DeepSpeed engine trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from torch import Tensor

from hexloop.adapters.trainable.torch.layouts import TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.tensors import run_of, tensor_of
from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions
from hexloop.domain.checkpoints.dealing import deal
from hexloop.ports.state import Part


class ZeroModelState(ModelState):
    """Answers the Exportable port for the module of an engine. Both methods are collective.

    partitions: the full-precision masters of the weights, which follow what is loaded; None where there are none.
    """

    def __init__(
        self, engine: Any, layout: TorchLayout, partitions: ZeroPartitions | None, writers: int | None = None
    ) -> None:
        super().__init__(engine.module, layout, writers)
        self._partitions = partitions

    def load(self, parts: Iterable[Part]) -> None:
        """Copy the parts into the module's own tensors, and let the masters follow."""
        found = {part.name: part for part in parts}
        super().load(found.values())
        if self._partitions is not None:
            self._follow(self._partitions, found)

    def _copy(self, own: Mapping[str, Tensor], found: Mapping[str, Part]) -> None:
        """Of the tensors that are spread each is read by one process, and comes to the others by the engine."""
        spread = {name: tensor for name, tensor in own.items() if hasattr(tensor, "ds_id")}
        super()._copy({name: tensor for name, tensor in own.items() if name not in spread}, found)
        sizes = [prod(found[name].shape) for name in spread]
        readers = deal(sizes, self._layout.world_size)
        for (name, tensor), reader in zip(spread.items(), readers, strict=True):
            with _gathered(tensor, reader):
                if reader == self._layout.rank:
                    tensor.copy_(tensor_of(found[name]))

    def _follow(self, partitions: ZeroPartitions, found: Mapping[str, Part]) -> None:
        for name, tensor in self._state().items():
            place = partitions.place(tensor)
            if name in found and place is not None:
                partitions.follow(tensor, run_of(found[name], place.start, place.length).to(tensor.dtype))


def _gathered(parameter: Tensor, reader: int) -> Any:
    """Within, a spread parameter is whole in every process; it becomes what the one that reads it writes there."""
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter], modifier_rank=reader)
