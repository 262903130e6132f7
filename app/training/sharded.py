"""A Trainer's model where no process holds the whole of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from hexloop.adapters.contents.checkpoint.contents import dealt_files_of
from hexloop.adapters.contents.checkpoint.documents import MIGRATIONS
from hexloop.adapters.contents.checkpoint.safetensors_files import MODEL, is_weights
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.domain.errors import RunStateError
from hexloop.ports.parallelism import Sharding

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

DEALT = frozenset({"model", "optimizer"})
"""What no process has the whole of."""

LARGEST = 5_000_000_000
"""Bytes: no file of a model's weights is larger, unless a single tensor is."""


def is_sharded(trainer: Trainer) -> bool:
    """Whether the trainer's model is spread by now. Before its first run every process holds the whole."""
    parallelism = trainer.adapters.parallelism
    if not parallelism.capabilities.sharded:
        return False
    return cast("Sharding[Any, Any, Any]", parallelism).spreads(trainer.model)


def refuse_unprepared(trainer: Trainer) -> None:
    """Raise RunStateError for a model whose weights this process never had, and that no run has prepared yet."""
    if is_sharded(trainer):
        return
    parameters = list(trainer.model.parameters())
    for reason in filter(None, map(trainer.adapters.engine.unprepared, parameters)):
        raise RunStateError(reason)
    if any(parameter.is_meta for parameter in parameters):
        raise RunStateError(
            "You asked to evaluate or save a model that lies on torch's meta device, and has no weights here before a "
            "run has prepared it; train first, or make it on a real device."
        )


def layout_of(trainer: Trainer) -> TorchLayout:
    """Where the tensors of the trainer's model lie."""
    if not is_sharded(trainer):
        return WHOLE
    return cast("Sharding[Any, Any, Any]", trainer.adapters.parallelism).layout


def writers_of(trainer: Trainer) -> int:
    """How many processes write the weights where they are spread: all, or one that is asked to put them together."""
    adapters = trainer.adapters
    return 1 if adapters.engine.consolidates(trainer.args) else adapters.collectives.world_size


def own_class(model: Any) -> type[Any]:
    """Return the model's class, without those that torch.distributed puts before it."""
    return next(kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch.distributed."))


def save_sharded(trainer: Trainer, folder: str) -> None:
    """Write the weights, as several files with an index where they are several; each process its own. Collective."""
    collectives = trainer.adapters.collectives
    writers = writers_of(trainer)
    state = ModelState(trainer.adapters.parallelism.unwrap(trainer.model), layout_of(trainer), writers)
    parts = list(state.export())
    if collectives.rank == 0:
        for name in filter(is_weights, os.listdir(folder)):
            os.remove(os.path.join(folder, name))
    collectives.barrier("no weights of before are left")
    for file in dealt_files_of(MODEL, parts, LARGEST, MIGRATIONS, collectives.rank, writers):
        with open(os.path.join(folder, file.path), "wb") as written:
            written.writelines(file.chunks)
    collectives.barrier("the weights are written")
