"""The user's methods of saving and loading a checkpoint, and the files that they write into one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from attrs import define, field

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.state import UserFiles
from hexloop.app.assembly.storage import chunks_of, files_below
from hexloop.domain.checkpoints.manifest import MANIFEST, checkpoint_name, folders_of, is_set_aside
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError
from hexloop.domain.events import AnyEvent, Saved, SaveFailed, SaveSkipped
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.domain.run import Checkpoints
from hexloop.domain.run_folder import TRAINER_STATE
from hexloop.domain.state import RunState
from hexloop.ports.storage import File, Storage

Stamp = tuple[int, int, int]
"""The inode, the size and the time of the last change of a file."""


@define
class WatchedFolder:
    """Watches the folder of a checkpoint while an overridden `_save_checkpoint` runs, on this machine's disks.

    What the method writes there before it calls the method that it overrides becomes part of the checkpoint. What it
    adds later stays beside it. If it changes what the checkpoint contains, the checkpoint would be taken for damaged,
    so that is refused. Remote storages have no folder that the method could write to.
    """

    _storage: Storage
    _folder: Path | None = field(default=None, init=False)
    _before: dict[str, Stamp] = field(factory=dict, init=False)
    _taken: dict[str, Stamp] = field(factory=dict, init=False)
    _published: dict[str, Stamp] = field(factory=dict, init=False)

    def begin(self, step: int) -> None:
        """Note what the folder of the checkpoint at `step` contains before the method is called."""
        root = self._storage.capabilities.local_folder
        self._folder = None if root is None else Path(root, checkpoint_name(step))
        self._before, self._taken, self._published = _stamps(self._folder), {}, {}

    def written(self) -> dict[str, Path]:
        """Return what the method has written into the folder so far, by path in it. On rank 0."""
        folder = self._folder
        if folder is None or self._published:
            return {}
        stamps = _stamps(folder)
        self._taken = {name: stamp for name, stamp in stamps.items() if self._before.get(name) != stamp}
        return {name: folder / name for name in self._taken}

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        """Within, the checkpoint is published; a folder that it replaced is removed if all in it was taken over.

        Other processes may write to either folder meanwhile; what is not part of the checkpoint is left alone.
        """
        folder = self._folder
        if folder is None:
            yield
            return
        before = folders_of(self._storage)
        yield
        if not (folder / MANIFEST).is_file():
            return
        contained = {MANIFEST, *read_manifest(self._storage, folder.name).files}
        self._published = {name: stamp for name, stamp in _stamps(folder).items() if name in contained}
        for name in folders_of(self._storage):
            replaced = name not in before and is_set_aside(name) and name.endswith(f"-{folder.name}")
            if replaced and _stamps(folder.parent / name).items() <= self._taken.items():
                self._storage.remove(name)

    def refuse_changes(self) -> None:
        """Raise CheckpointError for files of the published checkpoint that the method changed or removed since."""
        if self._folder is None or not self._folder.is_dir():
            return
        present = _stamps(self._folder)
        changed = [name for name, stamp in self._published.items() if present.get(name) != stamp]
        if changed:
            raise CheckpointError(
                f"_save_checkpoint changed {', '.join(sorted(changed))} of {self._folder.name} after super() had "
                "published it, so that it can no longer be verified or resumed; write these files in save_model or "
                "_save, whose files become part of the checkpoint, or write them under other names."
            )


def _stamps(folder: Path | None) -> dict[str, Stamp]:
    found: dict[str, Stamp] = {}
    for name, path in ({} if folder is None else files_below(folder)).items():
        with suppress(FileNotFoundError):  # another process removed or renamed it
            stat = path.stat()
            found[name] = stat.st_ino, stat.st_size, stat.st_mtime_ns
    return found


class RunsOwn(Checkpoints, Protocol):
    """The checkpoints of a run, as `hexloop.app.run.checkpoints.RunCheckpoints` implements them.

    folder: the folder of the next checkpoint. take_within: takes a checkpoint within the user's `_save_checkpoint`.
    """

    folder: WatchedFolder
    take_within: Callable[[RunState], list[AnyEvent]] | None


def with_overridden_saves(parts: TrainerParts, standard: RunsOwn) -> Checkpoints:
    """Return the checkpoints that the loop calls: `standard`, unless the user saves or loads the best weights."""
    loads = parts.hooks.load_best_model.overridden and parts.args.load_best_model_at_end
    return SavesByOverride(parts, standard) if loads or parts.hooks.save_checkpoint.overridden else standard


@define
class SavesByOverride:
    """Calls the user's `_save_checkpoint` and `_load_best_model`, and else the run's own checkpoints."""

    _parts: TrainerParts
    _standard: RunsOwn

    @property
    def has_news(self) -> bool:
        """Whether `collect` has events to yield."""
        return self._standard.has_news

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Take a checkpoint. The events of saves within the user's method are yielded after it has returned."""
        if not self._parts.hooks.save_checkpoint.overridden:
            yield from self._standard.save(state, required)
            return
        collectives, folder, events = self._parts.adapters.collectives, self._standard.folder, list[AnyEvent]()

        def take(state: RunState) -> list[AnyEvent]:
            with folder.taken_over() if self._parts.adapters.mesh.writes else nullcontext():
                events.extend(self._standard.save(state, required))
            return []

        folder.begin(state.step)
        collectives.barrier("every rank has looked at the checkpoint's folder")
        self._standard.take_within = take
        try:
            with self._parts.averages.shown():
                self._parts.hooks.save_checkpoint(self._parts.model_wrapped, self._parts.trial)
        finally:
            self._standard.take_within = None
        run_on_rank0(collectives, folder.refuse_changes)
        if not any(isinstance(event, Saved | SaveFailed | SaveSkipped) for event in events):
            yield Saved(state.step, checkpoint_name(state.step))
        yield from events

    def collect(self) -> Iterator[AnyEvent]:
        """Yield what happened to the save in flight."""
        return self._standard.collect()

    def load_best(self, state: RunState) -> None:
        """Load the weights of the best checkpoint."""
        self._parts.averages.settle()
        load = self._parts.hooks.load_best_model.override
        if load is not None and self._parts.args.load_best_model_at_end and state.best_checkpoint is not None:
            load()
        else:
            self._standard.load_best(state)

    def finish(self) -> Iterator[AnyEvent]:
        """Wait until every save is durable."""
        return self._standard.finish()

    def close(self) -> Sequence[AnyEvent]:
        """Finish the save in flight, or discard it."""
        return self._standard.close()


def user_files(parts: TrainerParts, watched: WatchedFolder) -> UserFiles:
    """Let the user's methods write, and return what they wrote. Collective.

    As in transformers `save_model` is called on every rank; if several ranks write the same file, the first one counts.
    """
    collectives = parts.adapters.collectives
    earlier: list[str] = []
    if parts.hooks.save_checkpoint.override is not None:
        collectives.barrier("every rank has written what _save_checkpoint writes before the checkpoint")
        earlier = run_on_rank0(collectives, lambda: sorted(watched.written()))
    found = watched.written() if parts.adapters.mesh.writes and earlier else {}
    names: frozenset[str] = frozenset()
    close = UserFiles().close
    writes_weights, writes_state = parts.hooks.writes_weights, parts.hooks.writes_state
    if writes_weights or writes_state:
        folder = tempfile.mkdtemp()
        close = partial(shutil.rmtree, folder, ignore_errors=True)

        def write() -> list[str]:
            if writes_weights:
                parts.hooks.save_model(folder, _internal_call=True)
            for hook in writes_state:
                hook(folder)
            return sorted(files_below(Path(folder)).keys() - {TRAINER_STATE})

        try:
            with parts.averages.shown():
                written = run_on_all_ranks(collectives, write)
        except BaseException:
            close()
            raise
        before = {name for each in written[: collectives.rank] for name in each}
        own = {name: Path(folder, name) for name in written[collectives.rank] if name not in before}
        names = frozenset(name for each in written for name in each)
        found = own | {name: path for name, path in found.items() if name not in names}

    def open_file(path: str, start: int = 0, /) -> Iterator[memoryview]:
        return chunks_of(found[path], start)

    files = [File(name, chunks_of(path)) for name, path in found.items()]
    return UserFiles(files, open_file, names, frozenset(earlier) - names, close)
