"""Power loss at any point of a save to a local disk, where unsynced data may be lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hexloop.adapters.storage.local import LocalStorage, syncing
from hexloop.domain.checkpoints.selection import newest
from hexloop.domain.events import CheckpointPublished
from hexloop.domain.state import RunState
from tests.engines.system_calls import Recorder, State, after_power_cut, lay_out
from tests.unit.checkpoints.small_store import make_store, save_at, weights_at

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells the path of a descriptor"),
    pytest.mark.filterwarnings("ignore:A checkpoint is skipped"),
]

STEPS = (1, 2, 3, 4)


def record(root: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> tuple[Recorder, list[tuple[int, int]]]:
    """Save at every step, with rotation. Return the calls, and the step last reported as published after each call."""
    root.mkdir()
    recorder = Recorder(root)
    published: list[tuple[int, int]] = []
    store, state = make_store(LocalStorage(root), limit), RunState(run="mine")
    with monkeypatch.context() as patch:
        recorder.install(patch)
        for step in STEPS:
            events = save_at(store, state, step)
            assert any(isinstance(event, CheckpointPublished) for event in events)
            published.append((len(recorder.calls), step))
    return recorder, published


def losses(recorder: Recorder, published: list[tuple[int, int]], folder: Path, seen: set[str]) -> Iterator[str]:
    """Return a description of each disk state that lacks a published checkpoint; add every state to `seen`."""
    for end in range(len(recorder.calls) + 1):
        reported = max((step for calls, step in published if calls <= end), default=0)
        for state in after_power_cut(recorder.calls[:end], seed=end):
            if (key := f"{reported} {state}") not in seen:
                seen.add(key)
                step = step_found(state, folder)
                if step < reported:
                    yield f"after {recorder.calls[end - 1]} step {step} is found, and {reported} was published"


def step_found(state: State, folder: Path) -> int:
    """Return the step of the complete checkpoint that a reader finds on such a disk, or 0."""
    shutil.rmtree(folder, ignore_errors=True)
    lay_out(state, folder)
    storage = LocalStorage(folder)
    found = newest(storage, "mine")
    if found is None:
        return 0
    step = found.manifest.step
    assert b"".join(storage.read(f"{found.name}/weights/all.bin")) == weights_at("mine", step)
    return step


def sync_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the whole file system cannot be synced at once, or too much is not written."""
    monkeypatch.setattr(syncing, "MOST_UNWRITTEN", -1)


def sync_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux, however much other programs have not written."""
    monkeypatch.setattr(syncing, "MOST_UNWRITTEN", float("inf"))


@pytest.mark.parametrize("limit", [1, pytest.param(2, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("way", [sync_each_file, sync_file_system])
def test_power_loss_at_any_call_keeps_published_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, way: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Whatever unsynced data are lost, a reader finds a complete checkpoint, as new as the last published or newer."""
    way(monkeypatch)
    recorder, published = record(tmp_path / "root", monkeypatch, limit)
    kinds = {call.kind for call in recorder.calls}
    assert kinds == {"make", "write", "sync", "rename", "unlink"}
    seen: set[str] = set()
    assert list(losses(recorder, published, tmp_path / "after", seen)) == []
    assert len(seen) > 200


def no_sync_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_path = syncing._sync_path
    monkeypatch.setattr(syncing, "_sync_path", lambda path: None if os.path.isdir(path) else sync_path(path))


def no_sync_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sync_path = syncing._sync_path
    monkeypatch.setattr(syncing, "_sync_path", lambda path: sync_path(path) if os.path.isdir(path) else None)


def no_sync_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "sync", lambda *_: None)


@pytest.mark.parametrize("careless", [no_sync_of_folders, no_sync_of_files, no_sync_of_batches])
def test_a_storage_without_sync_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careless: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Without syncing folders, files, or batches at all, some disk state loses a published checkpoint."""
    sync_each_file(monkeypatch)
    careless(monkeypatch)
    recorder, published = record(tmp_path / "root", monkeypatch, limit=2)
    assert next(losses(recorder, published, tmp_path / "after", set()), None) is not None
