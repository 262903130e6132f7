"""What a run keeps between steps, in whatever way its engine holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from hexloop.adapters.contents.checkpoint.rank_files import RankFiles
from hexloop.adapters.trainable.torch import model_state as torch_model
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.training.sharded import DEALT, is_sharded, layout_of, writers_of
from hexloop.ports.parallelism import ModelState, OwnState
from hexloop.ports.state import Exportable

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def model_state(trainer: Trainer) -> ModelState:
    """Return what exports and loads the weights that the trainer trains, or has trained."""
    writers = writers_of(trainer)
    if engine := _own_state(trainer):
        return engine.model_state(trainer.model_wrapped, writers)
    model = trainer.adapters.parallelism.unwrap(trainer.model)
    return torch_model.ModelState(model, layout_of(trainer), writers)


def optimizer_state(trainer: Trainer) -> Exportable:
    """Return what exports and loads the optimizer. Raises CheckpointError if the engine's state is unknown."""
    if engine := _own_state(trainer):
        return engine.optimizer_state(trainer.model_wrapped, trainer.optimizer)
    model = trainer.adapters.parallelism.unwrap(trainer.model)
    return OptimizerState(model, trainer.optimizer, layout_of(trainer))


def group_sizes(trainer: Trainer) -> Sequence[int]:
    """Return how many of the model's parameters are in each of the optimizer's groups."""
    if engine := _own_state(trainer):
        return engine.group_sizes(trainer.model_wrapped, trainer.optimizer)
    return [len(group["params"]) for group in trainer.optimizer.param_groups]


def rank_files(trainer: Trainer) -> RankFiles:
    """Return which process writes what: of what is spread each writes some, of the rest the first writes all."""
    collectives, engine = trainer.adapters.collectives, _own_state(trainer)
    dealt = DEALT if is_sharded(trainer) else frozenset()
    if engine is not None and engine.spreads_optimizer(trainer.model_wrapped):
        dealt |= {"optimizer"}
    together = frozenset({"model"}) if writers_of(trainer) == 1 else frozenset[str]()
    return RankFiles(collectives.rank, collectives.world_size, dealt=dealt, together=together)


def _own_state(trainer: Trainer) -> OwnState[Any] | None:
    """Return the adapter of an engine that keeps the state itself, if it has prepared the model."""
    parallelism = trainer.adapters.parallelism
    if not parallelism.capabilities.owns_state or trainer.model_wrapped is trainer.model:
        return None
    return cast("OwnState[Any]", parallelism)
