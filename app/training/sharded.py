"""A Trainer's model where no process holds the whole of it."""

from __future__ import annotations

import os
from typing import Any, cast

from hexloop.adapters.contents.checkpoint.contents import sharded_files_of
from hexloop.adapters.contents.checkpoint.documents import MIGRATIONS
from hexloop.adapters.contents.checkpoint.safetensors_files import MODEL, is_weights
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import RunStateError
from hexloop.ports.parallelism import Parallelism, Sharding

DEALT = frozenset({"model", "optimizer"})
"""What no process has the whole of."""

LARGEST = 5_000_000_000
"""Bytes: no file of a model's weights is larger, unless a single tensor is."""


def is_sharded(parallelism: Parallelism[Any], model: Any) -> bool:
    """Return whether the model is sharded by now. Before its first run every process holds all of it."""
    if not parallelism.capabilities.sharded:
        return False
    return cast("Sharding[Any, Any, Any]", parallelism).spreads(model)


def refuse_unprepared(adapters: Adapters, model: Any) -> None:
    """Raise RunStateError if this process never had the model's weights and no run has prepared the model yet."""
    if is_sharded(adapters.parallelism, model):
        return
    parameters = list(model.parameters())
    for reason in filter(None, map(adapters.engine.unprepared, parameters)):
        raise RunStateError(reason)
    if any(parameter.is_meta for parameter in parameters):
        raise RunStateError(
            "You asked to evaluate or save a model that lies on torch's meta device, and has no weights here before a "
            "run has prepared it; train first, or make it on a real device."
        )


def layout_of(parts: TrainerParts) -> TorchLayout:
    """Where the tensors of the trainer's model lie."""
    if not is_sharded(parts.adapters.parallelism, parts.model):
        return WHOLE
    return cast("Sharding[Any, Any, Any]", parts.adapters.parallelism).layout


def writers_of(parts: TrainerParts) -> int:
    """How many processes write the weights where they are spread: all, or one that is asked to put them together."""
    adapters = parts.adapters
    return 1 if adapters.engine.consolidates(parts.args) else adapters.collectives.world_size


def own_class(model: Any) -> type[Any]:
    """Return the model's class, without those that torch.distributed puts before it."""
    return next(kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch.distributed."))


def save_sharded(parts: TrainerParts, folder: str) -> None:
    """Write the weights, as several files with an index where they are several; each process its own. Collective."""
    collectives = parts.adapters.collectives
    writers = writers_of(parts)
    state = ModelState(parts.adapters.parallelism.unwrap(parts.model), layout_of(parts), writers)
    tensors = list(state.export())
    if collectives.rank == 0:
        for name in filter(is_weights, os.listdir(folder)):
            os.remove(os.path.join(folder, name))
    collectives.barrier("no weights of before are left")
    for file in sharded_files_of(MODEL, tensors, LARGEST, MIGRATIONS, collectives.rank, writers):
        with open(os.path.join(folder, file.path), "wb") as written:
            written.writelines(file.chunks)
    collectives.barrier("the weights are written")
