"""What a journal does."""

from __future__ import annotations

import math
import threading

import pytest

from hexloop.ports.journal import Fact, Journal

FACTS: dict[str, Fact] = {
    "step": 3,
    "loss": 0.1 + 0.2,
    "name": 'a "name" over\ntwo lines, and an Ä',
    "stopped": True,
    "nothing": None,
    "list": [1, 2.5, "three", [4]],
    "mapping": {"model.safetensors": "xxh3:00ff", "deeper": {"still": 1}},
}


class JournalContract:
    """The suite of the Journal port. A subclass overrides `noted` where the notes can be read again."""

    @pytest.fixture
    def journal(self) -> Journal:
        """The adapter under test: a journal without a note."""
        raise NotImplementedError

    def noted(self, journal: Journal) -> list[dict[str, Fact]] | None:
        """Every note with its kind under "kind", read as another process would; None where none can be read."""
        return None

    def test_every_kind_of_fact_comes_back(self, journal: Journal) -> None:
        """Numbers, texts, truth values, None, lists and mappings at any depth are what they were."""
        journal.note("logged", **FACTS)
        journal.note("ended")

        assert self.noted(journal) in (None, [{"kind": "logged", **FACTS}, {"kind": "ended"}])

    def test_a_note_is_kept_before_the_journal_is_closed(self, journal: Journal) -> None:
        """What was noted is there at once, whatever becomes of this process."""
        journal.note("began", step=0)
        noted = self.noted(journal)
        journal.close()

        assert noted in (None, [{"kind": "began", "step": 0}])

    def test_a_number_that_is_none_may_be_noted(self, journal: Journal) -> None:
        """Neither nan nor infinity is refused, and what follows them is kept."""
        journal.note("logged", values={"loss": math.nan, "grad_norm": -math.inf})
        journal.note("ended", step=1)
        noted = self.noted(journal)

        assert noted is None or (len(noted), noted[-1]) == (2, {"kind": "ended", "step": 1})

    def test_a_closed_journal_goes_on(self, journal: Journal) -> None:
        """A note after a close is added at the end; to close twice, or before any note, does nothing."""
        journal.close()
        journal.note("began", step=0)
        journal.close()
        journal.close()
        journal.note("began", step=5)
        journal.close()
        noted = self.noted(journal)

        assert noted is None or [note["step"] for note in noted] == [0, 5]

    def test_threads_may_note_at_once(self, journal: Journal) -> None:
        """No note of several threads is lost or mixed with another, and each thread's stay in order."""

        def note(thread: int) -> None:
            for number in range(50):
                journal.note("note", thread=thread, number=number, filling="x" * 200)

        threads = [threading.Thread(target=note, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        journal.close()
        noted = self.noted(journal)

        assert noted is None or len(noted) == 200
        for number in range(4):
            own = [note["number"] for note in noted or [] if note["thread"] == number]
            assert own == list(range(50)) or noted is None
