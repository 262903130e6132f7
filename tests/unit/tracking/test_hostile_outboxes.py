"""What others have put into the outbox of a run: nothing of it chooses a place, and links are not followed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.hub import FolderHub
from hexloop.adapters.logger.dvclive import _new_live
from hexloop.adapters.spool import FACTS, POSITION, FileSpool
from hexloop.app.assembly.outboxes import (
    destinations_of,
    dropped_in,
    names_in,
    note_logger,
    note_push,
    open_outbox,
    take_lock,
)
from hexloop.app.assembly.pushes import Push
from hexloop.app.assembly.trackers import _start_logger, made_from, tracking_in, waiting_logs
from hexloop.app.run.publishing import objection_to
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.domain.limits import reading_limits
from hexloop.domain.log_entries import entry_of, item_of, run_entry, run_of
from hexloop.domain.regular_files import NotRegularError
from hexloop.domain.run_folder import OUTBOX
from hexloop.ports.logger import Record, RunInformation, SavedModel


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own state folder."""
    monkeypatch.setenv("HEXLOOP_STATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_position_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Neither a link nor another name of a file, and no temporary name can be foreseen."""
    victim, place = tmp_path / "victim", tmp_path / "logs"
    victim.write_bytes(b"1" * 50)
    place.mkdir()
    (place / f"soft{POSITION}").symlink_to(victim)
    os.link(victim, place / f"hard{POSITION}")
    (place / f"soft{FACTS}").symlink_to(victim)
    spool = FileSpool(place)
    for name in ("soft", "hard"):
        assert spool.position(name) == 0 or name == "hard"
        spool.move(name, 7)
        spool.describe(name, {"fact": 1})
    spool.close(remove=False)
    assert victim.read_bytes() == b"1" * 50
    assert FileSpool(place).position("soft") == 7


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_outbox_behind_a_link_is_not_used(depth: int, tmp_path: Path) -> None:
    """Whichever folder on the way is one; the message names it."""
    names = [*OUTBOX.split("/"), "logs-run"][:depth]
    (tmp_path / "victim").mkdir()
    link = tmp_path.joinpath("run", *names)
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "victim")
    run = str(tmp_path / "run")
    if depth < 3:
        with pytest.raises(StorageError, match="it is a link"):
            names_in(run)
        for use in (lambda: take_lock(run, "hub"), lambda: open_outbox(run, "hub")):
            with pytest.raises(NotRegularError, match="it is a link") as raised:
                use()
            assert raised.value.filename == str(link)
    assert waiting_logs(run) == []
    assert os.listdir(tmp_path / "victim") == []


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    """What the link leads to would be created or emptied."""
    (tmp_path / OUTBOX).mkdir(parents=True)
    (tmp_path / OUTBOX / "hub.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(NotRegularError, match="it is a link"):
        take_lock(str(tmp_path), "hub")
    assert not (tmp_path / "victim").exists()


def test_a_model_with_links_is_not_handed_out(tmp_path: Path) -> None:
    """A tracker's library would follow them and upload what they lead to."""
    spool = FileSpool(tmp_path / "logs")
    kept = spool.hold("checkpoint-1", [])
    place = tmp_path / "logs" / "held" / kept
    assert FileSpool(tmp_path / "logs").location(kept) == str(place)
    (place / "weights").symlink_to("/etc/passwd")
    assert FileSpool(tmp_path / "logs").location(kept) is None
    (place / "weights").unlink()
    os.chmod(place, 0o777)
    assert FileSpool(tmp_path / "logs").location(kept) is None


def test_large_files_and_many_names_are_left_out(tmp_path: Path) -> None:
    """Sparse files are not read, and work is bounded before it is done."""
    place = tmp_path / "logs"
    place.mkdir()
    for number in (1, 2):
        path = place / f"entries-{number:020}.jsonl"
        path.touch()
        os.truncate(path, 1 << 40)
    os.truncate(os.open(place / f"a{FACTS}", os.O_CREAT | os.O_WRONLY), 1 << 40)
    for number in range(100):
        (place / f"b{number:03}{FACTS}").touch()
    spool = FileSpool(place)
    assert spool.read(0, 10) == []
    assert spool.facts("a") is None
    assert len(spool.receivers()) == 50
    with reading_limits(entry_bytes=20):
        assert not spool.append(3, {"text": "long" * 10})


def test_numbers_ascend(tmp_path: Path) -> None:
    """Those that do not, or leave no room for further ones, are skipped."""
    place = tmp_path / "logs"
    place.mkdir()
    numbers: list[Any] = [1, 5, 3, 10**30, True, "6", -2, 7]
    (place / f"entries-{1:020}.jsonl").write_text("".join(json.dumps({"number": each}) + "\n" for each in numbers))
    assert [number for number, _ in FileSpool(place).read(0, 100)] == [1, 5, 7]


def test_a_tracker_is_made_with_the_options_of_own_runs_only(tmp_path: Path, home: Path) -> None:
    """A run notes them in the user's own folder; others are used if the user names the tracker."""
    facts = {"tracker": "tensorboard", "values": [], "options": {"folder": str(tmp_path / "elsewhere")}}
    noted = destinations_of(str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"made with folder='.*--tracker tensorboard"):
        made_from(facts, noted.may_log)
    note_logger(str(tmp_path), facts)
    assert destinations_of(str(tmp_path)).may_log(facts)
    assert not destinations_of(str(tmp_path)).may_log({**facts, "options": {"folder": "other"}})
    assert not destinations_of(str(tmp_path / "other")).may_log(facts)
    [notes] = (home / "destinations").iterdir()
    os.chmod(notes, 0o666)
    assert not destinations_of(str(tmp_path)).may_log(facts)


def test_the_folder_of_a_run_is_not_taken_from_its_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger writes to it, or uploads it."""
    started = list[RunInformation]()
    spool = FileSpool(tmp_path / "logs")
    spool.describe("a", {"plugin": "a", "run": run_entry(RunInformation("run", folder="/home/user/.ssh"))})
    monkeypatch.setattr("hexloop.app.assembly.trackers.made_from", lambda facts, may_choose: object())
    tracking = tracking_in(spool)
    monkeypatch.setattr(tracking, "start", lambda receiver, run: started.append(run))
    assert _start_logger(tracking, spool, "a", str(tmp_path / "run"), lambda facts: False) == ""
    assert [run.folder for run in started] == [str(tmp_path / "run")]


def test_an_identifier_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a checkpoint or an outbox says does not choose the folder of dvclive."""
    pytest.importorskip("dvclive")
    (tmp_path / "victim").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="Start it in the folder above that"):
        _new_live(RunInformation("run", tracked_as=str(tmp_path / "victim")), {})


@pytest.mark.parametrize(
    "change",
    [{"values": {"loss": [1]}}, {"values": {"text": "x" * 20_000}}, {"values": {"n": 1 << 2000}}, {"step": -1},
     {"step": 1 << 60}, {"epoch": -1.0}, {"epoch": float("nan")}],
)  # fmt: skip
def test_only_what_a_run_writes_is_a_record(change: dict[str, Any]) -> None:
    """Anything else is left out."""
    entry = {**entry_of(Record(1, 0.5, {"loss": 1.0}))}
    assert item_of(entry) is not None
    assert item_of({**entry, **change}) is None


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 300, 5])
def test_the_name_of_a_model_is_one_of_a_folder(name: Any) -> None:
    """Loggers make paths of it."""
    entry = {**entry_of(SavedModel("model-1/checkpoint-1", "checkpoint-1", 1, 0.5))}
    assert item_of(entry) is not None
    assert item_of({**entry, "name": name}) is None
    assert run_of({"name": "run", "tracked_as": "a\nb"}) is None
    assert run_of({"name": "run", "total_steps": "many"}) is None


@pytest.mark.parametrize(
    ("left", "made"),
    [("me/model", True), ("model", True), ("other/model", False), ("me/other", False), ("model/model", False)],
)
def test_a_push_is_made_for_the_own_repository_only(left: str, made: bool) -> None:
    """By its whole name, as it was chosen or as the hub knows it."""
    push = Push("https://hub", left, "message", ["model"])
    for names in ({"me/model", "model"}, {"model"}):
        assert (objection_to(push, "https://hub", names, lambda name: "me/model") == "") == made
    assert "publishes to me/model on https://other" in objection_to(push, "https://other", {"me/model"}, str)


def test_destinations_are_those_of_the_folder(tmp_path: Path) -> None:
    """A repository that a run published to from another folder is none."""
    hub = FolderHub(tmp_path / "hub")
    note_push(str(tmp_path), hub.address, "me/model")
    note_push(str(tmp_path), hub.address, "me/model")
    assert destinations_of(str(tmp_path)).pushes == {(hub.address, "me/model")}
    assert destinations_of(str(tmp_path / "x")).pushes == frozenset()
    assert dropped_in(str(tmp_path), "hub") == []
