"""The schemas of two documents: in which a checkpoint describes the setup of its run, and a run that it is finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import Factory, field, frozen

from hexloop.domain.ranges import BatchSize, Count, Finite, Whole
from hexloop.domain.schemas import KEY, Open, read_document


@frozen
class SavedGroup(Open):
    """A parameter group: its number of parameters, and any options."""

    parameters: Count


@frozen
class SavedOptimizer:
    """The optimizer: its class, whether the arguments chose it, its groups, and the parameters that are not decayed."""

    kind: str = field(metadata={KEY: "class"})
    groups: list[SavedGroup]
    by_arguments: bool = False
    without_decay: list[str] = Factory(list)


@frozen
class SavedBuckets:
    """What `Framework.buckets` describes."""

    most: Count
    data: str


@frozen
class SavedBase:
    """What `Base` describes: the model that the adapters were trained on. digest: of its weights, if it is known."""

    name: str | None
    revision: str | None
    kind: str = field(metadata={KEY: "class"})
    dtype: str
    quantization: str | None
    digest: str | None


@frozen
class SavedSetup:
    """What `RunSetup` in `hexloop.app.run.checkpoint_compatibility` writes, or an import; each entry may be absent."""

    model: str | None = None
    precision: str | None = None
    reproduce: str | None = None
    samples_per_epoch: Count | None = None
    global_batch_size: BatchSize | None = None
    batch_size: BatchSize | None = None
    asked_accumulation: BatchSize | None = None
    mesh: dict[str, BatchSize] | None = None
    weights: str | None = None
    base: SavedBase | None = None
    buckets: SavedBuckets | None = None
    packing: str | None = None
    averages: str | None = None
    optimizer: SavedOptimizer | None = None
    imported_from: str | None = None


@frozen
class SavedFinish:
    """The completion marker of a run: its name and last step, the checkpoint and session that it ended with.

    max_steps, num_train_epochs: the arguments that defined the end.
    """

    run: str
    step: Count
    checkpoint: str | None
    session: str | None
    max_steps: Whole
    num_train_epochs: Finite


def finish_in(document: Any, where: str) -> SavedFinish:
    """Return the completion marker. Raises CheckpointError, with every problem, if the document is not one."""
    return read_document(document, SavedFinish, where)


def check_setup(saved: Mapping[str, Any], where: str) -> None:
    """Raise CheckpointError, with every problem, if that is not the setup of a run. where: names the document."""
    read_document(saved, SavedSetup, where)
