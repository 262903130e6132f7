"""A Trainer's model where no process holds the whole of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from hexloop.adapters.contents.checkpoint.keepers import MIGRATIONS, dealt_files_of
from hexloop.adapters.contents.checkpoint.shards import MODEL, is_weights
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.ports.parallelism import Sharding

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

DEALT = frozenset({"model", "optimizer"})
"""What no process has the whole of."""

LARGEST = 5_000_000_000
"""Bytes: no file of a model's weights is larger, unless a single tensor is."""


def is_sharded(trainer: Trainer) -> bool:
    """Whether torch has spread the trainer's model by now. Before its first run every process holds the whole.

    What an engine does that owns the update as well is `states`'s to know.
    """
    parallelism = trainer.adapters.parallelism
    if not parallelism.capabilities.sharded or parallelism.capabilities.owns_update:
        return False
    return cast("Sharding[Any, Any, Any]", parallelism).spreads(trainer.model)


def layout_of(trainer: Trainer) -> TorchLayout:
    """Where the tensors of the trainer's model lie."""
    if not is_sharded(trainer):
        return WHOLE
    return cast("Sharding[Any, Any, Any]", trainer.adapters.parallelism).layout


def own_class(model: Any) -> type[Any]:
    """The model's class, without the one that `fully_shard` puts before it."""
    return next(kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch.distributed."))


def own_name(name: str) -> str:
    """A parameter's name in the model that the user passed in, without what FSDP 1 puts into it."""
    return name.replace("_fsdp_wrapped_module.", "")


def save_sharded(trainer: Trainer, folder: str) -> None:
    """Write the weights as several files with an index, each process those that fall to it. Collective."""
    collectives = trainer.adapters.collectives
    state = ModelState(trainer.adapters.parallelism.unwrap(trainer.model), layout_of(trainer))
    parts = list(state.export())
    if collectives.rank == 0:
        for name in filter(is_weights, os.listdir(folder)):
            os.remove(os.path.join(folder, name))
    collectives.barrier("no weights of before are left")
    for file in dealt_files_of(MODEL, parts, LARGEST, MIGRATIONS, collectives.rank, collectives.world_size):
        with open(os.path.join(folder, file.path), "wb") as written:
            written.writelines(file.chunks)
    collectives.barrier("the weights are written")
