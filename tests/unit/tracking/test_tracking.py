"""Loggers in the background: what they receive, when they fail, and what is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from hexloop.adapters.clock import SystemClock
from hexloop.adapters.spool import FileSpool, MemorySpool
from hexloop.domain import background_logger
from hexloop.domain.background_logger import Receiver, may_pass
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.limits import reading_limits
from hexloop.domain.log_entries import entry_of
from hexloop.domain.tracking import UNKNOWN_END, Left, Tracking
from hexloop.ports.logger import FINISHED, Logger, Media, MediaKind, Outcome, Record, RunInformation, SavedModel, Spool

RUN = RunInformation("a run", {"learning_rate": 0.1}, "out", 100, run="r1")
PATIENCE = 20.0
"""Seconds after which a test that waits has failed."""


class Diary:
    """A logger that keeps its calls. It does what `acts` says before a call is kept: once each, in order.

    An exception is raised, and a function is called.
    """

    def __init__(self, *acts: BaseException | Callable[[], object] | None, identifier: str | None = "id-1") -> None:
        self.acts, self.identifier = list(acts), identifier
        self.calls: list[Any] = []

    def start(self, run: RunInformation) -> str | None:
        self._call(("start", run.tracked_as))
        return run.tracked_as or self.identifier

    def write(self, record: Record) -> None:
        self._call(record.step)

    def write_all(self, records: Sequence[Record]) -> None:
        self._call([record.step for record in records])

    def save(self, model: SavedModel) -> None:
        self._call((model.name, {path.name: path.read_text() for path in Path(model.folder).iterdir()}))

    def write_media(self, media: Media) -> None:
        self._call((media.name, media.file))

    def finish(self, outcome: Outcome = FINISHED) -> None:
        self._call(outcome)

    def _call(self, call: Any) -> None:
        act = self.acts.pop(0) if self.acts else None
        if isinstance(act, BaseException):
            raise act
        if act is not None:
            act()
        self.calls.append(call)


def record(step: int, **values: Any) -> Record:
    return Record(step, step / 100, {"loss": 1 / step, **values})


def medium(name: str, step: int, kind: MediaKind = "image") -> Media:
    return Media(name, step, step / 100, kind, {}, file=f"{name}-file")


def with_path(media: Media) -> Media | None:
    """Return a medium as a folder of media does; None if it is not there."""
    return None if media.name == "gone" else evolve(media, file=f"/run/{media.file}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def begin(folder: Path, reports: list[str]) -> Iterator[Callable[..., Tracking]]:
    """Return what starts the tracking of a run with some loggers, as a process would."""
    made: list[Tracking] = []

    def start(
        *loggers: Logger | Receiver, spool: Spool | None = None, step: int | None = None, tracked_as: str | None = None
    ) -> Tracking:
        tracking = Tracking(spool or FileSpool(folder), SystemClock(), lambda failures: 0.01, reports.append, with_path)
        if step is not None:
            tracking.resume(step)
        for place, logger in enumerate(loggers):
            receiver = logger if isinstance(logger, Receiver) else Receiver(f"logger-{place}", logger)
            tracking.start(receiver, evolve(RUN, step=step or 0), tracked_as)
        made.append(tracking)
        return tracking

    yield start
    for tracking in made:
        tracking.deliver(0.0)


def reached(is_so: Callable[[], object]) -> bool:
    """Wait until something is so."""
    ends_at = time.monotonic() + PATIENCE
    while not is_so() and time.monotonic() < ends_at:
        time.sleep(0.005)
    return bool(is_so())


class Gate:
    """Something that a logger waits for; `reached` once it does."""

    def __init__(self) -> None:
        self._open, self.reached = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        self._open.wait(PATIENCE)

    def open(self) -> None:
        self._open.set()


def test_loggers_receive_everything_in_order(begin: Callable[..., Tracking], folder: Path) -> None:
    """Each logger is started, receives every record in order, and is finished; nothing is left on disk."""
    first, second = Diary(), Diary(identifier=None)
    tracking = begin(first, second)
    tracking.await_start()
    assert tracking.identifiers == {"logger-0": "id-1"}
    assert (len(tracking), tracking.has_started("logger-1"), tracking.has_started("other")) == (2, True, False)
    for step in (1, 2, 3):
        tracking.write(record(step))
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert first.calls == second.calls == [("start", None), 1, 2, 3, FINISHED]
    assert not folder.exists()


def test_a_record_can_be_for_some_loggers(begin: Callable[..., Tracking]) -> None:
    """The others do not receive it, nor from the spool."""
    gate = Gate()
    first, second = Diary(gate), Diary()
    tracking = begin(first, second)
    tracking.write(record(1), to=["logger-0"])
    tracking.write(record(2))
    gate.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert first.calls == [("start", None), 1, 2, FINISHED]
    assert second.calls == [("start", None), 2, FINISHED]


def test_a_slow_logger_holds_up_no_one(begin: Callable[..., Tracking], monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is busy, the run continues; what does not fit into memory comes from the spool, in order."""
    monkeypatch.setattr(background_logger, "IN_MEMORY", 3)
    gate = Gate()
    slow, quick = Diary(gate), Diary()
    tracking = begin(slow, quick)
    for step in range(1, 21):
        tracking.write(record(step))
    assert reached(lambda: len(quick.calls) == 21)
    assert slow.calls == []
    gate.open()
    assert reached(lambda: len(slow.calls) == 21)
    tracking.write(record(21))
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert slow.calls == quick.calls == [("start", None), *range(1, 22), FINISHED]


def test_several_records_are_written_at_once(begin: Callable[..., Tracking]) -> None:
    """If a logger takes several, those that wait come together."""
    gate = Gate()
    logger = Diary(gate)
    tracking = begin(Receiver("batches", logger, write_all=logger.write_all))
    for step in range(1, 251):
        tracking.write(record(step))
    gate.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert logger.calls[1:-1] == [list(range(1, 101)), list(range(101, 201)), list(range(201, 251))]


def test_an_error_that_may_pass_is_tried_again(begin: Callable[..., Tracking], reports: list[str]) -> None:
    """The call is repeated until it succeeds; this is reported once, without secrets."""
    errors = [ConnectionError("https://user:secret@host is down"), TimeoutError(), None, OSError("again")]
    logger = Diary(*errors)
    tracking = begin(logger)
    tracking.write(record(1))
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert logger.calls == [("start", None), 1, FINISHED]
    [report] = reports
    assert "logger-0 failed to start (ConnectionError: https://***@host is down)" in report
    assert "it is tried again" in report


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), ConfigurationError("no key")])
def test_a_logger_that_fails_for_good_is_left_alone(
    error: BaseException, begin: Callable[..., Tracking], reports: list[str], folder: Path
) -> None:
    """It is called no more; what it lacks stays in the spool, with the reason. The others are not affected."""
    failing, healthy = Diary(None, None, error), Diary()
    tracking = begin(failing, healthy)
    for step in (1, 2, 3):
        tracking.write(record(step))
    [left] = tracking.finish(FINISHED, PATIENCE)
    assert (left.name, left.count, left.left_out) == ("logger-0", 3, 0)
    assert type(error).__name__ in left.problem
    assert failing.calls == [("start", None), 1]
    assert healthy.calls == [("start", None), 1, 2, 3, FINISHED]
    assert len(reports) == 1
    assert "failed to write" in reports[0]
    assert folder.exists()


def test_what_is_left_is_delivered_by_another_process(begin: Callable[..., Tracking], folder: Path) -> None:
    """The logger is started with the identifier of its run, receives the rest, and is finished as the run was."""
    failing = Diary(None, None, RuntimeError())
    tracking = begin(failing)
    for step in (1, 2, 3):
        tracking.write(record(step))
    stopped = Outcome("stopped", "enough")
    assert tracking.finish(stopped, PATIENCE)
    later = Tracking(FileSpool(folder), SystemClock(), lambda failures: 0.01, pytest.fail)
    later.take_over()
    logger = Diary()
    later.start(Receiver("logger-0", logger), RUN)
    later.end_unfinished()
    assert later.deliver(PATIENCE) == []
    assert logger.calls == [("start", "id-1"), 2, 3, stopped]
    assert not folder.exists()


def test_the_end_of_a_killed_run_is_not_known(begin: Callable[..., Tracking], folder: Path) -> None:
    """If no process finished the run, the one that delivers says so."""
    gate = Gate()
    begin(Diary(gate)).write(record(1))
    later = Tracking(FileSpool(folder), SystemClock(), lambda failures: 0.01, pytest.fail)
    later.take_over()
    logger = Diary()
    later.start(Receiver("logger-0", logger), RUN)
    later.end_unfinished()
    assert later.deliver(PATIENCE) == []
    assert logger.calls == [("start", None), 1, UNKNOWN_END]
    gate.open()


def test_a_resumed_run_first_delivers_what_is_left(begin: Callable[..., Tracking], folder: Path) -> None:
    """What was logged after the step of the resume is dropped, and so is the end of the first process."""
    gate = Gate()
    first = begin(Diary(None, None, gate))
    for step in (1, 2, 3, 4):
        first.write(record(step))
    assert gate.reached.wait(PATIENCE)
    first.finish(Outcome("failed", "killed"), 0.0)
    logger = Diary()
    second = begin(logger, step=3, tracked_as="of the checkpoint")
    second.write(record(4))
    assert second.finish(FINISHED, PATIENCE) == []
    assert logger.calls == [("start", "id-1"), 2, 3, 4, FINISHED]
    gate.open()


def test_the_identifier_of_the_checkpoint_is_used(begin: Callable[..., Tracking]) -> None:
    """If the spool has none, because it was complete."""
    logger = Diary()
    tracking = begin(logger, step=3, tracked_as="of the checkpoint")
    tracking.await_start()
    assert logger.calls == [("start", "of the checkpoint")]


def test_slow_starts_are_reported(begin: Callable[..., Tracking], reports: list[str]) -> None:
    """The run continues after the limit, and the identifier is known later."""
    gate = Gate()
    tracking = begin(Diary(gate), Diary(gate), Diary(RuntimeError()))
    tracking.await_start(0.05)
    assert "logger-0 and logger-1 have not started within 0.05 s" in reports[-1]
    assert tracking.identifiers == {}
    gate.open()
    assert reached(lambda: tracking.identifiers == {"logger-0": "id-1", "logger-1": "id-1"})


@pytest.mark.matrix
def test_the_end_waits_for_a_bounded_time(begin: Callable[..., Tracking]) -> None:
    """It reports how much is left while it waits, and then returns it; the logger gets no further call."""
    gate, progress = Gate(), list[int]()
    hanging = Diary(None, gate)
    tracking = begin(hanging, Diary())
    for step in (1, 2):
        tracking.write(record(step))
    began = time.monotonic()
    left = tracking.finish(FINISHED, 2.5, progress.append)
    assert 2.4 < time.monotonic() - began < PATIENCE
    assert left == [Left("logger-0", 3, 0, "it did not answer in time")]
    assert set(progress) == {3}
    gate.open()
    assert reached(lambda: len(hanging.calls) == 2)
    time.sleep(0.05)
    assert hanging.calls == [("start", None), 1]


def test_the_end_reports_its_progress(begin: Callable[..., Tracking], monkeypatch: pytest.MonkeyPatch) -> None:
    """While a logger is busy, it says how many items are left, until there are none."""
    monkeypatch.setattr("hexloop.domain.tracking.SOON", 0.01)
    gate, seen = Gate(), list[int]()
    slow = Diary(gate)
    tracking = begin(slow)
    for step in (1, 2):
        tracking.write(record(step))

    def progress(left: int) -> None:
        seen.append(left)
        gate.open()

    assert tracking.finish(FINISHED, PATIENCE, progress) == []
    assert seen[0] == 3, "two records and the end"
    assert seen == sorted(seen, reverse=True)
    assert slow.calls == [("start", None), 1, 2, FINISHED]


def test_without_a_folder_memory_is_used(
    begin: Callable[..., Tracking], reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is left out, counted, and reported once."""
    monkeypatch.setattr(background_logger, "IN_MEMORY", 3)
    gate = Gate()
    logger = Diary(gate)
    tracking = begin(logger, spool=MemorySpool())
    for step in range(1, 6):
        tracking.write(record(step))
    gate.open()
    assert reached(lambda: len(logger.calls) == 4)
    assert tracking.finish(FINISHED, PATIENCE) == [Left("logger-0", 0, 2, "")]
    assert logger.calls == [("start", None), 1, 2, 3, FINISHED]
    [report] = reports
    assert "What logger-0 cannot receive in time is left out" in report


class Full(FileSpool):
    """A spool on a disk that is full."""

    def append(self, number: int, entry: Any) -> bool:
        raise OSError("No space left on device")

    def describe(self, receiver: str, facts: Any) -> None:
        raise OSError("No space left on device")

    def move(self, receiver: str, number: int) -> None:
        raise OSError("No space left on device")


def test_a_full_disk_costs_only_what_does_not_fit_into_memory(
    begin: Callable[..., Tracking], reports: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logger receives each record once."""
    monkeypatch.setattr(background_logger, "IN_MEMORY", 3)
    gate = Gate()
    logger = Diary(gate)
    tracking = begin(logger, spool=Full(folder))
    for step in range(1, 6):
        tracking.write(record(step))
    gate.open()
    assert reached(lambda: len(logger.calls) == 4)
    assert tracking.finish(FINISHED, PATIENCE) == [Left("logger-0", 0, 2, "")]
    assert "cannot be kept for logger-0 (No space left on device)" in reports[0]
    assert reports[1].endswith("is left out: No space left on device.")


def test_the_spool_is_bounded(begin: Callable[..., Tracking], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit, records are left out."""
    monkeypatch.setattr(background_logger, "IN_MEMORY", 3)
    monkeypatch.setattr("hexloop.adapters.spool.SEGMENT", 400)
    gate = Gate()
    logger = Diary(gate)
    tracking = begin(logger)
    with reading_limits(spool_bytes=1000):
        for step in range(1, 101):
            tracking.write(record(step))
    gate.open()
    [left] = tracking.finish(FINISHED, PATIENCE)
    assert left.count == 0
    assert left.left_out == 100 - (len(logger.calls) - 2) > 50
    assert logger.calls[1:-1] == list(range(1, len(logger.calls) - 1))


def taker_of_media(name: str, logger: Diary, *kinds: MediaKind) -> Receiver:
    return Receiver(name, logger, write_media=logger.write_media, media=frozenset(kinds))


def test_media_go_to_the_loggers_that_take_their_kind(begin: Callable[..., Tracking]) -> None:
    """In order with the records, and with the path of the file; a medium that is gone by then is skipped."""
    images, both, neither = Diary(), Diary(), Diary()
    tracking = begin(taker_of_media("images", images, "image"), taker_of_media("both", both, "image", "table"), neither)
    tracking.write_media(medium("digit", 1))
    tracking.write(record(1))
    tracking.write_media(medium("gone", 2))
    tracking.write_media(medium("answers", 2, "table"))
    tracking.write_media(medium("noise", 2, "audio"))
    tracking.write(record(2))
    assert tracking.finish(FINISHED, PATIENCE) == []
    image, table = ("digit", "/run/digit-file"), ("answers", "/run/answers-file")
    assert images.calls == [("start", None), image, 1, 2, FINISHED]
    assert both.calls == [("start", None), image, 1, table, 2, FINISHED]
    assert neither.calls == [("start", None), 1, 2, FINISHED]


@pytest.mark.parametrize("error", [ImportError("no package soundfile"), SystemExit(1), PermissionError("no")])
def test_a_medium_that_a_logger_cannot_write_is_left_out(
    begin: Callable[..., Tracking], reports: list[str], error: BaseException
) -> None:
    """Values and other media continue, and the first of a kind is reported. A network that fails is waited for."""
    diary = Diary(None, None, error, None, error, ConnectionError("gone"))
    tracking = begin(taker_of_media("board", diary, "audio", "image"))
    tracking.write(record(1))
    tracking.write_media(medium("noise", 1, "audio"))
    tracking.write(record(2))
    tracking.write_media(medium("speech", 2, "audio"))
    tracking.write_media(medium("digit", 2))
    tracking.write(record(3))
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert diary.calls == [("start", None), 1, 2, ("digit", "/run/digit-file"), 3, FINISHED]
    assert reports == [
        f"The logger board failed to write the audio 'noise' ({type(error).__name__}: {error}). "
        "Media of this kind that it cannot write are left out; they are in the folder of the run.",
        "The logger board failed to write media (ConnectionError: gone). The run continues, and it is tried again.",
    ]


def test_media_that_a_logger_does_not_take_are_reported_once(
    begin: Callable[..., Tracking], reports: list[str]
) -> None:
    """For each kind, with the loggers that do not take it, and where such media are; not if all take it."""
    tracking = begin(
        taker_of_media("all", Diary(), "text", "image", "table"),
        taker_of_media("images", Diary(), "text", "image"),
        taker_of_media("texts", Diary(), "text"),
    )
    kinds: tuple[MediaKind, ...] = ("text", "image", "table")
    for kind in kinds * 2:
        tracking.write_media(medium("a", 1, kind))
    assert reports == [
        "Media of the kind image are not logged to texts, which does not take them. They are in the folder of the run.",
        "Media of the kind table are not logged to images and texts, which do not take them. "
        "They are in the folder of the run.",
    ]


def model_files(folder: Path, text: str) -> list[tuple[str, str]]:
    path = folder / f"{text}.txt"
    path.write_text(text)
    return [("model.txt", str(path))]


def taker(name: str, logger: Diary, models: Any = "checkpoints") -> Receiver:
    return Receiver(name, logger, save=logger.save, models=models)


def test_a_model_does_not_change_until_it_is_delivered(begin: Callable[..., Tracking], tmp_path: Path) -> None:
    """Loggers that take checkpoints receive it, also if its file is gone by then; afterwards nothing is kept."""
    gate = Gate()
    every, final, none = Diary(gate), Diary(), Diary()
    tracking = begin(taker("every", every), taker("final", final, "final"), none)
    assert (tracking.takes(final=False), tracking.takes(final=True)) == (["every"], ["every", "final"])
    files = model_files(tmp_path, "first")
    tracking.save(SavedModel("", "checkpoint-1", 1, 0.01), files)
    Path(files[0][1]).unlink()
    tracking.save(SavedModel("", "model", 2, 0.02, final=True), model_files(tmp_path, "last"))
    gate.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    last = ("model", {"model.txt": "last"})
    assert final.calls == [("start", None), last, FINISHED]
    assert every.calls == [("start", None), last, FINISHED], "a newer model replaces one that waits"
    assert none.calls == [("start", None), FINISHED]


def test_models_between_the_one_on_its_way_and_the_newest_are_dropped(
    begin: Callable[..., Tracking], tmp_path: Path, folder: Path
) -> None:
    """Each new one makes room, so a logger that hangs does not fill the disk."""
    gate = Gate()
    slow = Diary(None, gate)
    tracking = begin(taker("slow", slow))
    counts = []
    for step in range(1, 6):
        tracking.save(SavedModel("", f"checkpoint-{step}", step, 0.0), model_files(tmp_path, str(step)))
        assert gate.reached.wait(PATIENCE)
        counts.append(len(list((folder / "held").iterdir())))
    assert counts == [1, 2, 2, 2, 2]
    gate.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    models = [(f"checkpoint-{step}", {"model.txt": str(step)}) for step in (1, 5)]
    assert slow.calls == [("start", None), *models, FINISHED]


@pytest.mark.matrix
def test_models_of_a_slow_logger_take_bounded_space(
    begin: Callable[..., Tracking], tmp_path: Path, folder: Path
) -> None:
    """Of many, the one on its way and the newest are kept."""
    gate = Gate()
    slow, quick = Diary(None, gate), Diary()
    tracking = begin(taker("slow", slow), taker("quick", quick))
    for step in range(1, 9):
        tracking.save(SavedModel("", f"checkpoint-{step}", step, 0.0), model_files(tmp_path, str(step)))
        assert gate.reached.wait(PATIENCE)
        assert reached(lambda step=step: len(quick.calls) == step + 1)  # type: ignore[misc]
    assert len(list((folder / "held").iterdir())) == 2
    gate.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    names = [call[0] for call in slow.calls[1:-1]]
    assert names == ["checkpoint-1", "checkpoint-8"]
    assert [call[0] for call in quick.calls[1:-1]] == [f"checkpoint-{step}" for step in range(1, 9)]


def test_a_model_on_its_way_is_kept(begin: Callable[..., Tracking], tmp_path: Path, folder: Path) -> None:
    """Although a newer one comes, and another logger is still at an older one."""
    first, second = Gate(), Gate()
    slow, quick = Diary(None, first), Diary(None, None, second)
    tracking = begin(taker("slow", slow), taker("quick", quick))
    assert tracking.names == ["slow", "quick"]
    tracking.save(SavedModel("", "checkpoint-1", 1, 0.0), model_files(tmp_path, "1"))
    assert first.reached.wait(PATIENCE)
    assert reached(lambda: len(quick.calls) == 2)
    tracking.save(SavedModel("", "checkpoint-2", 2, 0.0), model_files(tmp_path, "2"))
    assert second.reached.wait(PATIENCE)
    tracking.save(SavedModel("", "checkpoint-3", 3, 0.0), model_files(tmp_path, "3"))
    assert len(list((folder / "held").iterdir())) == 3
    first.open()
    second.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert [call[0] for call in quick.calls[1:-1]] == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert [call[0] for call in slow.calls[1:-1]] == ["checkpoint-1", "checkpoint-3"]


def test_no_model_is_kept_for_loggers_that_take_none(begin: Callable[..., Tracking], tmp_path: Path) -> None:
    """Nor if it is for another logger."""
    logger = Diary()
    tracking = begin(Receiver("none", logger))
    tracking.save(SavedModel("", "checkpoint-1", 1, 0.0), model_files(tmp_path, "1"))
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert logger.calls == [("start", None), FINISHED]


def test_a_model_that_is_gone_is_skipped(begin: Callable[..., Tracking], tmp_path: Path, folder: Path) -> None:
    """The rest is delivered."""
    import shutil

    gate = Gate()
    logger = Diary(gate)
    tracking = begin(taker("taker", logger))
    tracking.save(SavedModel("", "checkpoint-1", 1, 0.0), model_files(tmp_path, "1"))
    shutil.rmtree(folder / "held")
    gate.open()
    assert tracking.finish(FINISHED, PATIENCE) == []
    assert logger.calls == [("start", None), FINISHED]


def test_a_damaged_spool_ends_nothing(begin: Callable[..., Tracking], folder: Path) -> None:
    """Lines that are damaged are left out, and the end is reached."""
    gate = Gate()
    first = begin(Diary(None, gate))
    for step in (1, 2, 3):
        first.write(record(step))
    assert gate.reached.wait(PATIENCE)
    [path] = folder.glob("entries-*.jsonl")
    lines = path.read_bytes().splitlines()
    damaged = [b"[]", b'{"number": "x"}', b'{"number": 7, "item": "other"}', b'{"number": 8, "item": "record"}', b"{"]
    path.write_bytes(b"\n".join([lines[1], *damaged]))
    logger = Diary()
    second = begin(logger, step=3)
    assert second.finish(FINISHED, PATIENCE) == []
    assert logger.calls == [("start", "id-1"), 2, FINISHED]
    gate.open()


def test_entries_of_a_later_release_are_skipped(begin: Callable[..., Tracking], folder: Path) -> None:
    """What is not known is left out, in the middle of what is."""
    spool = FileSpool(folder)
    spool.describe("logger-0", {})
    for number, entry in ((1, entry_of(record(1))), (2, {"item": "image"}), (3, entry_of(record(3)))):
        spool.append(number, entry)
    spool.close(remove=False)
    logger = Diary()
    tracking = Tracking(FileSpool(folder), SystemClock(), lambda failures: 0.01, pytest.fail)
    tracking.start(Receiver("logger-0", logger), RUN)
    assert reached(lambda: len(logger.calls) == 3)
    assert logger.calls == [("start", None), 1, 3]
    tracking.deliver(0.0)


def test_a_pause_ends_with_the_run(folder: Path) -> None:
    """A thread that waits to repeat a call ends; it does not make the call."""
    logger = Diary(*[ConnectionError("down")] * 9)
    tracking = Tracking(FileSpool(folder), SystemClock(), lambda failures: 600.0, lambda text: None)
    tracking.start(Receiver("pausing", logger), RUN)
    [left] = tracking.finish(FINISHED, 0.3)
    assert left == Left("pausing", 1, 0, "ConnectionError: down")
    assert reached(lambda: not any("pausing" in thread.name for thread in threading.enumerate()))
    assert len(logger.acts) >= 7


class Vanishing(MemorySpool):
    """A spool whose entries are gone when they are read, or that cannot be read at all."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def append(self, number: int, entry: Any) -> bool:
        return True

    def read(self, after: int, most: int) -> Sequence[tuple[int, Any]]:
        if self.error is not None and after:
            raise self.error
        return ()


@pytest.mark.parametrize("error", [None, RuntimeError("the disk is gone")])
def test_a_spool_that_loses_entries_ends_nothing(
    error: Exception | None, begin: Callable[..., Tracking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logger receives what follows, or is left alone."""
    monkeypatch.setattr(background_logger, "IN_MEMORY", 1)
    gate = Gate()
    logger = Diary(gate)
    tracking = begin(logger, spool=Vanishing(error))
    tracking.write(record(1))
    tracking.write(record(2))
    gate.open()
    assert reached(lambda: logger.calls == [("start", None), 1])
    left = tracking.finish(FINISHED, PATIENCE)
    if error is None:
        assert logger.calls[:2] == [("start", None), 1]
    else:
        assert left[0].problem == "RuntimeError: the disk is gone"


def test_what_an_earlier_logger_lacks_is_kept(begin: Callable[..., Tracking], folder: Path) -> None:
    """Even if this run does not use that logger any more."""
    begin(Receiver("old", Diary(RuntimeError()))).write(record(1))
    second = begin(Receiver("new", Diary()), step=1)
    assert second.finish(FINISHED, PATIENCE) == []
    assert FileSpool(folder).receivers() == ["new", "old"]


def test_what_describes_a_moment_is_not_delivered_later(begin: Callable[..., Tracking], folder: Path) -> None:
    """At the end of its process, what such a logger does not have is lost, and a resumed run starts afresh."""
    gate = Gate()
    first = begin(Receiver("live", Diary(gate), only_live=True))
    first.write(record(1))
    logger = Diary()
    second = begin(Receiver("live", logger, only_live=True), spool=FileSpool(folder), step=1)
    second.write(record(2))
    assert reached(lambda: len(logger.calls) == 2)
    assert logger.calls == [("start", None), 2]
    [left] = first.finish(FINISHED, 0.0)
    assert (left.count, left.left_out) == (0, 2)
    assert not folder.exists()
    gate.open()


class CommError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(), True),
        (OSError("disk"), True),
        (CommError("wandb"), True),
        (ValueError("HTTP 503 from the server"), True),
        (ValueError("5030 values"), False),
        (PermissionError("no"), False),
        (KeyboardInterrupt(), False),
        (TypeError(), False),
    ],
)
def test_errors_that_may_pass(error: BaseException, passes: bool) -> None:
    """Those of networks and servers, but not those of the logger itself, nor of a missing file or right."""
    assert may_pass(error) is passes
