"""Contract suites of the ports that record a run: Logger and Journal."""

from __future__ import annotations

import math
import threading

import pytest

from hexloop.ports.journal import Fact, Journal
from hexloop.ports.logger import Logger, Record, RunInformation, Value

RECORDS = (
    Record(1, 0.5, {"loss": 2.5, "learning_rate": 1e-5, "grad_norm": None}),
    Record(1, 0.5, {}),
    Record(2, 1.0, {"eval_loss": math.nan, "eval_count": 3, "eval_name": "last", "eval_good": True}),
    Record(3, 1.5, {"loss": math.inf}),
)


class LoggerContract:
    """Contract suite of the Logger port. Override `written` if what the logger writes can be read back."""

    @pytest.fixture
    def logger(self) -> Logger:
        """The adapter under test."""
        raise NotImplementedError

    def written(self, logger: Logger) -> dict[str, Value] | None:
        """Return the values of the last record that can be read back; None if none can."""
        return None

    def test_every_type_of_value_can_be_written(self, logger: Logger) -> None:
        """Floats including NaN and infinity, integers, strings, booleans, None and empty records are accepted."""
        logger.start(RunInformation("a run", {"learning_rate": 0.1, "layers": [1, 2]}, total_steps=3))
        for record in RECORDS:
            logger.write(record)
        logger.finish()

        assert self.written(logger) in (None, {"loss": math.inf})

    def test_a_run_can_continue(self, logger: Logger) -> None:
        """After `finish` the same logger may be started again for the same run at a later step."""
        logger.start(RunInformation("a run"))
        logger.finish()
        logger.start(RunInformation("a run", step=10))
        logger.write(Record(11, 2.0, {"loss": 1.0}))
        logger.finish()

        assert self.written(logger) in (None, {"loss": 1.0})

    def test_a_run_can_end_before_its_first_record(self, logger: Logger) -> None:
        """A run that fails immediately finishes without a record."""
        logger.start(RunInformation("a run"))
        logger.finish()


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
    """Contract suite of the Journal port. Override `noted` if the entries can be read back."""

    @pytest.fixture
    def journal(self) -> Journal:
        """The adapter under test: an empty journal."""
        raise NotImplementedError

    def noted(self, journal: Journal) -> list[dict[str, Fact]] | None:
        """Return all entries, each with its kind under "kind", as another process reads them; None if impossible."""
        return None

    def test_every_type_of_value_is_read_back(self, journal: Journal) -> None:
        """Numbers, strings, booleans, None, and nested lists and mappings are read back unchanged."""
        journal.note("logged", **FACTS)
        journal.note("ended")

        assert self.noted(journal) in (None, [{"kind": "logged", **FACTS}, {"kind": "ended"}])

    def test_an_entry_is_written_at_once(self, journal: Journal) -> None:
        """An entry can be read as soon as it is written, even if the process dies afterwards."""
        journal.note("began", step=0)
        noted = self.noted(journal)
        journal.close()

        assert noted in (None, [{"kind": "began", "step": 0}])

    def test_nan_and_infinity_are_accepted(self, journal: Journal) -> None:
        """NaN and infinity are accepted, and entries after them are kept."""
        journal.note("logged", values={"loss": math.nan, "grad_norm": -math.inf})
        journal.note("ended", step=1)
        noted = self.noted(journal)

        assert noted is None or (len(noted), noted[-1]) == (2, {"kind": "ended", "step": 1})

    def test_a_closed_journal_can_be_appended_to(self, journal: Journal) -> None:
        """An entry after `close` is appended; closing twice, or before any entry, has no effect."""
        journal.close()
        journal.note("began", step=0)
        journal.close()
        journal.close()
        journal.note("began", step=5)
        journal.close()
        noted = self.noted(journal)

        assert noted is None or [note["step"] for note in noted] == [0, 5]

    def test_threads_can_write_concurrently(self, journal: Journal) -> None:
        """Entries from several threads are neither lost nor mixed, and those of each thread stay in order."""

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
