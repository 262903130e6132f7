"""Contract of the Journal port, run on each journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hexloop.adapters.clock import ManualClock
from hexloop.adapters.journal import JsonLinesJournal, MemoryJournal, NoJournal, read
from hexloop.app.testing.contracts.environment import JournalContract
from hexloop.domain.fail_safe import FailSafeJournal
from hexloop.ports.logger import Fact, Journal


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def journal(self) -> Journal:
        return MemoryJournal()

    def noted(self, journal: Journal) -> list[dict[str, Fact]]:
        assert isinstance(journal, MemoryJournal)
        return list(journal.notes)


class TestNoJournal(JournalContract):
    @pytest.fixture
    def journal(self) -> Journal:
        return NoJournal()


class TestJsonLinesJournal(JournalContract):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Journal:
        self.file = tmp_path / "folder" / "journal.jsonl"
        return JsonLinesJournal(self.file)

    def noted(self, journal: Journal) -> list[dict[str, Fact]]:
        return read(self.file)


class TestSteadyJournal(JournalContract):
    """It adds only the time to each note."""

    @pytest.fixture
    def journal(self) -> Journal:
        self.inner = MemoryJournal()
        return FailSafeJournal(self.inner, ManualClock(wall=5.0))

    def noted(self, journal: Journal) -> list[dict[str, Fact]]:
        assert all(note["time"] == 5.0 for note in self.inner.notes)
        return [{name: fact for name, fact in note.items() if name != "time"} for note in self.inner.notes]


def test_a_torn_last_line_is_skipped(tmp_path: Path) -> None:
    """After a crash in the middle of a note the journal continues, and all complete notes can be read."""
    path = tmp_path / "journal.jsonl"
    journal = JsonLinesJournal(path)
    journal.note("step", step=1)
    journal.note("step", step=2)
    journal.close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        journal.note("step", step=3)
        journal.close()
        steps = [note["step"] for note in read(path)]
        assert steps == [*range(1, whole[:length].count(b"\n") + 1 + (whole[length : length + 1] == b"\n")), 3]


def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    """Lines that are not JSON objects with a kind are left out."""
    path = tmp_path / "journal.jsonl"
    path.write_text(f'[1]\n\n"text"\n{{"step": 1}}\n{"[" * 100_000}\n{{"kind": "step", "step": 2}}\n')
    assert read(path) == [{"kind": "step", "step": 2}]


class Full(MemoryJournal):
    """A disk without space for the second note."""

    def note(self, kind: str, **facts: Fact) -> None:
        if self.notes:
            raise OSError("no space left")
        super().note(kind, **facts)

    def close(self) -> None:
        raise OSError("gone")


def test_a_failing_journal_is_reported_once_and_is_not_used_again(caplog: pytest.LogCaptureFixture) -> None:
    """The log tells of it instead of an error, and the journal is used again after it was closed."""
    full = Full()
    journal = FailSafeJournal(full, ManualClock())
    journal.note("began")
    journal.note("step")
    journal.note("step")
    assert [text for text in caplog.messages if "no space left" in text] == caplog.messages
    assert len(caplog.messages) == 1
    full.notes.clear()
    journal.close()
    assert "gone" in caplog.messages[-1]
    journal.note("began", step=1)
    assert [note["kind"] for note in full.notes] == ["began"]
