"""How opaque state is exported, copied and loaded: as a stream of parts, never as a dictionary of whole tensors.

A part is a contiguous range of one named value. A single process yields one part per tensor; a sharded engine yields
the slices it owns. The domain passes parts between an exporter and a storage and never looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from attrs import field, frozen

JSON = "JSON"
"""The dtype of a part that is a UTF-8 JSON document (options, counters) instead of a tensor."""


@frozen
class Part:
    """A contiguous slice of one named value.

    Args:
        name: the name of the value in the object that the user passed, whatever wraps it.
        dtype: the safetensors name ("F32", "BF16", "I64", ...) or `JSON`.
        shape: of the whole value.
        offset: where the slice begins, in elements of the flattened value (bytes for `JSON`).
        length: the elements of the slice (bytes for `JSON`).
        read: returns the bytes, little-endian; can be called repeatedly. They stay unchanged until the exporter
            changes.
        source: the array with the value, if there is one; only an adapter that knows its type uses it.
        read_run: returns the bytes of a number of elements from a first one on, if that is cheaper than reading all.
        fresh: `read` and `read_run` return a new writable buffer each time, which the caller may keep.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    read: Callable[[], memoryview]
    source: object = field(default=None, eq=False, repr=False)
    read_run: Callable[[int, int], memoryview] | None = field(default=None, eq=False, repr=False)
    fresh: bool = field(default=False, eq=False, repr=False)

    def run(self, begin: int, length: int) -> memoryview:
        """Return the bytes of `length` elements of the part, starting at element `begin`.

        Args:
            begin: the first element.
            length: the number of elements.
        """
        if self.read_run is not None:
            return self.read_run(begin, length)
        whole = self.read().cast("B")
        size = len(whole) // max(self.length, 1)
        return whole[begin * size : (begin + length) * size]


class Exportable(Protocol):
    """An object with state that must survive a restart.

    Both methods are collective: every rank calls them, in the same order. A checkpoint needs nothing else of an object,
    so the object can change its internals without affecting the checkpoint protocol.
    """

    def export(self) -> Iterator[Part]:
        """Yield everything needed to restore the current state."""

    def load(self, parts: Iterable[Part]) -> None:
        """Restore an exported state, copying into memory that this object already has.

        Args:
            parts: what `export` yielded, of all ranks together.

        Raises:
            ValueError: naming the part, if a part is missing, unknown or of another shape.
        """


class Snapshots(Protocol):
    """Copies of parts at one moment, in reusable memory.

    There is one copy at a time: copying a part again replaces its previous copy.
    """

    def reserve(self, owners: Mapping[str, Sequence[Part]]) -> Callable[[], None]:
        """Return a function that allocates memory for these parts before the first copy; another thread may call it.

        Only the names, dtypes and shapes of the parts are used.

        Args:
            owners: the objects whose parts will be copied, by name.
        """

    def take(self, owner: str, parts: Iterable[Part]) -> list[Part]:
        """Return copies of the parts, whose bytes stay as they are now while the run continues.

        Another thread may read the copies.

        Args:
            owner: the component that has the parts ("model", "optimizer", ...).
            parts: the parts to copy.
        """
