"""What memory for snapshots does."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from hexloop.domain.parts import json_part
from hexloop.ports.snapshots import Snapshots
from hexloop.ports.state import Part


class SnapshotsContract:
    """The suite of the Snapshots port: a copy stays as it was taken, and the memory of one serves the next."""

    @pytest.fixture
    def snapshots(self) -> Snapshots:
        """The adapter under test, new."""
        raise NotImplementedError

    def make_values(self) -> object:
        """Values that can be changed in place, at least two of them; the same each time."""
        raise NotImplementedError

    def parts_of(self, values: object) -> list[Part]:
        """The values as an exporter hands them out, in a fixed order, each of other bytes than the next."""
        raise NotImplementedError

    def change(self, values: object) -> None:
        """Change every byte of the values in place."""
        raise NotImplementedError

    def test_a_copy_stays_as_it_was_taken(self, snapshots: Snapshots) -> None:
        """What is read of a copy is what the value was then, however often and whatever became of the value since."""
        values = self.make_values()
        before = _bytes(self.parts_of(values))
        taken = snapshots.take("model", self.parts_of(values))
        self.change(values)
        assert _bytes(self.parts_of(values)) != before
        assert _bytes(taken) == before
        assert _bytes(taken) == before

    def test_a_copy_says_what_the_part_said(self, snapshots: Snapshots) -> None:
        """Names, types, shapes and places are those of the parts, in their order."""
        parts = self.parts_of(self.make_values())
        assert list(map(_label, snapshots.take("model", parts))) == list(map(_label, parts))

    def test_a_copy_is_read_in_another_thread(self, snapshots: Snapshots) -> None:
        """Whoever writes a snapshot need not be who took it."""
        parts = self.parts_of(self.make_values())
        taken, read = snapshots.take("model", parts), []
        thread = threading.Thread(target=lambda: read.extend(_bytes(taken)))
        thread.start()
        thread.join()
        assert read == _bytes(parts)

    def test_owners_do_not_share_memory(self, snapshots: Snapshots) -> None:
        """Two owners may have parts of the same name."""
        values = self.make_values()
        model, before = snapshots.take("model", self.parts_of(values)), _bytes(self.parts_of(values))
        self.change(values)
        snapshots.take("optimizer", self.parts_of(values))
        assert _bytes(model) == before

    def test_the_next_snapshot_takes_its_place(self, snapshots: Snapshots) -> None:
        """A part that is taken again gives its new bytes."""
        values = self.make_values()
        snapshots.take("model", self.parts_of(values))
        self.change(values)
        after = _bytes(self.parts_of(values))
        assert _bytes(snapshots.take("model", self.parts_of(values))) == after

    def test_making_room_first_changes_nothing(self, snapshots: Snapshots) -> None:
        """Room may be made in another thread, and twice, before anything is taken."""
        values = self.make_values()
        for _ in range(2):
            thread = threading.Thread(target=snapshots.reserve({"model": self.parts_of(values)}))
            thread.start()
            thread.join()
        assert _bytes(snapshots.take("model", self.parts_of(values))) == _bytes(self.parts_of(values))

    def test_documents_are_kept_as_well(self, snapshots: Snapshots) -> None:
        """A part that is a JSON document is copied like any other, and may be of another length next time."""
        for value in ({"step": 1}, {"step": 1000}, {}):
            (taken,) = snapshots.take("scheduler", [json_part("state", value)])
            assert bytes(taken.read()) == bytes(json_part("state", value).read())


def _bytes(parts: Sequence[Part]) -> list[bytes]:
    return [bytes(part.read()) for part in parts]


def _label(part: Part) -> tuple[object, ...]:
    return part.name, part.dtype, part.shape, part.offset, part.length
