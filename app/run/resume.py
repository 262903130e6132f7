"""What a run finds out before it resumes: the checkpoint, its batch size, and whether the run is finished."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import cast

from attrs import asdict, frozen

from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.data import global_batch_size, splits
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.storage import as_location, read_setup, split_location, storage_for
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import newest_first, publish_staged, readable_manifests
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Json
from hexloop.ports.storage import Storage

AUTO = "auto"
"""Resume if there is a checkpoint, and start a new run otherwise."""


def likely_checkpoint(own: Storage, resume_from: str | bool) -> tuple[Storage, str | None]:
    """Return the storage and the name of the checkpoint that `resume_from` most likely means; None if there is none.

    own: the run's storage. Nothing is verified: if the newest turns out to be damaged, the run resumes from another.
    """
    if resume_from in (True, AUTO):
        with suppress(StorageError):
            publish_staged(own)
        return own, next(newest_first(readable_manifests(own)), None)
    parent, name = split_location(str(resume_from))
    here = parent == as_location(own.capabilities.local_folder or own.capabilities.location)
    return (own if here or own.capabilities.local_folder is None else storage_for(parent)), name


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
    the sizes that would work, if no number of accumulation steps does.
    """
    args = parts.args
    asked = args.gradient_accumulation_steps
    saved = _saved_step(parts, resume_from)
    batch = global_batch_size(args, parts.train_batch_size)
    on_purpose = "batch_size" in args.resume_despite or args.auto_find_batch_size
    if saved is not None and saved.only_processes_differ(args.world_size, asked) and not on_purpose:
        if saved.samples % batch:
            raise ConfigurationError(_indivisible(parts, saved))
        args.gradient_accumulation_steps = saved.samples // batch
    if args.gradient_accumulation_steps != asked and args.should_log:
        logging.getLogger("hexloop").warning(
            "The checkpoint's run had optimizer steps of %d samples; to keep that size with world_size=%d, "
            "gradient_accumulation_steps is %d instead of %d.",
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
    """Return what rank 0 finds, on all ranks; None if there is no checkpoint, or it does not contain the size."""

    def found() -> Json:
        if not resume_from:
            return None
        with suppress(CheckpointError, OSError, ValueError, LookupError, TypeError, ArithmeticError):
            storage, name = likely_checkpoint(parts.adapters.storage, resume_from)
            if name is not None:
                processes = read_manifest(storage, name).world_size
                setup = read_setup(storage, name)
                samples, accumulation = setup["global_batch_size"], setup["global_batch_size"] // setup["batch_size"]
                return cast(Json, asdict(SavedStep(samples, processes, accumulation, setup["asked_accumulation"])))
        return None

    saved = cast("dict[str, int] | None", run_on_rank0(parts.adapters.collectives, found))
    return None if saved is None else SavedStep(**saved)


def _indivisible(parts: TrainerParts, saved: SavedStep) -> str:
    """Return why steps of this size cannot be built from the batches, and from which they can."""
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
        f"The checkpoint's run had optimizer steps of {saved.samples} samples, which are not a multiple of the "
        f"{global_batch_size(args, size)} samples of a batch with world_size={args.world_size} and "
        f"per_device_train_batch_size={args.per_device_train_batch_size}; {', or '.join(ways)}."
    )


def _divisors(samples: int, unit: int) -> list[int]:
    """Return all numbers n for which n * unit divides the samples."""
    return [number for number in range(1, samples // unit + 1) if samples % (number * unit) == 0]


def _listed(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


FINISHED = "finished.json"
"""The completion marker of a run, beside its checkpoints: the checkpoint that it ended with.

A checkpoint cannot state this itself, because a run may end after its last one. Resuming from any other checkpoint
leaves steps to train.
"""


def mark_finished(storage: Storage, args: TrainingArguments, state: RunState, last: str | None) -> None:
    """Record that a run is finished, unless its arguments are changed later to make it longer.

    last: the newest checkpoint of the run.
    """
    try:
        ended_with = None if last is None else read_manifest(storage, last).session
        document = {"run": state.run, "step": state.step, "checkpoint": last, "session": ended_with}
        storage.remove(FINISHED)
        storage.write(FINISHED, [f"{json.dumps({**document, **_length(args)}, indent=2)}\n".encode()])
    except (CheckpointError, StorageError) as error:
        warnings.warn(
            f"The completion marker of the run could not be written ({error}); resume_from_checkpoint='auto' will "
            "resume from its last checkpoint.",
            stacklevel=2,
        )


def finished_at(storage: Storage, args: TrainingArguments, chosen: str | None = None) -> int | None:
    """Return the step at which a run reached the end that `args` define, if it ended with the checkpoint `chosen`.

    chosen: None for the good one that the only run in the storage would resume from. Returns None if the run did not
    end with it, or if there are several runs.
    """
    if FINISHED not in {entry.name for entry in storage.list("")}:
        return None
    try:
        document = json.loads(b"".join(storage.read(FINISHED)))
        same = all(document[name] == value for name, value in _length(args).items())
        ended_with = document["run"], document["checkpoint"], document["session"]
        step = int(document["step"])
    except (ValueError, KeyError, TypeError):
        return None  # incomplete after a crash, or not hexloop's
    name = chosen or _next(storage)
    if not same or name is None:
        return None
    try:
        manifest = read_manifest(storage, name)
        if (manifest.run, name, manifest.session) != ended_with:
            return None
        if chosen is None:
            verify(storage, name)
    except CheckpointError:
        return None
    return step


def _next(storage: Storage) -> str | None:
    """Return the checkpoint that the only run in the storage would resume from; None if there are several runs."""
    with suppress(StorageError):
        publish_staged(storage)
    manifests = readable_manifests(storage)
    alone = len({manifest.run for manifest in manifests.values()}) == 1
    return next(newest_first(manifests)) if alone else None


def _length(args: TrainingArguments) -> dict[str, float]:
    return {"max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs}
