"""What whoever keeps something between steps does."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Generic, TypeVar

import pytest
from attrs import evolve

from hexloop.app.contracts.parts import BITS, Content, contents
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import JSON, Exportable, Part

Kept = TypeVar("Kept", bound=Exportable)
Result = TypeVar("Result")


def parts_of(*exports: Sequence[Content]) -> list[Part]:
    """Parts that hand out what was exported."""
    return [content.part() for export in exports for content in export]


class ExportableContract(Generic[Kept]):
    """The suite of the Exportable port: an object is rebuilt from its export at every boundary and goes on alike."""

    boundaries = 4
    """How many boundaries are tried."""
    sizes: Sequence[int] = (1,)
    """The numbers of ranks over which the object can be spread."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Try every size, and every pair of sizes."""
        for argument in ("size", "other_size"):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, self.sizes)

    def make(self, collectives: Collectives) -> Kept:
        """A new object under test, on one rank of a world; the same each time."""
        raise NotImplementedError

    def advance(self, kept: Kept) -> None:
        """Take the object from one boundary to the next. Collective; what it keeps changes."""
        raise NotImplementedError

    def run(self, size: int, function: Callable[[Collectives], Result]) -> list[Result]:
        """What the function gives on each rank of a world of `size` ranks, by rank. Raises what a rank raises."""
        raise NotImplementedError

    def advanced(self, collectives: Collectives, steps: int) -> Kept:
        """A new object, some boundaries on."""
        kept = self.make(collectives)
        for _ in range(steps):
            self.advance(kept)
        return kept

    def exports(self, size: int, steps: int) -> list[list[Content]]:
        """What each rank exports some boundaries on."""
        return self.run(size, lambda rank: contents(self.advanced(rank, steps).export()))

    def test_parts_are_well_formed(self, size: int) -> None:
        """Every part lies within its value and has the bytes that it says; the ranks have each element once."""
        exports = self.exports(size, 1)

        elements: Counter[tuple[str, int]] = Counter()
        shapes: dict[str, tuple[int, ...]] = {}
        for part in (part for export in exports for part in export):
            assert part.name
            assert part.length > 0 or prod(part.shape) == 0
            assert len(part.data) * 8 == part.length * BITS[part.dtype]
            assert 0 <= part.offset <= part.offset + part.length <= prod(part.shape)
            assert shapes.setdefault(part.name, part.shape) == part.shape
            elements.update((part.name, part.offset + index) for index in range(part.length))
        assert all(count == 1 for count in elements.values())
        assert len(elements) == sum(map(prod, shapes.values()))

    def test_parts_can_be_read_twice(self, size: int) -> None:
        """A part hands out the same bytes each time, and an export changes nothing."""

        def read_twice(rank: Collectives) -> bool:
            kept = self.advanced(rank, 1)
            parts = list(kept.export())
            return contents(parts) == contents(parts) == contents(kept.export())

        assert all(self.run(size, read_twice))

    def test_advancing_changes_what_is_kept(self, size: int) -> None:
        """The export tells one boundary from the next, so that the tests below mean something."""
        assert self.exports(size, 1) != self.exports(size, 2)

    def test_it_can_be_rebuilt_at_every_boundary(self, size: int) -> None:
        """A new object that loads the export exports the same, and so do both from there on."""

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

    def test_a_loaded_object_stands_alone(self, size: int) -> None:
        """Loading copies: what the exporter does afterwards does not reach the object that loaded."""

        def load_and_go_on(rank: Collectives) -> bool:
            kept, other = self.advanced(rank, 1), self.make(rank)
            before = contents(kept.export())
            other.load(list(kept.export()))
            self.advance(kept)
            return contents(other.export()) == before

        assert all(self.run(size, load_and_go_on))

    def test_it_loads_what_a_world_of_any_size_exported(self, size: int, other_size: int) -> None:
        """Handed the parts of all ranks of another world it exports what this world exports at that boundary."""
        exports = self.exports(size, 2)

        def load(rank: Collectives) -> list[Content]:
            kept = self.make(rank)
            kept.load(parts_of(*exports))
            return contents(kept.export())

        assert self.run(other_size, load) == self.exports(other_size, 2)

    def test_what_does_not_fit_is_refused(self, size: int) -> None:
        """A part that is missing, unknown or of another shape raises a ValueError that names it; nothing is changed."""
        parts = parts_of(*self.exports(size, 2))
        without = [([kept for kept in parts if kept.name != part.name], part.name) for part in parts]
        reshaped = [
            ([kept for kept in parts if kept is not part] + [evolve(part, shape=(*part.shape, 2))], part.name)
            for part in parts
            if part.dtype != JSON
        ]
        unknown = [([*parts, evolve(parts[0], name="nobody knows this")], "nobody knows this")]

        def refuse(rank: Collectives) -> None:
            kept = self.advanced(rank, 1)
            before = contents(kept.export())
            for unfit, name in without + reshaped + unknown:
                with pytest.raises(ValueError, match=re.escape(name)):
                    kept.load(unfit)
                assert contents(kept.export()) == before

        self.run(size, refuse)
