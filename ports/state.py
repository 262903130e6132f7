"""How opaque state leaves and enters: a stream of parts, never a dictionary of whole tensors.

A part is a contiguous run of bytes of one named value. A single process emits one part a tensor; a sharded engine emits
the slices it owns. The domain moves parts between an exporter and a store and never looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from attrs import field, frozen

JSON = "JSON"
"""The dtype of a part that is a UTF-8 JSON document (options, counters) and not a tensor."""


@frozen
class Part:
    """A contiguous slice of one named value.

    `name` is that of the value in the object the user passed in, whatever wraps it. `dtype` is the safetensors name
    ("F32", "BF16", "I64", ...) or `JSON`. `shape` is the whole value's. `offset` and `length` count elements of the
    flattened value (bytes for `JSON`). `read` hands out the bytes, little-endian, and may be called once or more; what
    it hands out stays unchanged until the exporter next changes. `source` is the array that holds the value, where
    there is one; only an adapter that knows its kind looks at it. `read_run` hands out the bytes of so many elements
    from a first one of the part on, where that is less work than reading all.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    read: Callable[[], memoryview]
    source: object = field(default=None, eq=False, repr=False)
    read_run: Callable[[int, int], memoryview] | None = field(default=None, eq=False, repr=False)

    def run(self, begin: int, length: int) -> memoryview:
        """The bytes of `length` elements of the part, the element `begin` being the first."""
        if self.read_run is not None:
            return self.read_run(begin, length)
        whole = self.read().cast("B")
        size = len(whole) // max(self.length, 1)
        return whole[begin * size : (begin + length) * size]


class Exportable(Protocol):
    """Whatever keeps something between steps.

    Both methods are collective: every rank calls them, in the same order. They are all that a checkpoint needs of an
    object, so that what is inside may change without the checkpoint protocol noticing.
    """

    def export(self) -> Iterator[Part]:
        """Everything needed to rebuild this object as it is now."""
        ...

    def load(self, parts: Iterable[Part]) -> None:
        """Become what was exported, copying into memory that this object already holds.

        Raises ValueError where a part is missing, unknown or of another shape; the message names it.
        """
        ...
