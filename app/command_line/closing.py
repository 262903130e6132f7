"""What `hexloop train` says at the end: what came of the run, where it is, and how to go on."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hexloop.app.command_line.driving import Progress
from hexloop.app.command_line.resuming import AUTO, command_line, resume_command, source_of_resume
from hexloop.app.run.resume import FINISHED
from hexloop.app.wiring.adapters import JOURNAL
from hexloop.app.wiring.storage import as_location, is_elsewhere, scheme_of
from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps, read_manifest
from hexloop.domain.errors import CheckpointError, StorageError

FOR_PROGRAMS = (JOURNAL, FINISHED)
"""Files in the output folder that there is nothing to look at in."""

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def summary(trainer: Trainer, progress: Progress) -> str:
    """How the run ended, and its best metric where there is one."""
    state = trainer.state
    how = "Done"
    if progress.stopped:
        how = f"Stopped by {progress.reason}" if progress.reason else "Stopped on request"
    elif progress.step < state.max_steps:
        how = "Done early,"
    text = f"{how} after {progress.step:,} of {state.max_steps:,} steps"
    if state.best_metric is not None:
        name = str(trainer.args.metric_for_best_model).removeprefix("eval_")
        text += f"; the best eval_{name} was {state.best_metric:.4g}, at step {state.best_global_step:,}"
    if (progress.stopped and not progress.saved_last_step) or _save_failed(trainer):
        text += "; what came after the last checkpoint is not saved"
    return f"{text}."


def where_to_go_on(trainer: Trainer, options: Namespace, progress: Progress, look_at: Sequence[str] = ()) -> str:
    """One line: where the checkpoints are, the exact command that goes on from the last one, and what to look at."""
    args = trainer.args
    finished = progress.ended is not None and progress.step >= trainer.state.max_steps and not _save_failed(trainer)
    if source_of_resume(options, args) == AUTO and not finished:
        command = command_line(options.words)
    elif (step := _last_saved(trainer, progress)) is not None:
        command = resume_command(options.words, args, step, finished)
    elif source_of_resume(options, args):
        command = command_line(options.words)
    else:
        command = ""
    parts = [f"Checkpoints are in {args.output_dir}" if command else "No checkpoint was written"]
    if look_at:
        parts.append(f"look at {', '.join(look_at)}")
    if command:
        parts.append(f"{'train longer' if finished else 'go on'} with: {command}")
    return "; ".join(parts)


def _save_failed(trainer: Trainer) -> bool:
    return trainer.outcome is not None and trainer.outcome.save_failed


def _last_saved(trainer: Trainer, progress: Progress) -> int | None:
    """The step of the run's last checkpoint.

    A run that ended in an error may not have told of it any more, nor does one that had nothing left to do.
    """
    if progress.ended is not None and progress.published is not None:
        return progress.published[0]
    storage = trainer.adapters.storage
    try:
        found = (read_manifest(storage, name) for name in map(checkpoint_name, checkpoint_steps(storage)))
        return next((manifest.step for manifest in found if manifest.run == progress.run), None)
    except (CheckpointError, StorageError):
        return progress.published[0] if progress.published is not None else None


def results(folder: str, since: float) -> list[str]:
    """What a person can look at of what a run wrote to its folder after the time `since`, in seconds of the epoch.

    Nothing where that is no folder of this machine.
    """
    if is_elsewhere(folder):
        return []
    folder = as_location(folder) if scheme_of(folder) else folder
    found = [
        str(path)
        for path in sorted(Path(folder).glob("*"))
        if path.is_file() and path.name not in FOR_PROGRAMS and not path.name.startswith(".")
        if path.stat().st_mtime >= since - 1
    ]
    events = [path for path in Path(folder).rglob("events.out.tfevents.*") if path.stat().st_mtime >= since - 1]
    return found + [f"`tensorboard --logdir {shlex.quote(folder)}`"] * bool(events)
