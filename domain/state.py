"""Where a run stands: one value, which goes into a checkpoint as JSON and comes back through migrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import Factory, define

from hexloop.domain.errors import CheckpointError, NewerSchemaError

SCHEMA_VERSION = 1


@define
class RunState:
    """Where a run stands between two steps.

    run: the run's own name, kept over resumes; checkpoints of other runs are never counted as this one's.
    seed, data_seed, global_batch_size: what the order of samples was made from.
    step: optimizer steps done; updates: those of them that were taken (loss scaling may skip some).
    epoch: pass over the data, from 0; position and batches: samples and micro-batches of it that are done.
    samples, tokens, operations: trained on since the start (operations are floating-point operations).
    logged_step: step of the last log; loss_total: sum of the losses logged until then.
    learning_rate, gradient_norm: those of the last step, for a log that comes after a resume.
    best_metric, best_step, best_checkpoint: the best evaluation so far, and the folder that holds it.
    due: actions still owed at this boundary, in order ("log", "evaluate", "save"); the first may have been interrupted.
    pass_complete: the present pass over the data has no further step (the data's end, or a callback ended it).
    epoch_ended: the end of the present pass was announced, though perhaps not all done that is due at it.
    history: everything logged. callbacks: what stateful callbacks keep.
    """

    run: str = ""
    seed: int = 42
    data_seed: int = 42
    global_batch_size: int = 1
    step: int = 0
    updates: int = 0
    epoch: int = 0
    position: int = 0
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    operations: float = 0.0
    logged_step: int = 0
    loss_total: float = 0.0
    learning_rate: float | None = None
    gradient_norm: float | None = None
    best_metric: float | None = None
    best_step: int | None = None
    best_checkpoint: str | None = None
    parent_checkpoint: str | None = None
    pass_complete: bool = False
    epoch_ended: bool = False
    due: list[str] = Factory(list)
    history: list[dict[str, Any]] = Factory(list)
    callbacks: dict[str, Any] = Factory(dict)

    def begin_next_epoch(self) -> None:
        """Stand at the first sample of the next pass over the data."""
        self.epoch += 1
        self.position = self.batches = 0
        self.pass_complete = self.epoch_ended = False


Migration = Callable[[dict[str, Any]], dict[str, Any]]

MIGRATIONS: dict[int, Migration] = {}
"""For each schema version before the present one, the function that turns its dictionary into the next version's."""


def migrate(
    document: Mapping[str, Any], migrations: Mapping[int, Migration] = MIGRATIONS, present: int = SCHEMA_VERSION
) -> dict[str, Any]:
    """The dictionary of a saved state, brought up to the `present` schema version.

    Raises CheckpointError where the state is newer than this hexloop, or too old for its migrations.
    """
    migrated = dict(document)
    while (version := migrated.get("schema_version")) != present:
        if not isinstance(version, int) or version not in migrations:
            kind = NewerSchemaError if isinstance(version, int) and version > present else CheckpointError
            raise kind(
                f"The saved state has schema version {version!r}, and this hexloop reads versions up to {present}; "
                "resume with the hexloop that wrote it, or a newer one."
            )
        migrated = migrations[version](migrated)
    return migrated
