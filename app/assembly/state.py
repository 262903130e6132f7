"""The contents of a checkpoint: what exports and loads each part of a run's state, and which process writes what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from hexloop.adapters.contents.checkpoint import EMA, CheckpointContents, Setup
from hexloop.adapters.contents.file_names import RankFiles, UserFiles
from hexloop.adapters.contents.safetensors_files import TENSORS
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.run import Run
from hexloop.ports.parallelism import ExportableModel, OwnState, Parallelism, Sharding
from hexloop.ports.state import Exportable
from hexloop.ports.storage import File

__all__ = ["TENSORS", "CheckpointContents", "UserFiles"]
"""Names of adapters that other modules of the app import from here."""

SHARDED = frozenset({"model", "optimizer", "averages", EMA})
"""State of which no process holds all if the model is sharded."""


def exportables(parts: TrainerParts, run: Run[Any, Any], model: Exportable) -> dict[str, Exportable]:
    """Return everything that has state between steps, by the name of its file. model: what is saved of the model."""
    return {
        "model": model,
        "optimizer": parts.adapters.framework.optimizer_state(parts),
        "scheduler": run.scheduler,
        "scaler": parts.adapters.precision,
        "losses": run.losses,
        "data": run.batches,
        "random": parts.adapters.device,
    }


def contents_for(
    parts: TrainerParts,
    run: Run[Any, Any],
    model: ExportableModel,
    setup: Setup,
    companion_files: Callable[[], Iterable[File]],
    user_files: Callable[[], UserFiles],
) -> CheckpointContents:
    """Return what reads and writes the files of this run's checkpoints.

    model: what is saved of the model. setup: compares a run with a checkpoint. companion_files: the files that are not
    state. user_files: what overridden save methods write.
    """
    averages = parts.averages.weights
    return CheckpointContents(
        exportables(parts, run, model) | dict(averages.components(model)),
        companion_files,
        snapshots=parts.adapters.framework.snapshots(parts),
        setup=setup,
        ranks=_rank_files(parts),
        written={"model", EMA} if parts.args.save_only_model else None,
        user_files=user_files,
        best=("model", EMA) if averages.beside else ("model",),
    )


def _rank_files(parts: TrainerParts) -> RankFiles:
    """Return which rank writes what: each a part of sharded state, and rank 0 everything else."""
    engine = own_state(parts)
    sharded = SHARDED if is_sharded(parts.adapters.parallelism, parts.model) else frozenset()
    if engine is not None and engine.spreads_optimizer(parts.model_wrapped):
        sharded |= {"optimizer"}
    gathered = frozenset({"model", EMA}) if writers(parts) == 1 else frozenset[str]()
    return RankFiles(parts.adapters.mesh, sharded, gathered)


# Sharded models


def is_sharded(parallelism: Parallelism[Any], model: Any) -> bool:
    """Return whether the model is sharded by now. Before its first run every process holds all of it."""
    if not parallelism.capabilities.sharded:
        return False
    return cast("Sharding[Any, Any, Any]", parallelism).spreads(model)


def writers(parts: TrainerParts) -> int:
    """Return how many processes write sharded weights: all of them, or one if the engine or the policy gathers them."""
    adapters = parts.adapters
    gathered = adapters.framework.weights(parts.unwrapped_model).gathers(parts.args)
    return 1 if gathered or adapters.engine.consolidates(parts.args) else adapters.mesh.size


def own_state(parts: TrainerParts) -> OwnState[Any] | None:
    """Return the adapter of an engine that keeps the state itself, if it has prepared the model."""
    parallelism = parts.adapters.parallelism
    if not parallelism.capabilities.owns_state or parts.model_wrapped is parts.model:
        return None
    return cast("OwnState[Any]", parallelism)
