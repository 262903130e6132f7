"""The state of a Trainer's model and optimizer, whole or sharded over the processes, as the engine keeps it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

from hexloop.adapters.contents.checkpoint.contents import sharded_files_of
from hexloop.adapters.contents.checkpoint.documents import MIGRATIONS
from hexloop.adapters.contents.checkpoint.rank_files import RankFiles
from hexloop.adapters.contents.checkpoint.safetensors_files import MODEL, is_weights
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.wiring.adapters import Adapters
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import RunStateError
from hexloop.ports.parallelism import ExportableModel, OwnState, Parallelism, Sharding
from hexloop.ports.state import Exportable

SHARDED = frozenset({"model", "optimizer"})
"""The files whose tensors are sharded together with the weights."""

LARGEST = 5_000_000_000
"""The size in bytes of the largest file of weights, unless a single tensor is larger."""


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
            "The model is on torch's meta device, and no run has prepared it yet, so this process has no weights to "
            "evaluate or save; train first, or create it on a real device."
        )


def layout_of(parts: TrainerParts) -> TorchLayout:
    """Return how the tensors of the model are distributed over the processes."""
    if not is_sharded(parts.adapters.parallelism, parts.model):
        return WHOLE
    return cast("Sharding[Any, Any, Any]", parts.adapters.parallelism).layout


def writers_of(parts: TrainerParts) -> int:
    """Return how many processes write sharded weights: all, or one if the weights are to be consolidated."""
    adapters = parts.adapters
    return 1 if adapters.engine.consolidates(parts.args) else adapters.collectives.world_size


def own_class(model: Any) -> type[Any]:
    """Return the model's class, without those that torch.distributed puts before it."""
    return next(kind for kind in type(model).__mro__ if not kind.__module__.startswith("torch.distributed."))


def save_sharded(parts: TrainerParts, folder: str) -> None:
    """Write sharded weights, each process its own file, with an index if there are several. Collective."""
    collectives = parts.adapters.collectives
    writers = writers_of(parts)
    state = ModelState(parts.adapters.parallelism.unwrap(parts.model), layout_of(parts), writers)
    tensors = list(state.export())
    if collectives.rank == 0:
        for name in filter(is_weights, os.listdir(folder)):
            os.remove(os.path.join(folder, name))
    collectives.barrier("earlier weights are removed")
    for file in sharded_files_of(MODEL, tensors, LARGEST, MIGRATIONS, collectives.rank, writers):
        with open(os.path.join(folder, file.path), "wb") as written:
            written.writelines(file.chunks)
    collectives.barrier("the weights are written")


def model_state(parts: TrainerParts) -> ExportableModel:
    """Return what exports and loads the weights."""
    writers = writers_of(parts)
    if engine := _own_state(parts):
        return engine.model_state(parts.model_wrapped, writers)
    model = parts.adapters.parallelism.unwrap(parts.model)
    return ModelState(model, layout_of(parts), writers)


def optimizer_state(parts: TrainerParts) -> Exportable:
    """Return what exports and loads the optimizer. Raises CheckpointError if the engine's state is unknown."""
    if engine := _own_state(parts):
        return engine.optimizer_state(parts.model_wrapped, parts.optimizer)
    model = parts.adapters.parallelism.unwrap(parts.model)
    return OptimizerState(model, parts.optimizer, layout_of(parts))


def group_sizes(parts: TrainerParts) -> Sequence[int]:
    """Return how many of the model's parameters are in each of the optimizer's groups."""
    if engine := _own_state(parts):
        return engine.group_sizes(parts.model_wrapped, parts.optimizer)
    return [len(group["params"]) for group in parts.optimizer.param_groups]


def rank_files(parts: TrainerParts) -> RankFiles:
    """Return which process writes which files: every process some of the sharded ones, rank 0 all others."""
    collectives, engine = parts.adapters.collectives, _own_state(parts)
    sharded = SHARDED if is_sharded(parts.adapters.parallelism, parts.model) else frozenset()
    if engine is not None and engine.spreads_optimizer(parts.model_wrapped):
        sharded |= {"optimizer"}
    gathered = frozenset({"model"}) if writers_of(parts) == 1 else frozenset[str]()
    return RankFiles(collectives.rank, collectives.world_size, sharded=sharded, gathered=gathered)


def _own_state(parts: TrainerParts) -> OwnState[Any] | None:
    """Return the adapter of an engine that keeps the state itself, if it has prepared the model."""
    parallelism = parts.adapters.parallelism
    if not parallelism.capabilities.owns_state or parts.model_wrapped is parts.model:
        return None
    return cast("OwnState[Any]", parallelism)
