"""The memory of the tensors of a training step, counted while the step runs or while torch only pretends to run it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import torch
from attrs import define, field
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

SCALARS = {torch.bool: False}
"""What a value that is read of a fake tensor is taken for, by its type; otherwise one."""

LARGEST_REAL = 1 << 20
"""Values of tensors that stay real beside fake ones: masks, positions and labels."""


@define(eq=False)
class Allocation:
    """The memory of one storage: its bytes, and the numbers of the operations that made it and after which it was gone.

    gone: None while it is there.
    """

    size: int
    made: int
    gone: int | None = None


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is untyped
    """Counts the storages that operations make on one type of device, and when they are freed.

    kind: the type of device, as torch names it. Storages that were there before are counted from `see` on. Kernels may
    use further memory within an operation, which is not counted.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kind = kind
        self.used = self.peak = self.moment = self.moment_of_peak = 0
        self.all: list[Allocation] = []
        self._live: dict[int, Allocation] = {}

    def see(self, tensors: Iterable[Any]) -> list[Allocation]:
        """Count tensors that exist, and return their storages, each once."""
        found: dict[int, Allocation] = {}
        for tensor in tensors:
            for plain in _plain(tensor):
                if plain.device.type == self.kind:
                    each = self._storage(plain)
                    found[id(each)] = each
        return list(found.values())

    def restart(self) -> None:
        """Look for the peak from now on."""
        self.peak, self.moment_of_peak = self.used, self.moment

    def at_peak(self, allocations: Iterable[Allocation]) -> int:
        """Return how many bytes of these storages were there at the peak."""
        when = self.moment_of_peak
        return sum(each.size for each in allocations if each.made <= when and (each.gone is None or each.gone >= when))

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what it returns."""
        result = self.run(operation, args, kwargs or {})
        self.moment += 1
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.device.type == self.kind:
                self._storage(each)
        return result

    def run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation."""
        return operation(*args, **kwargs)

    def _storage(self, tensor: Tensor) -> Allocation:
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._live.get(key)
        if known is not None:
            return known
        made = self._live[key] = Allocation(storage.nbytes(), self.moment)
        self.all.append(made)
        weakref.finalize(storage, self._free, key, made).atexit = False
        self.used += made.size
        if self.used > self.peak:
            self.peak, self.moment_of_peak = self.used, self.moment
        return made

    def _free(self, key: int, allocation: Allocation) -> None:
        if self._live.get(key) is allocation:
            del self._live[key]
            allocation.gone = self.moment
            self.used -= allocation.size


class FakeAllocations(Allocations):  # type: ignore[no-untyped-call]  # as above
    """Counts what operations on fake tensors would allocate.

    A step of Python may depend on values that fake tensors do not have. What depends on real tensors alone, such as on
    the mask of a batch, is computed; other values that are read are taken for one, or for False.
    """

    def run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation."""
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if operation is torch.ops.aten._local_scalar_dense.default and isinstance(tensors[0], FakeTensor):
            return _scalar(tensors[0])
        if tensors and all(map(_stays_real, tensors)):
            with _disable_current_modes():
                return operation(*args, **kwargs)
        return super().run(operation, args, kwargs)


def _scalar(tensor: Any) -> Any:
    known = tensor.constant
    return SCALARS.get(tensor.dtype, 1) if known is None else known.item()


def _stays_real(tensor: Tensor) -> bool:
    is_number = tensor.dtype.is_floating_point or tensor.dtype.is_complex
    return not isinstance(tensor, FakeTensor) and not is_number and tensor.numel() <= LARGEST_REAL


def _plain(value: Any) -> Iterator[Tensor]:
    """Yield the tensors that hold the values of a tensor: several where its class has parts."""
    if not isinstance(value, Tensor):
        return
    if isinstance(value, FakeTensor) or not hasattr(value, "__tensor_flatten__"):
        yield value
        return
    names, _ = value.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(value, name))


def tensors_of(model: Any) -> list[Tensor]:
    """Return the parameters and buffers of a model, each once."""
    return list({id(each): each for each in [*model.parameters(), *model.buffers()]}.values())


def state_of(optimizer: Any) -> list[Tensor]:
    """Return the tensors that an optimizer keeps for its parameters."""
    inner = getattr(optimizer, "optimizer", optimizer)
    return [each for each in tree_leaves(list(inner.state.values())) if isinstance(each, Tensor)]


@define(eq=False)
class FakeModel:
    """A copy of a model and what refers to it, with fake tensors, which take no memory, and batches to go with it."""

    copy: Any
    mode: FakeTensorMode = field(factory=lambda: FakeTensorMode(allow_non_fake_inputs=True))

    @classmethod
    def of(cls, objects: Any, tensors: Iterable[Tensor], device: str) -> FakeModel:
        """Return the copy of any objects. tensors: those that become fake ones, on a device.

        Parameters that modules share are shared in it as well. Raises whatever an object raises that cannot be copied.
        """
        made = cls(None)
        memo: dict[int, Any] = {}
        for tensor in tensors:
            fake: Any = made.mode.from_tensor(tensor.detach())
            if fake.device != torch.device(device):
                with made.mode:
                    fake = fake.to(device)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, tensor.requires_grad)
            memo[id(tensor)] = fake
        made.copy = deepcopy(objects, memo)
        return made

    def batch(self, batch: Any) -> Any:
        """Return a batch with fake tensors in place of those with floating-point numbers."""
        if isinstance(batch, Tensor):
            return batch if _stays_real(batch) else self.mode.from_tensor(batch)
        if isinstance(batch, dict):
            changed = copy(batch)
            for name, each in batch.items():
                changed[name] = self.batch(each)
            return changed
        if isinstance(getattr(batch, "data", None), dict):  # transformers' BatchEncoding
            encoding: Any = copy(batch)
            encoding.data = self.batch(encoding.data)
            return encoding
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self.batch, batch))
        if isinstance(batch, list | tuple):
            return type(batch)(map(self.batch, batch))
        return batch

    @contextmanager
    def counting(self, allocations: FakeAllocations) -> Iterator[None]:
        """Count what is allocated in the block."""
        with self.mode, allocations:
            yield


def values_in(batch: Any) -> int:
    """Return how many values the tensors of a batch have."""
    return sum(each.numel() for each in tree_leaves(_unwrapped(batch)) if isinstance(each, Tensor))


def _unwrapped(batch: Any) -> Any:
    data = getattr(batch, "data", None)
    return data if isinstance(data, dict) else batch
