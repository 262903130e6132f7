"""The checkpoint folders of a Trainer, as transformers' Trainer lists and removes them."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.storage import storage_for
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.selection import runs_in
from hexloop.domain.checkpoints.survey import newest_to_keep, remove, surplus
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved
from hexloop.domain.folders import Folder
from hexloop.domain.wording import shown
from hexloop.ports.storage import Storage


def sorted_checkpoints(folder: str, prefix: str, by_time: bool, best: str | None) -> list[str]:
    """Return the paths of the folders `<prefix>-<step>`, oldest first; the best one comes after all but the newest.

    by_time: by the time of a folder's last change, and at equal times by step.
    """
    found: list[tuple[float, int, str]] = []
    for path in Path(folder).glob(f"{prefix}-*"):
        step = re.fullmatch(rf"{re.escape(prefix)}-(\d+)", path.name)
        if step is not None and path.is_dir():
            found.append((path.stat().st_mtime if by_time else 0.0, int(step[1]), str(path)))
    ordered = [path for _, _, path in sorted(found)]
    kept = None if best is None else str(Path(best))
    if kept in ordered[:-1]:
        ordered.remove(str(kept))
        ordered.insert(len(ordered) - 1, str(kept))
    return ordered


def make_output_folder(args: TrainingArguments, storage: Storage, writes: bool) -> None:
    """Make the output folder, in which scripts write files of their own, in a process that saves.

    writes: whether it is the one that writes for all. No-op for a storage that is not a folder, and for a folder that
    cannot be made; a run reports that when it starts.
    """
    folder = storage.capabilities.local_folder
    if folder is not None and args.should_save and (writes or args.save_on_each_node):
        with suppress(OSError):
            os.makedirs(folder, exist_ok=True)


def rotate(parts: TrainerParts, folder: str | None) -> None:
    """Remove the oldest checkpoints of the last run that exceed `save_total_limit`, but never the best.

    folder: where the checkpoints are; None for the folder of the run. Raises CheckpointError if the newest checkpoint
    is damaged, and ConfigurationError if the folder has checkpoints of several runs and none of them is the Trainer's.
    """
    limit = parts.args.save_total_limit
    if limit is None or limit <= 0 or not parts.args.should_save:
        return
    storage = parts.adapters.storage
    if folder is not None:
        storage = storage_for(folder, signatures=storage.capabilities.signatures)
    state, runs = parts.state.run_state, runs_in(storage)
    if not runs:
        return
    if state.run not in runs and len(runs) > 1:
        raise ConfigurationError(
            f"{folder or parts.args.output_dir} has the checkpoints of several runs, {', '.join(sorted(runs))}, and "
            "none of this Trainer's; run `hexloop checkpoints prune` with --run."
        )
    newest = newest_to_keep(storage, state.run if state.run in runs else next(iter(runs)))
    names = surplus(storage, newest, CheckpointPolicy(limit), state.best_checkpoint)
    for _ in remove(storage, newest, names):
        pass


def changes_in_on_save(parts: TrainerParts) -> Mapping[type[AnyEvent], Callable[[Any], None]]:
    """Return the event handlers that warn, once, of a checkpoint whose files a callback changes in `on_save`.

    It is complete by then, and a changed file does not have the digest of the manifest, so that no run would resume
    from it. Only the status of its files is read, on rank 0, if there is such a callback.
    """
    root = parts.adapters.storage.capabilities.local_folder
    if root is None or not parts.adapters.mesh.writes:
        return {}
    before: dict[str, dict[str, tuple[int, ...]]] = {}
    warned: list[str] = []

    def note(event: Saved) -> None:
        before.clear()
        if parts.callback_handler.overriding("on_save") and not warned:
            before[event.name] = _stamps(Folder(root, event.name))

    def compare(event: CheckpointPublished) -> None:
        earlier = before.pop(event.name, {})
        now = _stamps(Folder(root, event.name)) if earlier else {}
        if changed := sorted(path for path, stamp in earlier.items() if now and now.get(path) != stamp):
            warned.append(event.name)
            warnings.warn(
                f"A callback changed files of {event.name} in on_save, after the checkpoint was complete: "
                f"{shown(changed)}. It no longer matches its manifest, so a run refuses to resume from it, and from "
                "every later one that is changed in this way. Write such files in an overridden save_model or _save, "
                "whose files become part of each checkpoint; on_save may add files, or write to another folder.",
                stacklevel=2,
            )

    return {Saved: note, CheckpointPublished: compare}


def _stamps(folder: Folder) -> dict[str, tuple[int, ...]]:
    """Return what changes with a file, by its path in the folder; nothing if the folder cannot be read."""
    try:
        return {path: (each.st_size, each.st_mtime_ns, each.st_ino) for path, each in folder.files()}
    except OSError:
        return {}
