"""Optimizer steps of the same size on another number of processes, for a run that resumes from a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from typing import cast

from attrs import asdict, frozen

from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.sharing import global_batch_size, splits
from hexloop.app.assembly.storage import read_setup
from hexloop.app.run.checkpoint_compatibility import likely_checkpoint
from hexloop.domain.checkpoints.reading import read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.wording import troubleshooting
from hexloop.ports.collectives import Json
from hexloop.ports.mesh import DATA


@frozen
class SavedStep:
    """The size of an optimizer step of a checkpoint's run.

    samples: of all processes. accumulation: micro-batches of a process. asked: `gradient_accumulation_steps` as the
    user passed it, which differs if that run had itself resumed with another number of processes.
    """

    samples: int
    processes: int
    accumulation: int
    asked: int

    def only_processes_differ(self, processes: int, asked: int) -> bool:
        """Return whether the arguments are the same, and only the number of processes is not."""
        return asked == self.asked and (processes != self.processes or self.accumulation != self.asked)


@contextmanager
def same_global_batch(parts: TrainerParts, resume_from: str | bool | None) -> Iterator[int]:
    """Adjust `gradient_accumulation_steps` for the run, so that its optimizer steps are as large as its checkpoint's.

    This happens if the number of processes changed and the argument did not; `RunSetup.differences` handles a batch
    size that was changed on purpose. Collective. Yields the value that the user passed. Raises ConfigurationError, with
    the sizes that would work, if no number of accumulation steps does and steps of another size are refused.
    """
    args = parts.args
    asked = args.gradient_accumulation_steps
    saved = _saved_step(parts, resume_from)
    ranks = parts.adapters.mesh.data
    batch = global_batch_size(args, ranks, parts.train_batch_size)
    on_purpose = "batch_size" in args.resume_despite or args.auto_find_batch_size
    if saved is not None and saved.only_processes_differ(ranks.size, asked) and not on_purpose:
        if not saved.samples % batch:
            args.gradient_accumulation_steps = saved.samples // batch
        elif parts.notices.refuses("batch_size"):
            raise ConfigurationError(_indivisible(parts, saved))
    if args.gradient_accumulation_steps != asked and args.should_log:
        accumulation = args.gradient_accumulation_steps
        logging.getLogger("hexloop").warning(
            f"The checkpoint's run had optimizer steps of {batch * accumulation} samples; to keep that size with "
            f"world_size={args.world_size}, gradient_accumulation_steps is {accumulation} instead of {asked}."
        )
    try:
        yield asked
    finally:
        args.gradient_accumulation_steps = asked


def _saved_step(parts: TrainerParts, resume_from: str | bool | None) -> SavedStep | None:
    """Return what rank 0 finds, on all ranks; None if there is no checkpoint, or it does not contain the size."""

    def found() -> Json:
        if not resume_from:
            return None
        with suppress(CheckpointError, OSError, ValueError, LookupError, TypeError, ArithmeticError):
            storage, name = likely_checkpoint(parts.adapters.storage, resume_from)
            if name is not None:
                setup = read_setup(storage, name)
                sizes = setup.get("mesh")  # only if some processes read the same samples
                everyone = read_manifest(storage, name).world_size
                processes = everyone if sizes is None else prod(sizes.get(each, 1) for each in DATA)
                samples, accumulation = setup["global_batch_size"], setup["global_batch_size"] // setup["batch_size"]
                return cast(Json, asdict(SavedStep(samples, processes, accumulation, setup["asked_accumulation"])))
        return None

    saved = cast("dict[str, int] | None", run_on_rank0(parts.adapters.collectives, found))
    return None if saved is None else SavedStep(**saved)


def _indivisible(parts: TrainerParts, saved: SavedStep) -> str:
    """Return why steps of this size cannot be built from the batches, and from which they can."""
    args, ranks, size = parts.args, parts.adapters.mesh.data, parts.train_batch_size
    devices = size // args.per_device_train_batch_size
    if splits(args, ranks):
        processes, sizes = [], [ranks.size * each for each in _divisors(saved.samples, ranks.size)]
    else:
        processes, sizes = _divisors(saved.samples, size), _divisors(saved.samples, ranks.size * devices)
    each = parts.adapters.mesh.size // ranks.size
    ways = [f"start {_listed([number * each for number in processes])} processes"] if processes else []
    ways += [f"choose per_device_train_batch_size={_listed(sizes)}"] if sizes else []
    ways.append("accept steps of another size by resume_despite=['batch_size']")
    return (
        f"The checkpoint's run had optimizer steps of {saved.samples} samples, which are not a multiple of the "
        f"{global_batch_size(args, ranks, size)} samples of a batch with world_size={args.world_size} and "
        f"per_device_train_batch_size={args.per_device_train_batch_size}; {', or '.join(ways)}. "
        f"For help, {troubleshooting('resume refused')}."
    )


def _divisors(samples: int, unit: int) -> list[int]:
    """Return all numbers n for which n * unit divides the samples."""
    return [number for number in range(1, samples // unit + 1) if samples % (number * unit) == 0]


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last
