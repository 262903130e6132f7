"""The weights that a checkpoint holds, put into a Trainer's model."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.contents.checkpoint.contents import RUN_STATE
from hexloop.adapters.contents.checkpoint.documents import state_from_chunks
from hexloop.app.arguments import TrainingArguments
from hexloop.app.wiring.storage import is_missing, split_location, storage_for
from hexloop.domain.checkpoints.best import find_checkpoint
from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps
from hexloop.domain.checkpoints.selection import last_run, newest, open_checkpoint
from hexloop.domain.errors import CheckpointError
from hexloop.ports.storage import Storage

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def nothing_to_load(options: Namespace, arguments: TrainingArguments) -> Iterator[str]:
    """A problem where the checkpoint that is wanted is not there."""
    folder = str(arguments.output_dir)
    if options.checkpoint is not None:
        if is_missing(options.checkpoint):
            yield (
                f"--checkpoint: You chose {options.checkpoint!r}, but there is no such folder; name a checkpoint's "
                "folder."
            )
    elif not options.as_made and not checkpoint_steps(storage_for(folder)):
        yield (
            f"No checkpoint is in {folder}; train first, name one with --checkpoint, or give --no-checkpoint to take "
            "the model as the recipe makes it."
        )


def load_weights(trainer: Trainer, options: Namespace) -> str | None:
    """Load the weights of the checkpoint that the options choose; gives its folder, None for the model as it was made.

    Raises CheckpointError where it is not good, or is one of another model.
    """
    from hexloop.adapters.trainable.torch.model_state import ModelState

    if options.as_made:
        return None
    storage = trainer.adapters.storage
    if options.checkpoint is not None:
        parent, name = split_location(options.checkpoint)
        storage = storage_for(parent)
        checkpoint = open_checkpoint(storage, name)
    else:
        checkpoint = _last(storage, trainer.args.load_best_model_at_end)
    contents = CheckpointContents({"model": ModelState(trainer.adapters.parallelism.unwrap(trainer.model))})
    contents.restore_weights(
        checkpoint.manifest.files, lambda path, start=0: storage.read(f"{checkpoint.name}/{path}", start)
    )
    return f"{storage.capabilities.location}/{checkpoint.name}"


def _last(storage: Storage, best: bool) -> Checkpoint:
    """The checkpoint that the last run ends with: its best, where it has one and that is wanted, else its newest."""
    found = newest(storage, last_run(storage))
    if found is None:
        raise CheckpointError(
            f"There is no good checkpoint in {storage.capabilities.location}; name another with --checkpoint."
        )
    if not best:
        return found
    state = state_from_chunks(storage.read(f"{found.name}/{RUN_STATE}"))
    name = state.best_checkpoint
    if name is None or name == found.name:
        return found
    if find_checkpoint([storage], name, Lineage.after(found.manifest, found.manifest.session)) is None:
        raise CheckpointError(
            f"You chose the weights of the run's best checkpoint, {name}, but it is not in "
            f"{storage.capabilities.location} as the run saved it; name its folder with --checkpoint, or take the "
            "last weights with --no_load_best_model_at_end."
        )
    return open_checkpoint(storage, name)
