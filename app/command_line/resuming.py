"""Where a run goes on from, and the command that makes it do so."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Collection, Iterator, Sequence

from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.storage import is_missing, joined, storage_for
from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.checkpoints.selection import runs_in

RESUME = ("resume", "resume_from_checkpoint")

AUTO = "auto"
"""Says to go on where there is something to go on from, and to start where there is not."""


LAUNCHED_AS = "HEXLOOP_LAUNCHED_AS"
"""The variable in which the workers of `hexloop launch` find its own words, up to the recipe."""


def command_line(words: Sequence[str]) -> str:
    """What a person types to have `words` done as this process does them."""
    if words[:1] == ["train"] and (launched := os.environ.get(LAUNCHED_AS)):
        return f"{launched} {shlex.join(words[1:])}"
    return shlex.join(["hexloop", *words])


def source_of_resume(options: Namespace, arguments: TrainingArguments) -> str | bool | None:
    """What `--resume` says, else what the argument `resume_from_checkpoint` does."""
    chosen: str | bool | None = options.resume
    return arguments.resume_from_checkpoint if chosen is None else chosen


def nothing_to_resume(source: str | bool | None, arguments: TrainingArguments) -> Iterator[str]:
    """A problem where there is no checkpoint to go on from, or none may be there as a restart would go on from it."""
    folder = str(arguments.output_dir)
    restarts = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    if source in (None, False) and restarts != "0" and checkpoint_steps(storage_for(folder)):
        yield (
            f"--resume: You chose to start anew, with up to {restarts} restarts, but a restart could not tell the "
            f"checkpoints that are in {folder} from the new run's; choose --resume auto to go on from them, or set "
            "another output_dir."
        )
    if source is True and not checkpoint_steps(storage_for(folder)):
        yield (
            f"--resume: You chose to go on from the newest checkpoint, but there is none in {folder}; leave --resume "
            "out to train from the start, or set output_dir."
        )
    elif isinstance(source, str) and source != AUTO and is_missing(source):
        yield f"--resume: You chose to go on from {source!r}, but there is no such folder; name a checkpoint's folder."


def resume_command(words: Sequence[str], arguments: TrainingArguments, step: int, finished: bool) -> str:
    """The command line `words`, made to go on from the checkpoint of `step`, the last of its run.

    The checkpoint is named where another run has some in the same folder. A run that has `finished` gets twice its
    length, as there is nothing left to do of the one that it had.
    """
    folder = str(arguments.output_dir)
    alone = len(runs_in(storage_for(folder))) <= 1
    source = ["--resume", *([] if alone else [joined(folder, checkpoint_name(step))])]
    if not finished:
        return command_line([*without(words, RESUME), *source])
    longer, value = _twice_the_length(arguments)
    return command_line([*without(words, (*RESUME, longer)), *source, f"--{longer}", value])


def _twice_the_length(arguments: TrainingArguments) -> tuple[str, str]:
    if arguments.max_steps > 0:
        return "max_steps", str(2 * arguments.max_steps)
    return "num_train_epochs", f"{2 * arguments.num_train_epochs:g}"


def without(words: Sequence[str], names: Collection[str]) -> list[str]:
    """The words without the options `names`, in whatever spelling, and without the values of these."""
    kept, left = [], list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        if not word.startswith("--") or name.removeprefix("--").replace("-", "_") not in names:
            kept.append(word)
        elif not equals and left and not left[0].startswith("--"):
            left.pop(0)
    return kept
