"""`hexloop outbox`: what is left of runs that published on a folder's hub."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hexloop.adapters.hub import MESSAGE, FolderHub
from hexloop.adapters.logger import RecordingLogger
from hexloop.adapters.spool import MemorySpool
from hexloop.app.assembly.outboxes import open_outbox, state_folder
from hexloop.app.assembly.publishing import HubPublisher
from hexloop.app.assembly.pushes import Push
from hexloop.app.assembly.trackers import locked_spool, open_spool, receiver_of, tracking_in
from hexloop.app.callbacks.trackers import is_installed
from hexloop.domain.delivery import Backoff
from hexloop.domain.errors import RefusedError, UnavailableError
from hexloop.domain.outbox import Intent
from hexloop.ports.logger import Outcome, Record, RunInformation
from tests.unit.command_line.commands import Commands


class FullHub(FolderHub):
    def publish(self, *_: object, **__: object) -> str:
        raise UnavailableError("the disk is full.")


class ForbiddingHub(FolderHub):
    def create(self, name: str, private: bool | None = None) -> str:
        raise RefusedError("403: this token may not write here.")


def leave(
    kind: type[FolderHub], folder: str = "run", message: str = "step 3", covers: str = "model", data: bytes = b"123"
) -> Intent:
    """Enter a push that a hub does not take, and end without having published it."""
    hub = kind("hub")
    publisher = HubPublisher(hub, folder, backoff=Backoff((0.0,)))
    push = Push(hub.address, "me/model", message, [covers])

    def fill(held: Path) -> None:
        (held / "weights").write_bytes(data)

    intent = publisher.push(push, fill)
    with pytest.raises((UnavailableError, RefusedError)):
        publisher.wait(intent, 0.05)
    publisher.close()
    finish_pushes()  # an attempt notes its failure in the entry
    return intent


def put_weights(held: Path) -> None:
    (held / "weights").write_bytes(b"123")


def finish_pushes() -> None:
    """Wait for the attempts of publishers that were closed."""
    for thread in threading.enumerate():
        if thread.name == "hexloop push":
            thread.join()


def published() -> dict[str, bytes]:
    return {file.path: b"".join(file.chunks) for file in FolderHub("hub").fetch("me/model")}


def versions() -> list[tuple[str, bytes]]:
    """Return the message and the weights of each version in the hub's folder."""
    folders = [path for path in Path("hub/me/model").iterdir() if path.name.isdecimal()]
    ordered = sorted(folders, key=lambda path: int(path.name))
    return [((path / MESSAGE).read_text(), (path / "weights").read_bytes()) for path in ordered]


def test_what_is_left_is_listed_and_finished(commands: Commands) -> None:
    """`list` names each entry with the reason, and `flush` publishes it."""
    Path("run").mkdir()
    assert commands("outbox", "list", "run").output == "Nothing is left in the outbox of run.\n"
    intent = leave(FullHub)
    listed = commands("outbox", "list", "run")
    assert listed.code == 1
    assert f"{intent.number}" in listed.output
    assert "waits, tried" in listed.output
    assert "'step 3' to me/model on file://" in listed.output
    assert "  the disk is full." in listed.output

    assert commands("outbox", "flush", "run", "--hub", "hub").code == 0
    assert published() == {"weights": b"123"}
    assert commands("outbox", "list", "run").code == 0


def test_a_push_that_is_being_made_is_not_made_again(commands: Commands) -> None:
    """A publisher that is closed meanwhile keeps the outbox until the attempt has ended."""
    began, goes_on = threading.Event(), threading.Event()

    class SlowHub(FolderHub):
        def publish(self, *given: Any, **named: Any) -> str:
            began.set()
            goes_on.wait()
            return super().publish(*given, **named)

    hub = SlowHub("hub")
    publisher = HubPublisher(hub, "run")
    publisher.push(Push(hub.address, "me/model", "step 3", ["model"]), put_weights)
    assert began.wait(60)
    publisher.close()
    flushed = commands("outbox", "flush", "run", "--hub", "hub")
    assert "A live process uses the outbox hub" in flushed.errors
    goes_on.set()
    finish_pushes()
    assert commands("outbox", "flush", "run", "--hub", "hub").code == 0
    assert [message for message, _ in versions()] == ["step 3"]


def test_a_push_that_could_not_be_read_is_refused_at_once(commands: Commands) -> None:
    """Nothing is left of it."""
    publisher = HubPublisher(FolderHub("hub"), "run")
    with pytest.raises(TypeError, match="message: 5 is not text"):
        publisher.push(Push("file://hub", "me/model", 5, ["model"]), put_weights)  # type: ignore[arg-type]
    assert not Path("run").exists()


def test_the_outcome_of_a_push_may_be_asked_for_late(commands: Commands) -> None:
    """After the hub has refused it, and after it was retried."""
    hub = ForbiddingHub("hub")
    publisher = HubPublisher(hub, "run")
    intent = publisher.push(Push(hub.address, "me/model", "step 3", ["model"]), put_weights)
    assert [each.refused for each in publisher.finish(60)] == [True]
    assert isinstance(publisher.future(intent).exception(60), RefusedError)

    publisher.open()
    publisher.hub = FolderHub("hub")
    publisher.retry()
    assert publisher.finish(60) == ()
    assert publisher.future(intent).result(60).name == "me/model"
    publisher.close()


def test_what_was_refused_is_retried_on_request(commands: Commands) -> None:
    """`flush` leaves it alone, and `retry` publishes it."""
    leave(ForbiddingHub)
    entries = json.loads(commands("outbox", "list", "run", "--json").output)["entries"]
    assert [(each["refused"], each["problem"]) for each in entries] == [(True, "403: this token may not write here.")]
    flushed = commands("outbox", "flush", "run", "--hub", "hub")
    assert flushed.code == 1
    assert "refused, tried 1 time" in flushed.output
    assert commands("outbox", "retry", "run", "--hub", "hub").code == 0
    assert published() == {"weights": b"123"}


def test_entries_are_dropped_by_their_numbers(commands: Commands) -> None:
    """`drop` removes what it is told to, and says what that was."""
    one = leave(FullHub, message="one")
    assert "name entries" in commands("outbox", "drop", "run").errors
    assert "no entry 5" in commands("outbox", "drop", "run", "5").errors
    assert commands("outbox", "drop", "run", str(one.number)).output.startswith(f"Dropped {one.number}: 'one' to me")
    assert commands("outbox", "list", "run").code == 0
    leave(FullHub, message="two")
    assert commands("outbox", "drop", "run", "--all").output.count("Dropped") == 1
    assert [path.name for path in Path("run/.hexloop/outbox/hub").iterdir()] == []


def test_an_outbox_in_use_is_left_alone(commands: Commands) -> None:
    """It belongs to the process that works on it; another run of the folder gets its own."""
    leave(FullHub, message="one", covers="one")
    held = open_outbox("run")
    assert held is not None
    leave(FullHub, message="two", covers="two")
    assert commands("outbox", "list", "run").output.count("waits") == 2
    flushed = commands("outbox", "flush", "run", "--hub", "hub")
    assert "A live process uses the outbox hub" in flushed.errors
    assert [message for message, _ in versions()] == ["two"]
    held.close()
    assert commands("outbox", "flush", "run", "--hub", "hub").code == 0
    assert [message for message, _ in versions()] == ["two", "one"]


def test_the_newest_push_of_several_runs_wins(commands: Commands) -> None:
    """What two runs left in outboxes of their own is made in the order in which it was saved, without what is old."""
    held = open_outbox("run")
    assert held is not None
    leave(FullHub, message="old", data=b"1")  # in hub-1
    leave(FullHub, message="apart", covers="apart", data=b"2")
    held.close()
    leave(FullHub, message="new", data=b"3")  # adopts what is in hub-1
    assert commands("outbox", "flush", "run", "--hub", "hub").code == 0
    assert versions() == [("apart", b"2"), ("new", b"3")]
    assert [path.name for path in Path("run/.hexloop/outbox").rglob("*.json")] == []
    assert [path.name for path in Path("run/.hexloop/outbox").rglob("weights")] == []


def test_a_hub_that_was_not_named_gets_nothing(commands: Commands) -> None:
    """The entry could be anybody's who can write to the folder; it is refused with the option that allows it."""
    leave(FullHub)
    refused = commands("outbox", "flush", "run")
    assert refused.code == 1
    assert f"retry --hub file://{Path('hub').absolute()}" in refused.output
    assert not list(Path("hub").rglob("weights"))
    assert commands("outbox", "retry", "run", "--hub", "hub").code == 0


@pytest.mark.parametrize("attack", ["source", "link", "folder", "storage"])
def test_an_entry_publishes_nothing_from_elsewhere(commands: Commands, attack: str) -> None:
    """An entry that names files outside of the folder, or has links to them, is refused."""
    intent = leave(FullHub)
    Path("private").mkdir()
    Path("private/weights").write_text("secret")
    kept = Path("run", intent.source)
    entry = next(Path("run/.hexloop/outbox/hub").glob("*.json"))
    document = json.loads(entry.read_text())
    if attack == "source":
        document["source"] = ".hexloop/outbox/hub/../../../../private"
    elif attack == "storage":
        further = {"storage": f"file://{Path('private').absolute()}", "files": {"weights": "weights"}}
        document |= {"source": "", "details": {**document["details"], **further}}
    elif attack == "folder":
        kept.rename("kept")
        kept.symlink_to(Path("private").absolute())
    else:
        (kept / "weights").unlink()
        (kept / "weights").symlink_to(Path("private/weights").absolute())
    entry.write_text(json.dumps(document))

    commands("outbox", "retry", "run", "--hub", "hub")
    assert not list(Path("hub").rglob("weights"))


def test_a_missing_folder_and_damaged_entries_are_reported(commands: Commands) -> None:
    """Neither ends in a traceback."""
    assert commands("outbox", "list", "nowhere").code == 2
    intent = leave(FullHub)
    path = Path("run/.hexloop/outbox/hub") / next(each.name for each in Path("run/.hexloop/outbox/hub").glob("*.json"))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "details": {"hub": 5}}))
    assert "a damaged entry for me/model" in commands("outbox", "list", "run").output
    assert commands("outbox", "flush", "run", "--hub", "hub").code == 1
    assert commands("outbox", "drop", "run", str(intent.number)).code == 0


def test_the_outbox_of_a_url_is_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its place is chosen by two environment variables, and is another one for each URL."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = state_folder("s3://bucket/run a"), state_folder("s3://other/run a")
    assert Path(one).parent == tmp_path / "hexloop"
    assert Path(one).name.startswith("run-a-")
    assert one != other
    monkeypatch.setenv("HEXLOOP_STATE_HOME", str(tmp_path / "mine"))
    assert Path(state_folder("s3://bucket/run a")).parent == tmp_path / "mine"


class Refusing(RecordingLogger):
    """A logger that an installed package offers, and that fails for good."""

    def __init__(self) -> None:
        super().__init__(failure=ValueError("no such project"), in_loop=False)


class Taking(RecordingLogger):
    """The same, once its fault is gone."""

    received: ClassVar[list[object]] = []

    def __init__(self) -> None:
        super().__init__(in_loop=False)
        self.records = self.received  # type: ignore[assignment]


def leave_logs(logger: RecordingLogger, facts: dict[str, object], run: str = "r1") -> None:
    """Log to a logger, and end without its having received everything."""
    tracking = tracking_in(open_spool("run", run))
    tracking.resume(0)
    tracking.start(receiver_of("mine", logger, facts), RunInformation("a run", run=run))
    for step in (1, 2):
        tracking.write(Record(step, 0.0, {"loss": 1.0}))
    assert [left.count for left in tracking.finish(Outcome("stopped", "enough"), 5.0)] == [3]


def test_logs_that_are_left_are_listed_and_delivered(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flush` makes the logger again, which receives the records once."""
    Path("run").mkdir()
    leave_logs(Refusing(), {"plugin": "mine"})
    listed = commands("outbox", "list", "run")
    assert (listed.code, listed.output) == (1, "3 records of a run for mine, in logs-r1\n")
    [entry] = json.loads(commands("outbox", "list", "run", "--json").output)["logs"]
    assert entry == {"spool": "logs-r1", "logger": "mine", "run": "a run", "count": 3}

    monkeypatch.setattr("hexloop.app.assembly.trackers.find_plugin", lambda port, name: Refusing)
    failed = commands("outbox", "flush", "run")
    assert (failed.code, failed.output) == (1, "3 records for mine: ValueError: no such project\n")

    monkeypatch.setattr("hexloop.app.assembly.trackers.find_plugin", lambda port, name: Taking)
    assert commands("outbox", "flush", "run").output == "Nothing is left in the outbox of run.\n"
    assert [getattr(record, "step", None) for record in Taking.received] == [1, 2]
    assert not Path("run", ".hexloop", "outbox").exists()


def test_logs_of_a_program_of_its_own_wait_for_it(commands: Commands) -> None:
    """Only the program can make its logger; `drop --all` removes what is left."""
    Path("run").mkdir()
    leave_logs(Refusing(), {})
    flushed = commands("outbox", "flush", "run")
    assert flushed.code == 1
    assert "3 records for mine: it is known to the program only that logs to it" in flushed.output
    assert commands("outbox", "drop", "run", "--all").output == "Dropped 3 records of a run for mine\n"
    assert commands("outbox", "list", "run").code == 0


def test_damaged_descriptions_and_missing_libraries_are_reported(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost by that."""
    Path("run").mkdir()
    leave_logs(Refusing(), {"tracker": "swanlab", "values": [], "options": {"wrong": 1}})
    assert "3 records for mine: TypeError: " in commands("outbox", "flush", "run").output or not is_installed("swanlab")
    [facts] = Path("run", ".hexloop", "outbox", "logs-r1").glob("*.receiver.json")
    facts.write_text("{}")
    assert "3 records for mine: its description in the outbox is damaged" in commands("outbox", "flush", "run").output


def test_logs_of_a_live_run_are_its_own(commands: Commands) -> None:
    """A flush leaves them alone."""
    Path("run").mkdir()
    leave_logs(Refusing(), {})
    spool = locked_spool("run", "logs-r1")
    assert spool is not None
    for command in (("flush", "run"), ("drop", "run", "--all")):
        refused = commands("outbox", *command)
        assert refused.code == 1
        assert "A live run logs to logs-r1" in refused.output + refused.errors
    spool.close(remove=False)


def test_runs_that_share_a_name_do_not_share_a_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one keeps its logs in memory, and says so; so does one whose folder cannot be written to."""
    monkeypatch.chdir(tmp_path)
    first = open_spool("run", "r1")
    assert isinstance(open_spool("run", "r1"), MemorySpool)
    Path("file").write_text("")
    assert isinstance(open_spool("file", "r1"), MemorySpool)
    assert ["another process uses it" in text for text in caplog.messages] == [True, False]
    first.close(remove=True)
