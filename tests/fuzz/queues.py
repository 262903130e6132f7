"""Targets for the queues in the folder of a run: commands of the board, and what waits for trackers and hubs.

Any user who can write to the folder can add to them.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from attrs import asdict, evolve

from hexloop.adapters.spool import ENTRIES, FACTS, NUMBER, POSITION, FileSpool
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.tiered.storage import Remote, TierAction
from hexloop.app.assembly.outboxes import HUB, PUSH, dropped_in, intents_of, names_in, open_outbox
from hexloop.app.assembly.pushes import Push, subject_of
from hexloop.app.assembly.trackers import LOGS, locked_spool, made_from, waiting_logs
from hexloop.app.control.files import Action, CommandFolder, RefusedCommand, RunCommand
from hexloop.domain.background_logger import items_in
from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.errors import HexloopError
from hexloop.domain.log_entries import Item, entry_of, remains, run_entry, run_of
from hexloop.domain.outbox import Intent, Outbox, is_within
from hexloop.domain.redaction import printable
from hexloop.domain.run_folder import OUTBOX
from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel
from tests.fuzz.targets import Target, changed_json, folder

BETWEEN = b"\n---\n"
"""Between the files of a case for spools."""


def _emptied(name: str) -> Path:
    path = folder() / f"{os.getpid()}-{name}"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def commands(data: bytes) -> None:
    """A file is taken once, as a command for this run or with the reason why it is not one."""
    output = _emptied("commands")
    given = CommandFolder(output, "run")
    file = given.path / Path(given._file(1)).name
    given.path.mkdir(parents=True)
    taking = CommandFolder(output, "run")
    taking.begin()
    file.write_bytes(data)
    taken = list(taking.take())
    assert [each.sequence for each in taken] == [1]
    assert isinstance(taken[0], RunCommand) or (isinstance(taken[0], RefusedCommand) and taken[0].reason)
    if isinstance(taken[0], RunCommand):
        assert json.loads(data) == {**command(), "action": taken[0].action.value}
    assert list(taking.take()) == []
    Path(given._taken).write_bytes(data)
    assert given.last_taken() >= 0
    assert given.give(Action.STOP) > given.last_taken()


def command() -> dict[str, object]:
    """A command that is obeyed."""
    return {"schema": 1, "run": "run", "sequence": 1, "action": "stop"}


def spool(data: bytes) -> None:
    """Entries are items or nothing, and descriptions runs or nothing."""
    state = _emptied("spool")
    place = state / OUTBOX / f"{LOGS}run"
    place.mkdir(parents=True)
    facts, position, entries = [*data.split(BETWEEN, 2), b"", b""][:3]
    (place / f"wandb{FACTS}").write_bytes(facts)
    (place / f"wandb{POSITION}").write_bytes(position)
    (place / f"{ENTRIES}{1:020}.jsonl").write_bytes(entries)
    opened = FileSpool(place)
    assert opened.position("wandb") >= 0
    described = opened.facts("wandb") or {}
    run = run_of(described.get("run"))
    if run is not None:
        assert run_of(json.loads(json.dumps(run_entry(run)))) == run
    if described.get("tracker") not in ("wandb", "tensorboard"):  # whose libraries are imported otherwise
        with suppress(HexloopError):
            made_from(described, lambda facts: False)
    for number, item in items_in(opened, "wandb", opened.position("wandb")):
        assert number > opened.position("wandb")
        json.dumps(entry_of(item))
        if isinstance(item, SavedModel):
            located = opened.location(item.folder)
            assert located is None or Path(located).resolve().is_relative_to(place.resolve())
    for each in waiting_logs(str(state)):
        printable(f"{each.run} {each.logger} {each.count}")
    opened.keep(lambda entry: remains(entry, 10))
    opened.close(remove=False)


def spools() -> list[bytes]:
    """A spool with an item of each kind."""
    run = run_entry(RunInformation("run", {"seed": 1}, "out", 20, 5, tracked_as="id"))
    items: list[Item] = [
        Record(1, 0.5, {"loss": 1.0}),
        SavedModel("models/1", "checkpoint-1", 1, 0.5),
        Outcome("failed", "no"),
    ]
    lines = [json.dumps({NUMBER: number, **entry_of(item)}) for number, item in enumerate(items, 1)]
    return [BETWEEN.join([json.dumps({"run": run}).encode(), b"%020d" % 0, "\n".join(lines).encode() + b"\n"])]


def outbox(data: bytes) -> None:
    """An entry is a push or damaged, and is described either way."""
    state = _emptied("outbox")
    place = state / OUTBOX / HUB
    place.mkdir(parents=True)
    (place / evolve(intent(), details={}).name).write_bytes(data)
    for each in intents_of(str(state), HUB):
        printable(subject_of(each))
        json.dumps(asdict(each))
        try:
            Push.of(each)
        except HexloopError:
            continue


def intent() -> Intent:
    """A push that waits."""
    push = Push("https://huggingface.co", "me/model", "End of training", ["model"])
    return Intent(1, PUSH, "me/model", f"{OUTBOX}/{HUB}/hold-1", details=asdict(push))


def transfer(data: bytes) -> None:
    """An entry between tiers changes nothing in the fast one, and in the slow one only what it names."""
    state = _emptied("transfer")
    for tier in ("fast", "slow"):
        for number in (1, 2):
            checkpoint = state / tier / f"checkpoint-{number}"
            checkpoint.mkdir(parents=True)
            (checkpoint / MANIFEST).write_bytes(b"{}")
            (checkpoint / "weights").write_bytes(tier.encode())
    place = state / "fast" / OUTBOX
    place.mkdir(parents=True)
    (place / move().name).write_bytes(data)
    fast, slow = LocalStorage(state / "fast"), LocalStorage(state / "slow")
    outbox = Outbox(fast, actions=frozenset(TierAction))
    before, sent = _bytes_in(state / "fast"), _bytes_in(state / "slow")
    there = dict(sent)
    for each in outbox.pending():
        with suppress(HexloopError, OSError):
            Remote(fast, slow, outbox).carry_out(each)
        named = [path for path in (each.path, each.target) if path]
        there = {path: kept for path, kept in there.items() if not any(is_within(path, name) for name in named)}
    assert _bytes_in(state / "fast") == before
    after = _bytes_in(state / "slow")
    assert there.items() <= after.items()
    assert data not in [content for path, content in after.items() if path not in sent]
    assert not (state / "slow" / OUTBOX).exists()
    assert sorted(path.name for path in state.iterdir()) == ["fast", "slow"]


def move() -> Intent:
    """A checkpoint that is to be renamed in the slow tier."""
    return Intent(1, TierAction.MOVE, "checkpoint-1", target="checkpoint-3")


def _transfers() -> list[bytes]:
    kinds = [
        move(), Intent(1, TierAction.SEND, "checkpoint-1", "checkpoint-1"),
        Intent(1, TierAction.REMOVE, "checkpoint-2"),
        Intent(1, TierAction.SEND, "checkpoint-4", f"{OUTBOX}/held-1"), Intent(1, TierAction.REMOVE, ""),
        Intent(1, TierAction.MOVE, "checkpoint-1", target=""), Intent(1, TierAction.SEND, "all", ".hexloop"),
    ]  # fmt: skip
    return [json.dumps(asdict(each)).encode() for each in kinds]


def _bytes_in(place: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


PLANTED = ("link", "folder link", "hard link", "pipe", "sparse", "folder", "deep", "many", "text")
"""What is put in a place of a folder."""

PLACES = (
    OUTBOX.partition("/")[0], OUTBOX, f"{OUTBOX}/{HUB}", f"{OUTBOX}/{HUB}.lock", f"{OUTBOX}/pushed",
    f"{OUTBOX}/{HUB}/dropped.jsonl", f"{OUTBOX}/{HUB}/{1:020}-0.json", f"{OUTBOX}/{HUB}/held-{1:020}",
    f"{OUTBOX}/{HUB}/held-{1:020}/weights", f"{OUTBOX}/{LOGS}run", f"{OUTBOX}/{LOGS}run.lock",
    f"{OUTBOX}/{LOGS}run/wandb{FACTS}", f"{OUTBOX}/{LOGS}run/wandb{POSITION}",
    f"{OUTBOX}/{LOGS}run/{ENTRIES}{1:020}.jsonl", f"{OUTBOX}/{LOGS}run/held", f"{OUTBOX}/{LOGS}run/held/model-1/m",
)  # fmt: skip

BOUND_SECONDS, BOUND_BYTES = 2.0, 200 << 20
"""Processor time and memory that a hostile folder may take."""


def hostile_folder(data: bytes) -> None:
    """What is planted anywhere in a run's folder is refused or ignored in bounded time; nothing outside changes."""
    try:
        plan = json.loads(data)
        chosen = [(PLACES[int(place) % len(PLACES)], PLANTED[int(kind) % len(PLANTED)]) for place, kind in plan]
    except (ValueError, TypeError, RecursionError, OverflowError):
        return
    state = _emptied("hostile")
    victim = state / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"1" * 100)
    for place, kind in chosen[:8]:
        with suppress(OSError):
            _plant(state / "run" / place, kind, victim)
    before = _contents(victim)  # what is planted below a link is in there already
    began, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = str(state / "run")
    for use in (_list_outbox, _open_outbox, _use_spool):
        with suppress(HexloopError, OSError):
            use(run)
    used = time.process_time() - began
    assert used < BOUND_SECONDS, f"{used:.1f} s of processor time"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10 < BOUND_BYTES
    assert _contents(victim) == before


def _contents(folder: Path) -> list[tuple[str, int, int]]:
    """Return what a folder holds, with sizes and times."""
    paths = sorted(folder.rglob("*"))
    return [(str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths]


def _plant(path: Path, kind: str, victim: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):  # writing to a pipe would wait for a reader
        return
    if kind == "link":
        path.symlink_to(victim / "file")
    elif kind == "folder link":
        path.symlink_to(victim)
    elif kind == "hard link":
        os.link(victim / "file", path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "many":
        path.mkdir()
        for number in range(2000):
            (path / f"{number:020}-0.json").write_bytes(b"{")
            (path / f"r{number}{FACTS}").touch()
    elif kind == "deep":
        (path / "/".join("a" * 100)).mkdir(parents=True)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b'{"number": 1}\n' * 20_000)


def _list_outbox(run: str) -> None:
    for name in names_in(run):
        intents_of(run, name)
        dropped_in(run, name)
    waiting_logs(run)


def _open_outbox(run: str) -> None:
    held = open_outbox(run, HUB)
    if held is not None:
        held.close()


def _use_spool(run: str) -> None:
    spool_of_run = locked_spool(run, f"{LOGS}run")
    if spool_of_run is None:
        return
    try:
        spool_of_run.keep(lambda entry: remains(entry, 10))
        for name in spool_of_run.receivers():
            spool_of_run.facts(name)
            spool_of_run.move(name, 3)
        spool_of_run.append(5, entry_of(Record(1, 0.5, {"loss": 1.0})))
        spool_of_run.location("model-1/m")
        spool_of_run.release("model-1/m")
    finally:
        spool_of_run.close(remove=True)


def _other_plan(data: bytes, random: Random, _: list[bytes]) -> bytes:
    plan = [[random.randrange(len(PLACES)), random.randrange(len(PLANTED))] for _ in range(random.choice((1, 1, 2, 4)))]
    return json.dumps(plan).encode()


def _plans() -> list[bytes]:
    return [json.dumps([[place, kind]]).encode() for place in range(len(PLACES)) for kind in range(len(PLANTED))]


QUEUES = (
    Target("board_commands", commands, changed_json, first=lambda: [json.dumps(command()).encode()]),
    Target("spool", spool, first=spools),
    Target("outbox", outbox, changed_json, first=lambda: [json.dumps(asdict(intent())).encode()]),
    Target("transfer", transfer, changed_json, first=_transfers),
    Target("hostile_folder", hostile_folder, _other_plan, 200, structured=True, first=_plans),
)
