"""What a run keeps between steps, in whatever way its engine holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hexloop.adapters.contents.checkpoint.rank_files import RankFiles
from hexloop.adapters.trainable.torch import model_state as torch_model
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.training.sharded import DEALT, is_sharded, layout_of, writers_of
from hexloop.app.wiring.parts import TrainerParts
from hexloop.ports.parallelism import ModelState, OwnState
from hexloop.ports.state import Exportable


def model_state(parts: TrainerParts) -> ModelState:
    """Return what exports and loads the weights that the trainer trains, or has trained."""
    writers = writers_of(parts)
    if engine := _own_state(parts):
        return engine.model_state(parts.model_wrapped, writers)
    model = parts.adapters.parallelism.unwrap(parts.model)
    return torch_model.ModelState(model, layout_of(parts), writers)


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
    """Return which process writes what: of what is spread each writes some, of the rest the first writes all."""
    collectives, engine = parts.adapters.collectives, _own_state(parts)
    dealt = DEALT if is_sharded(parts.adapters.parallelism, parts.model) else frozenset()
    if engine is not None and engine.spreads_optimizer(parts.model_wrapped):
        dealt |= {"optimizer"}
    together = frozenset({"model"}) if writers_of(parts) == 1 else frozenset[str]()
    return RankFiles(collectives.rank, collectives.world_size, sharded=dealt, gathered=together)


def _own_state(parts: TrainerParts) -> OwnState[Any] | None:
    """Return the adapter of an engine that keeps the state itself, if it has prepared the model."""
    parallelism = parts.adapters.parallelism
    if not parallelism.capabilities.owns_state or parts.model_wrapped is parts.model:
        return None
    return cast("OwnState[Any]", parallelism)
