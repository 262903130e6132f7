"""A CPU that records operations as a GPU records a graph: without executing them, and with the memory that they use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import evolve
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hexloop.adapters.device.torch import CpuDevice


class Tape(TorchDispatchMode):
    """Notes the operations that are called, with their results. What they change is restored by `undo`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self._own: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._generator = torch.get_rng_state()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        for tensor in _written(func, args, kwargs):
            place = tensor.untyped_storage().data_ptr()
            if place not in self._own and place not in self._before:
                self._before[place] = (_bytes_of(tensor), _bytes_of(tensor).clone())
        given = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        self._own |= {each.untyped_storage().data_ptr() for each in _tensors(result)} - given
        self.operations.append((func, args, kwargs, result))
        return result

    def undo(self) -> None:
        """Restore the tensors that existed before, and the generator."""
        for now, before in self._before.values():
            now.copy_(before)
        torch.set_rng_state(self._generator)

    def replay(self) -> None:
        """Execute the operations again, with the results in the same memory."""
        with torch.no_grad():
            for func, args, kwargs, result in self.operations:
                again = func(*args, **kwargs)
                for one, other in zip(_tensors(result), _tensors(again), strict=True):
                    if one.data_ptr() != other.data_ptr():
                        one.copy_(other)


class RecordingCpu(CpuDevice):
    """The CPU as a device that can capture; it counts recordings and replays."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = evolve(self.capabilities, captures=True)
        self.recorded = self.replayed = 0

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record the operations on a tape."""
        tape = Tape()
        try:
            with tape:
                run()
        finally:
            tape.undo()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            tape.replay()

        return replay


def _tensors(values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors that an operation changes in place."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[place] if place < len(args) else kwargs.get(argument.name))


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return all memory of which a tensor is a view."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
