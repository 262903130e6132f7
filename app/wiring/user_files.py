"""What an overridden `save_model`, `_save` or `_save_checkpoint` writes into a checkpoint."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attrs import define, field

from hexloop.adapters.contents.checkpoint.user_files import UserFiles
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.checkpoints.names import MANIFEST, checkpoint_name, is_set_aside
from hexloop.domain.errors import CheckpointError
from hexloop.domain.ranks import run_on_all_ranks, run_on_rank0
from hexloop.ports.files import File
from hexloop.ports.storage import Storage

TRAINER_STATE = "trainer_state.json"
"""Written after the model, in transformers as well, so that a user's file of this name does not last."""

CHUNK = 1 << 20

Stamp = tuple[int, int, int]
"""The inode, the size and the time of the last change of a file."""


@define
class CheckpointOverride:
    """Watches the folder of a checkpoint while an overridden `_save_checkpoint` runs, on this machine's disks.

    What the method writes there before it calls the method that it overrides becomes part of the checkpoint. What it
    adds later stays beside it. If it changes what the checkpoint contains, the checkpoint would be taken for damaged,
    so that is refused. Remote storages have no folder that the method could write to.
    """

    _storage: Storage
    _folder: Path | None = field(default=None, init=False)
    _before: dict[str, Stamp] = field(factory=dict, init=False)
    _published: dict[str, Stamp] = field(factory=dict, init=False)

    def begin(self, step: int) -> None:
        """Note what the folder of the checkpoint at `step` contains before the method is called."""
        root = self._storage.capabilities.local_folder
        self._folder = None if root is None else Path(root, checkpoint_name(step))
        self._before, self._published = self._stamps(), {}

    def written(self) -> dict[str, Path]:
        """Return what the method has written into the folder so far, by path in it. On rank 0."""
        if self._folder is None or self._published:
            return {}
        stamps = self._stamps()
        return {name: self._folder / name for name, stamp in stamps.items() if self._before.get(name) != stamp}

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        """Within, the checkpoint is published; a folder that it replaced is removed if all of it was taken over."""
        folder = self._folder
        if folder is None:
            yield
            return
        replaces = folder.is_dir() and self._stamps().keys() == self.written().keys()
        before = {entry.name for entry in self._storage.list("")}
        yield
        if not (folder / MANIFEST).is_file():
            return
        self._published = self._stamps()
        for entry in self._storage.list("") if replaces else ():
            if entry.name not in before and is_set_aside(entry.name) and entry.name.endswith(f"-{folder.name}"):
                self._storage.remove(entry.name)

    def refuse_changes(self) -> None:
        """Raise CheckpointError for files of the published checkpoint that the method changed or removed since."""
        if self._folder is None or not self._folder.is_dir():
            return
        present = self._stamps()
        changed = [name for name, stamp in self._published.items() if present.get(name) != stamp]
        if changed:
            raise CheckpointError(
                f"_save_checkpoint changed {', '.join(sorted(changed))} of {self._folder.name} after super() had "
                "published it, so that it can no longer be verified or resumed; write these files in save_model or "
                "_save, whose files become part of the checkpoint, or write them under other names."
            )

    def _stamps(self) -> dict[str, Stamp]:
        found = {} if self._folder is None else _files_below(self._folder)
        return {name: _stamp(path) for name, path in found.items()}


def user_files(parts: TrainerParts, override: CheckpointOverride) -> UserFiles:
    """Let the user's methods write, and return what they wrote. Collective.

    As in transformers `save_model` is called on every rank; if several ranks write the same file, the first one counts.
    """
    collectives = parts.adapters.collectives
    earlier: list[str] = []
    if parts.hooks.save_checkpoint.overridden:
        collectives.barrier("every rank has written what _save_checkpoint writes before the checkpoint")
        earlier = run_on_rank0(collectives, lambda: sorted(override.written()))
    found = override.written() if collectives.rank == 0 and earlier else {}
    if not (parts.hooks.save_model.overridden or parts.hooks.save.overridden):
        return _files(found, frozenset(), frozenset(earlier), lambda: None)
    folder = tempfile.mkdtemp()

    def write() -> list[str]:
        parts.hooks.save_model(folder, _internal_call=True)
        return sorted(_files_below(Path(folder)).keys() - {TRAINER_STATE})

    close = partial(shutil.rmtree, folder, ignore_errors=True)
    try:
        written = run_on_all_ranks(collectives, write)
    except BaseException:
        close()
        raise
    before = {name for names in written[: collectives.rank] for name in names}
    own = {name: Path(folder, name) for name in written[collectives.rank] if name not in before}
    names = frozenset(name for each in written for name in each)
    found = {name: path for name, path in found.items() if name not in names}
    return _files({**own, **found}, names, frozenset(earlier) - names, close)


def _files(
    found: Mapping[str, Path], names: frozenset[str], earlier: frozenset[str], close: Callable[[], None]
) -> UserFiles:
    def open_file(path: str, start: int = 0, /) -> Iterator[memoryview]:
        return _chunks(found[path], start)

    files = [File(name, _chunks(path)) for name, path in found.items()]
    return UserFiles(files, open_file, names, earlier, close)


def _files_below(folder: Path) -> dict[str, Path]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def _chunks(path: Path, start: int = 0) -> Iterator[memoryview]:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield memoryview(chunk)


def _stamp(path: Path) -> Stamp:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
