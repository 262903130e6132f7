"""A machine that loses power at any instant of a save on a local disk, and may lose what was not forced to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hexloop.adapters.storage import local
from hexloop.adapters.storage.local import LocalStorage
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
    """Save at every step, with rotation; the calls, and after how many of them which step was said to be published."""
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
    """A word on each state of the disk that lacks a checkpoint that was published; all states are added to `seen`."""
    for end in range(len(recorder.calls) + 1):
        told = max((step for calls, step in published if calls <= end), default=0)
        for state in after_power_cut(recorder.calls[:end], seed=end):
            if (key := f"{told} {state}") not in seen:
                seen.add(key)
                step = step_found(state, folder)
                if step < told:
                    yield f"after {recorder.calls[end - 1]} step {step} is found, and {told} was published"


def step_found(state: State, folder: Path) -> int:
    """The step at which a reader finds a complete checkpoint on such a disk, with the bytes of that step; 0: none."""
    shutil.rmtree(folder, ignore_errors=True)
    lay_out(state, folder)
    storage = LocalStorage(folder)
    found = newest(storage, "mine")
    if found is None:
        return 0
    step = found.manifest.step
    assert b"".join(storage.read(f"{found.name}/weights/all.bin")) == weights_at("mine", step)
    return step


@pytest.mark.parametrize("limit", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_a_power_cut_at_any_call_loses_nothing_that_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Whatever of the unsynced is lost or torn, a reader finds a complete checkpoint, no older than the last told."""
    recorder, published = record(tmp_path / "root", monkeypatch, limit)
    kinds = {call.kind for call in recorder.calls}
    assert kinds == {"make", "write", "sync", "rename", "unlink"}
    seen: set[str] = set()
    assert list(losses(recorder, published, tmp_path / "after", seen)) == []
    assert len(seen) > 200


def no_sync_of_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_sync_folders", lambda *_: None)


def no_sync_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    true_sync_folders = local._sync_folders
    monkeypatch.setattr(local, "_sync", lambda _: None)
    monkeypatch.setattr(local, "_sync_folders", lambda *folders: syncing(monkeypatch, true_sync_folders, *folders))


def syncing(monkeypatch: pytest.MonkeyPatch, sync_folders: Callable[[str, str], None], folder: str, top: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(local, "_sync", os.fsync)
        sync_folders(folder, top)


@pytest.mark.parametrize("careless", [no_sync_of_folders, no_sync_of_files])
def test_a_storage_that_does_not_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, careless: Callable[[pytest.MonkeyPatch], None]
) -> None:
    """Without the forcing of folders, or of files, something that was published is lost in some state of the disk."""
    careless(monkeypatch)
    recorder, published = record(tmp_path / "root", monkeypatch, limit=2)
    assert next(losses(recorder, published, tmp_path / "after", set()), None) is not None
