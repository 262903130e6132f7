"""Contract suites of the ports that export and copy state: Exportable and Snapshots."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Generic, TypeVar

import pytest
from attrs import evolve, frozen

from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.domain.json_documents import json_part
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import JSON, Exportable, Part, Snapshots

BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
BITS |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, JSON: 8}
"""Bits per element of each dtype."""


@frozen
class Content:
    """The metadata and bytes of a part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    data: bytes

    def part(self) -> Part:
        """Return a part with these bytes."""
        return Part(self.name, self.dtype, self.shape, self.offset, self.length, lambda: memoryview(self.data))


def contents(parts: Iterable[Part]) -> list[Content]:
    """Return the current contents of the parts, sorted by name and offset.

    Args:
        parts: exported parts.
    """
    taken = [Content(part.name, part.dtype, part.shape, part.offset, part.length, bytes(part.read())) for part in parts]
    return sorted(taken, key=lambda content: (content.name, content.offset))


def kept(parts: Iterable[Part]) -> list[Part]:
    """Return copies of the parts that keep their current contents.

    Args:
        parts: exported parts.
    """
    return [content.part() for content in contents(parts)]


Kept = TypeVar("Kept", bound=Exportable)
Result = TypeVar("Result")


def parts_of(*exports: Sequence[Content]) -> list[Part]:
    """Return parts with the exported contents.

    Args:
        *exports: the exported bytes by name.
    """
    return [content.part() for export in exports for content in export]


class ExportableContract(Generic[Kept]):
    """Contract suite of the Exportable port: an object rebuilt from its export behaves identically from then on."""

    boundaries = 4
    """The number of step boundaries to test."""
    sizes: Sequence[int] = (1,)
    """The world sizes that the object supports."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Parametrize tests with every size and every pair of sizes.

        Args:
            metafunc: passed by pytest.
        """
        for argument in ("size", "other_size"):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, self.sizes)

    def make(self, collectives: Collectives) -> Kept:
        """Return a new object under test on one rank of a world, always the same.

        Args:
            collectives: the collectives of the rank.
        """
        raise not_overridden(self)

    def advance(self, kept: Kept) -> None:
        """Advance the object to the next step boundary, which must change its state. Collective.

        Args:
            kept: the object under test.
        """
        raise not_overridden(self)

    def run(self, size: int, function: Callable[[Collectives], Result]) -> list[Result]:
        """Call the function on each of `size` ranks and return the results by rank. Raises what a rank raises.

        Args:
            size: the number of ranks.
            function: receives the collectives of its rank.
        """
        raise not_overridden(self)

    def advanced(self, collectives: Collectives, steps: int) -> Kept:
        """Return a new object, advanced by some boundaries.

        Args:
            collectives: the collectives of the rank.
            steps: the number of boundaries.
        """
        kept = self.make(collectives)
        for _ in range(steps):
            self.advance(kept)
        return kept

    def exports(self, size: int, steps: int) -> list[list[Content]]:
        """Return what each rank exports after some boundaries.

        Args:
            size: the number of ranks.
            steps: the number of boundaries.
        """
        return self.run(size, lambda rank: contents(self.advanced(rank, steps).export()))

    def test_parts_are_well_formed(self, size: int) -> None:
        """Every part lies within its value and has the stated number of bytes; each element is exported once."""
        exports = self.exports(size, 1)

        elements: Counter[tuple[str, int]] = Counter()
        shapes: dict[str, tuple[int, ...]] = {}
        for part in (part for export in exports for part in export):
            assert part.name
            assert part.length >= 0  # an empty one says that another rank exports the value
            assert len(part.data) * 8 == part.length * BITS[part.dtype]
            assert 0 <= part.offset <= part.offset + part.length <= prod(part.shape)
            assert shapes.setdefault(part.name, part.shape) == part.shape
            elements.update((part.name, part.offset + index) for index in range(part.length))
        assert all(count == 1 for count in elements.values())
        assert len(elements) == sum(map(prod, shapes.values()))

    def test_parts_can_be_read_twice(self, size: int) -> None:
        """Reading a part twice returns the same bytes, and exporting does not change the state."""

        def read_twice(rank: Collectives) -> bool:
            kept = self.advanced(rank, 1)
            parts = list(kept.export())
            return contents(parts) == contents(parts) == contents(kept.export())

        assert all(self.run(size, read_twice))

    def test_advancing_changes_the_export(self, size: int) -> None:
        """Exports at different boundaries differ, which the tests below rely on."""
        assert self.exports(size, 1) != self.exports(size, 2)

    def test_it_can_be_restored_at_every_boundary(self, size: int) -> None:
        """A new object that loads the export exports the same, then and after further steps."""

        def rebuild(rank: Collectives) -> bool:
            kept = self.make(rank)
            for boundary in range(self.boundaries):
                other = self.advanced(rank, (boundary + 2) % 3)
                other.load(parts_of(contents(kept.export())))
                same = contents(other.export()) == contents(kept.export())
                self.advance(kept)
                self.advance(other)
                if not same or contents(other.export()) != contents(kept.export()):
                    return False
            return True

        assert all(self.run(size, rebuild))

    def test_a_loaded_object_is_independent(self, size: int) -> None:
        """Loading copies the data: later changes of the exporter do not affect the object that loaded."""

        def load_and_go_on(rank: Collectives) -> bool:
            kept, other = self.advanced(rank, 1), self.make(rank)
            before = contents(kept.export())
            other.load(list(kept.export()))
            self.advance(kept)
            return contents(other.export()) == before

        assert all(self.run(size, load_and_go_on))

    def test_it_loads_exports_of_any_world_size(self, size: int, other_size: int) -> None:
        """After loading the parts of all ranks of another world, it exports what this world exports there."""
        exports = self.exports(size, 2)

        def load(rank: Collectives) -> list[Content]:
            kept = self.make(rank)
            kept.load(parts_of(*exports))
            return contents(kept.export())

        assert self.run(other_size, load) == self.exports(other_size, 2)

    def test_incompatible_parts_are_refused(self, size: int) -> None:
        """A missing or unknown part, or one of another shape, raises a ValueError with its name and changes nothing."""
        parts = parts_of(*self.exports(size, 2))
        without = [([kept for kept in parts if kept.name != part.name], part.name) for part in parts]
        reshaped = [
            ([kept for kept in parts if kept is not part] + [evolve(part, shape=(*part.shape, 2))], part.name)
            for part in parts
            if part.dtype != JSON
        ]
        unknown = [([*parts, evolve(parts[0], name="unknown part")], "unknown part")]

        def refuse(rank: Collectives) -> None:
            kept = self.advanced(rank, 1)
            before = contents(kept.export())
            for unfit, name in without + reshaped + unknown:
                with pytest.raises(ValueError, match=re.escape(name)):
                    kept.load(unfit)
                assert contents(kept.export()) == before

        self.run(size, refuse)


class SnapshotsContract:
    """Contract suite of the Snapshots port: a copy never changes, and its memory is reused by the next."""

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        """A new adapter under test."""
        raise not_overridden(self)

    def make_values(self) -> object:
        """Return at least two values that can be changed in place, always the same."""
        raise not_overridden(self)

    def parts_of(self, values: object) -> list[Part]:
        """Return the values as exported parts, in a fixed order, with different bytes each.

        Args:
            values: the tensors or arrays under test.
        """
        raise not_overridden(self)

    def change(self, values: object) -> None:
        """Change every byte of the values in place.

        Args:
            values: the tensors or arrays under test.
        """
        raise not_overridden(self)

    def test_a_copy_does_not_change(self, snapshots: Snapshots) -> None:
        """A copy keeps the values at the time it was taken, however often it is read and however they change since."""
        values = self.make_values()
        before = _bytes(self.parts_of(values))
        taken = snapshots.take("model", self.parts_of(values))
        self.change(values)
        assert _bytes(self.parts_of(values)) != before
        assert _bytes(taken) == before
        assert _bytes(taken) == before

    def test_a_copy_has_the_metadata_of_the_part(self, snapshots: Snapshots) -> None:
        """Names, dtypes, shapes and offsets are those of the parts, in the same order."""
        parts = self.parts_of(self.make_values())
        assert list(map(_label, snapshots.take("model", parts))) == list(map(_label, parts))

    def test_a_copy_can_be_read_in_another_thread(self, snapshots: Snapshots) -> None:
        """A copy may be read in another thread than the one that took it."""
        parts = self.parts_of(self.make_values())
        taken, read = snapshots.take("model", parts), []
        thread = threading.Thread(target=lambda: read.extend(_bytes(taken)))
        thread.start()
        thread.join()
        assert read == _bytes(parts)

    def test_owners_do_not_share_memory(self, snapshots: Snapshots) -> None:
        """Two owners may have parts with the same name."""
        values = self.make_values()
        model, before = snapshots.take("model", self.parts_of(values)), _bytes(self.parts_of(values))
        self.change(values)
        snapshots.take("optimizer", self.parts_of(values))
        assert _bytes(model) == before

    def test_the_next_snapshot_replaces_it(self, snapshots: Snapshots) -> None:
        """A part that is copied again has its new bytes."""
        values = self.make_values()
        snapshots.take("model", self.parts_of(values))
        self.change(values)
        after = _bytes(self.parts_of(values))
        assert _bytes(snapshots.take("model", self.parts_of(values))) == after

    def test_reserving_memory_first_changes_nothing(self, snapshots: Snapshots) -> None:
        """Memory may be reserved in another thread, and repeatedly, before anything is copied."""
        values = self.make_values()
        for _ in range(2):
            thread = threading.Thread(target=snapshots.reserve({"model": self.parts_of(values)}))
            thread.start()
            thread.join()
        assert _bytes(snapshots.take("model", self.parts_of(values))) == _bytes(self.parts_of(values))

    def test_documents_are_copied_too(self, snapshots: Snapshots) -> None:
        """JSON documents are copied like any other part, and may have another length the next time."""
        for value in ({"step": 1}, {"step": 1000}, {}):
            (taken,) = snapshots.take("scheduler", [json_part("state", value)])
            assert bytes(taken.read()) == bytes(json_part("state", value).read())


def _bytes(parts: Sequence[Part]) -> list[bytes]:
    return [bytes(part.read()) for part in parts]


def _label(part: Part) -> tuple[object, ...]:
    return part.name, part.dtype, part.shape, part.offset, part.length
