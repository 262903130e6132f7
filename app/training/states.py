"""What a run keeps between steps, in whatever way its engine holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hexloop.adapters.contents.checkpoint.rank_files import RankFiles
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.training.sharded import DEALT, is_sharded, layout_of, writers_of
from hexloop.ports.state import Exportable

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def model_state(trainer: Trainer) -> ModelState:
    """The weights that the trainer trains, or has trained."""
    model = trainer.adapters.parallelism.unwrap(trainer.model)
    if not _is_engine(trainer):
        return ModelState(model, layout_of(trainer), writers_of(trainer))
    from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions
    from hexloop.adapters.trainable.torch.zero_weights import ZeroModelState

    engine = trainer.model_wrapped
    partitions = ZeroPartitions(engine) if _wraps_optimizer(engine) else None
    return ZeroModelState(engine, layout_of(trainer), partitions, writers_of(trainer))


def optimizer_state(trainer: Trainer) -> Exportable:
    """The optimizer's moments and options. Raises CheckpointError for an engine whose state hexloop does not know."""
    model, engine = trainer.adapters.parallelism.unwrap(trainer.model), trainer.model_wrapped
    if not _is_engine(trainer) or not _wraps_optimizer(engine):
        return OptimizerState(model, trainer.optimizer, layout_of(trainer))
    from hexloop.adapters.trainable.torch.zero_moments import ZeroOptimizerState
    from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions, refuse_unknown_engine

    refuse_unknown_engine(engine)
    scaler = getattr(engine.optimizer, "loss_scaler", engine.optimizer) if engine.fp16_enabled() else None
    return ZeroOptimizerState(model, ZeroPartitions(engine), scaler)


def group_sizes(trainer: Trainer) -> list[int]:
    """How many of the model's parameters are in each of the optimizer's groups."""
    if not _is_engine(trainer) or not _wraps_optimizer(trainer.model_wrapped):
        return [len(group["params"]) for group in trainer.optimizer.param_groups]
    from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions

    return [len(group) for group in ZeroPartitions(trainer.model_wrapped).groups]


def rank_files(trainer: Trainer) -> RankFiles:
    """Which process writes what: of what is spread each writes some, of the rest the first writes all."""
    collectives = trainer.adapters.collectives
    dealt = DEALT if is_sharded(trainer) else frozenset()
    if _is_engine(trainer) and _wraps_optimizer(trainer.model_wrapped):
        from hexloop.adapters.trainable.torch.zero_partitions import ZeroPartitions

        if ZeroPartitions(trainer.model_wrapped).is_spread:
            dealt |= {"optimizer"}
    together = frozenset({"model"}) if writers_of(trainer) == 1 else frozenset[str]()
    return RankFiles(collectives.rank, collectives.world_size, dealt=dealt, together=together)


def _is_engine(trainer: Trainer) -> bool:
    """Whether an engine that owns the optimizer's step has prepared the model."""
    return trainer.adapters.parallelism.capabilities.owns_update and trainer.model_wrapped is not trainer.model


def _wraps_optimizer(engine: Any) -> bool:
    """Whether the engine's optimizer trains something else than the model's own parameters."""
    return engine.optimizer is not engine.basic_optimizer
