"""Measures the peak of a process's tensor memory and Python memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import torch._dynamo  # noqa: F401 (otherwise it would be imported, and counted, later)
from torch import Tensor, UntypedStorage
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that counts the memory of every tensor created within it, until it is freed.

    peak: the peak in addition to the memory at the start, of tensors and of Python's allocations, in bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._tensors = 0
        self._sizes: Any = WeakIdKeyDictionary()

    def __enter__(self) -> LiveBytes:
        tracemalloc.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self.peak = self._tensors + tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        known = {id(storage) for storage in _storages((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for storage in _storages(made):
            if id(storage) not in known:
                self._sizes[storage] = storage.nbytes()
        self._tensors = max(self._tensors, sum(self._sizes.values()))
        return made


def _storages(values: Any) -> Iterator[UntypedStorage]:
    for value in tree_leaves(values):
        if isinstance(value, Tensor) and not isinstance(value, DTensor):
            yield value.untyped_storage()
