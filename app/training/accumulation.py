"""Going on in another number of processes with as many samples in an optimizer step as before."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from attrs import asdict, frozen

from hexloop.adapters.contents.checkpoint.contents import RUN_SETUP
from hexloop.app.training.loaders import global_batch_size, splits
from hexloop.app.training.peeking import likely_checkpoint
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.ranks import run_on_rank0
from hexloop.ports.collectives import Json


@frozen
class SavedStep:
    """An optimizer step of a checkpoint's run.

    samples: of all processes. accumulation: micro-batches of a process. asked: those that its arguments said, which are
    others where that run, too, had gone on in another number of processes.
    """

    samples: int
    processes: int
    accumulation: int
    asked: int

    def is_spread_anew(self, processes: int, asked: int) -> bool:
        """Whether the arguments are the same, and only the processes are not what they were made for."""
        return asked == self.asked and (processes != self.processes or self.accumulation != self.asked)


@contextmanager
def same_global_batch(parts: TrainerParts, resume_from: str | bool | None) -> Iterator[int]:
    """Adjust `gradient_accumulation_steps` for the run, so that its optimizer steps are as large as its checkpoint's.

    This happens if the number of processes changed and the argument did not; `RunSetup.differences` handles a batch
    size that was changed on purpose. Collective. Yields the value that the user passed. Raises ConfigurationError, with
    the sizes that would work, if no number of accumulation steps does.
    """
    args = parts.args
    asked = args.gradient_accumulation_steps
    saved = _saved_step(parts, resume_from)
    batch = global_batch_size(args, parts.train_batch_size)
    on_purpose = "batch_size" in args.resume_despite or args.auto_find_batch_size
    if saved is not None and saved.is_spread_anew(args.world_size, asked) and not on_purpose:
        if saved.samples % batch:
            raise ConfigurationError([_what_divides(parts, saved)])
        args.gradient_accumulation_steps = saved.samples // batch
    if args.gradient_accumulation_steps != asked and args.should_log:
        logging.getLogger("hexloop").warning(
            "The checkpoint is of a run with optimizer steps of %d samples; with world_size=%d, "
            "gradient_accumulation_steps=%d instead of %d keeps to that.",
            batch * args.gradient_accumulation_steps,
            args.world_size,
            args.gradient_accumulation_steps,
            asked,
        )
    try:
        yield asked
    finally:
        args.gradient_accumulation_steps = asked


def _saved_step(parts: TrainerParts, resume_from: str | bool | None) -> SavedStep | None:
    """As the first process finds it, for all; None where there is no checkpoint, or it does not say."""

    def found() -> Json:
        if not resume_from:
            return None
        with suppress(CheckpointError, OSError, ValueError, LookupError, TypeError, ArithmeticError):
            storage, name = likely_checkpoint(parts.adapters.storage, resume_from)
            if name is not None:
                processes = read_manifest(storage, name).world_size
                setup = json.loads(b"".join(storage.read(f"{name}/{RUN_SETUP}")))
                samples, accumulation = setup["global_batch_size"], setup["global_batch_size"] // setup["batch_size"]
                return cast(Json, asdict(SavedStep(samples, processes, accumulation, setup["asked_accumulation"])))
        return None

    said = cast("dict[str, int] | None", run_on_rank0(parts.adapters.collectives, found))
    return None if said is None else SavedStep(**said)


def _what_divides(parts: TrainerParts, saved: SavedStep) -> str:
    """That a step cannot be had from batches of this size, and from which it can."""
    args, size = parts.args, parts.train_batch_size
    devices = size // args.per_device_train_batch_size
    if splits(args):
        processes, sizes = [], [args.world_size * each for each in _divisors(saved.samples, args.world_size)]
    else:
        processes, sizes = _divisors(saved.samples, size), _divisors(saved.samples, args.world_size * devices)
    ways = [f"start {_listed(processes)} processes"] if processes else []
    ways += [f"choose per_device_train_batch_size={_listed(sizes)}"] if sizes else []
    ways.append("accept steps of another size by resume_despite=['batch_size']")
    return (
        f"The checkpoint is of a run with optimizer steps of {saved.samples} samples, but with "
        f"world_size={args.world_size} and per_device_train_batch_size={args.per_device_train_batch_size} there are "
        f"{global_batch_size(args, size)} samples in a batch, which do not divide them; {', or '.join(ways)}."
    )


def _divisors(samples: int, unit: int) -> list[int]:
    """All numbers of which each, times `unit`, divides the samples."""
    return [number for number in range(1, samples // unit + 1) if samples % (number * unit) == 0]


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
