"""Contract suites of the Background, Clock, Interrupts, Machine, Logger, Journal and Signatures ports."""

from __future__ import annotations

import base64
import json
import math
import threading
import wave
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

import pytest
from attrs import evolve

from hexloop.app.assembly.trackers import receiver_of
from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.domain.media import ENDINGS
from hexloop.domain.system_metrics import LARGEST, METRICS
from hexloop.ports.logger import Fact, Journal, Logger, Media, Outcome, Record, RunInformation, Value
from hexloop.ports.process import Background, Clock, Interrupts, Machine
from hexloop.ports.storage import Signatures


class BackgroundContract:
    """Contract suite of the Background port."""

    @pytest.fixture
    def background(self) -> Background:
        """The adapter under test."""
        raise not_overridden(self)

    def test_a_task_runs_once(self, background: Background) -> None:
        """After `wait`, the task has run once and is done, however often it is waited for."""
        calls: list[int] = []
        task = background.submit(lambda: calls.append(1), "a task")

        task.wait()
        task.wait()

        assert calls == [1]
        assert task.done

    def test_a_task_finishes_without_a_wait(self, background: Background) -> None:
        """Reading `done` is enough to see a task finish."""
        calls: list[int] = []
        task = background.submit(lambda: calls.append(1), "a task", low_priority=False)

        deadline = monotonic() + 10.0
        while not task.done and monotonic() < deadline:
            sleep(0.001)

        assert task.done
        assert calls == [1]

    @pytest.mark.parametrize("error", [ValueError("failed"), KeyboardInterrupt()])
    def test_an_error_is_raised_by_wait(self, background: Background, error: BaseException) -> None:
        """Each `wait` raises what the task raised, and `done` does not raise it."""

        def fail() -> None:
            raise error

        task = background.submit(fail, "a task that fails")

        for _ in range(2):
            with pytest.raises(type(error)) as raised:
                task.wait()
            assert raised.value is error
        assert task.done

    def test_tasks_are_independent(self, background: Background) -> None:
        """A task that fails does not affect another one."""
        calls: list[int] = []

        def fail() -> None:
            raise ValueError("failed")

        failing = background.submit(fail, "a task that fails")
        other = background.submit(lambda: calls.append(1), "another task")

        other.wait()

        assert calls == [1]
        with pytest.raises(ValueError, match="failed"):
            failing.wait()


class ClockContract:
    """Contract suite of the Clock port."""

    @pytest.fixture
    def clock(self) -> Clock:
        """The adapter under test."""
        raise not_overridden(self)

    def test_monotonic_time_never_goes_back(self, clock: Clock) -> None:
        """Each reading of the monotonic clock is at least the previous one."""
        readings = [clock.monotonic() for _ in range(1000)]

        assert all(earlier <= later for earlier, later in pairwise(readings))

    def test_sleep_lasts(self, clock: Clock) -> None:
        """After a sleep, both clocks have advanced by at least its length."""
        monotonic, wall = clock.monotonic(), clock.wall()

        clock.sleep(0.02)

        # Clock synchronization may set the wall clock back meanwhile, by less than a millisecond.
        assert clock.monotonic() - monotonic >= 0.02
        assert clock.wall() - wall >= 0.019

    def test_no_sleep_is_allowed(self, clock: Clock) -> None:
        """A sleep of zero seconds returns."""
        clock.sleep(0)


class InterruptsContract:
    """Contract suite of the Interrupts port."""

    @pytest.fixture
    def interrupts(self) -> Interrupts:
        """The adapter under test."""
        raise not_overridden(self)

    @pytest.fixture
    def provoke(self, interrupts: Interrupts) -> Callable[[], None]:
        """Return a function that triggers the adapter; without a listener it has no effect.

        Args:
            interrupts: the adapter under test.
        """
        raise not_overridden(self)

    def test_a_started_listener_gets_requests(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """The listener receives a request with a reason."""
        asked: list[str] = []
        interrupts.start(asked.append)

        provoke()

        interrupts.stop()
        assert len(asked) == 1
        assert asked[0]

    def test_a_stopped_listener_gets_no_requests(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """A request after `stop` is not delivered."""
        asked: list[str] = []
        interrupts.start(asked.append)
        interrupts.stop()

        provoke()

        assert asked == []

    def test_listening_can_restart(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """After `stop` another listener may be started, and only that one receives requests."""
        first: list[str] = []
        second: list[str] = []
        interrupts.start(first.append)
        interrupts.stop()
        interrupts.start(second.append)

        provoke()

        interrupts.stop()
        assert (len(first), len(second)) == (0, 1)

    def test_an_idle_source_can_be_stopped(self, interrupts: Interrupts) -> None:
        """Stopping twice, or before any start, has no effect."""
        interrupts.stop()
        interrupts.start(lambda reason: None)
        interrupts.stop()
        interrupts.stop()


class MachineContract:
    """Contract suite of the Machine port."""

    @pytest.fixture
    def machine(self) -> Machine:
        """The adapter under test."""
        raise not_overridden(self)

    def test_known_metrics_are_measured(self, machine: Machine) -> None:
        """Every name is that of a metric, and every value a finite number that is not negative."""
        for _ in range(3):
            for name, value in machine.measure().items():
                assert name in METRICS
                assert 0 <= value < LARGEST

    def test_another_thread_may_measure(self, machine: Machine) -> None:
        """All calls come from one thread, which need not be the one that made the machine."""
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(machine.measure()))
        thread.start()
        thread.join()

        assert len(found) == 1


MEDIA = (
    Media("a text", 1, 0.5, "text", {"text": "a <b> text\nover two lines"}, caption="with a caption"),
    Media("a table", 1, 0.5, "table", {"columns": ["in", "out"], "rows": [["a|b", 1], [None, 0.5], [True, "c"]]}),
    Media("a group/an image", 1, 0.5, "image", {"width": 3, "height": 2}),
    Media("a group/an image", 1, 0.5, "image", {"width": 3, "height": 2}, index=1, caption="the second"),
    Media("a histogram", 1, 0.5, "histogram", {"edges": [-1.0, 0.0, 2.0], "counts": [3, 0]}),
    Media("sound", 2, 1.0, "audio", {"rate": 8000, "seconds": 0.01, "channels": 1}),
)
"""A medium of each kind, without its file."""


def with_file(media: Media, folder: Path) -> Media:
    """Return a medium with the path of its file, which is written into a folder."""
    path = folder / f"{media.kind}-{media.index}.{ENDINGS[media.kind]}"
    if media.kind == "image":
        path.write_bytes(PIXELS)
    elif media.kind == "audio":
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(bytes(160))
    else:
        path.write_text(json.dumps(dict(media.content)))
    return evolve(media, file=str(path), size=path.stat().st_size)


PIXELS = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAIAAAASFvFNAAAAHElEQVR42mM8wcXFwMDAwMDAxMDAYPHtKwMDAwAaZAMDiN1qJwAAAABJ"
    "RU5ErkJggg=="
)
"""A PNG of 3 times 2 pixels."""


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
        raise not_overridden(self)

    def written(self, logger: Logger) -> dict[str, Value] | None:
        """Return the values of the last record that can be read back; None if none can.

        Args:
            logger: the adapter under test.
        """
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
        identifier = logger.start(RunInformation("a run"))
        logger.finish()
        again = logger.start(RunInformation("a run", step=10, tracked_as=identifier))
        logger.write(Record(11, 2.0, {"loss": 1.0}))
        logger.finish()

        assert again == identifier
        assert self.written(logger) in (None, {"loss": 1.0})

    def test_a_run_is_identified_by_a_short_text(self, logger: Logger) -> None:
        """What `start` returns is saved in checkpoints: a text of at most 1,000 characters, or None."""
        identifier = logger.start(RunInformation("a run"))
        logger.finish()

        assert identifier is None or (isinstance(identifier, str) and 0 < len(identifier) <= 1000)

    @pytest.mark.parametrize("kind", ["finished", "failed", "stopped", "preempted"])
    def test_a_run_can_end_in_every_way(
        self, logger: Logger, kind: Literal["finished", "failed", "stopped", "preempted"]
    ) -> None:
        """A logger is finished with each outcome, and with a problem."""
        logger.start(RunInformation("a run"))
        logger.write(Record(1, 0.5, {"loss": 1.0}))
        logger.finish(Outcome(kind, "RuntimeError: the data ended"))

        assert self.written(logger) in (None, {"loss": 1.0})

    def test_media_of_the_kinds_that_it_takes_can_be_written(self, logger: Logger, tmp_path: Path) -> None:
        """A logger that says that it takes a kind takes it, also twice; one that says nothing takes none."""
        receiver = receiver_of("logger", logger, {})
        assert receiver.media <= set(ENDINGS)
        assert receiver.write_media is not None or not receiver.media
        logger.start(RunInformation("a run"))
        for media in MEDIA:
            if media.kind in receiver.media and receiver.write_media is not None:
                for _ in range(2):
                    receiver.write_media(with_file(media, tmp_path))
        logger.write(Record(3, 1.5, {"loss": 1.0}))
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
        raise not_overridden(self)

    def noted(self, journal: Journal) -> list[dict[str, Fact]] | None:
        """Return all entries, each with its kind under "kind", as another process reads them; None if impossible.

        Args:
            journal: the adapter under test.
        """
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


class SignaturesContract:
    """Contract suite of the Signatures port."""

    @pytest.fixture
    def signatures(self) -> Signatures:
        """The adapter under test, with a key that signs."""
        raise not_overridden(self)

    @pytest.fixture
    def other(self) -> Signatures:
        """The same adapter with another key."""
        raise not_overridden(self)

    @pytest.mark.parametrize("data", [b"", b"manifest", bytes(range(256)) * 100])
    def test_what_was_signed_is_verified(self, signatures: Signatures, data: bytes) -> None:
        """A signature is one line of ASCII text and is verified for the same bytes."""
        signature = signatures.sign(data)

        assert signatures.can_sign
        assert signature.isascii()
        assert signature.isprintable()
        assert signatures.verify(data, signature)

    def test_other_bytes_are_not_verified(self, signatures: Signatures) -> None:
        """A signature is only that of the bytes that were signed."""
        signature = signatures.sign(b"manifest")

        for data in (b"", b"manifesu", b"manifest ", b"\0manifest"):
            assert not signatures.verify(data, signature)

    def test_another_key_is_not_verified(self, signatures: Signatures, other: Signatures) -> None:
        """A signature is only that of the key that signed."""
        assert not signatures.verify(b"manifest", other.sign(b"manifest"))

    def test_any_text_is_refused(self, signatures: Signatures) -> None:
        """Text that is not a signature, or a damaged one, is not verified, and raises nothing."""
        signature = signatures.sign(b"manifest")
        kind, _, digits = signature.partition(":")

        for text in ("", kind, f"{kind}:", digits, signature[:-2], f"{signature}00", f"none:{digits}", "\ud800", "\0"):
            assert not signatures.verify(b"manifest", text)
