"""The `trainer_state.json` of transformers: its schema, and the run state that it describes."""

from __future__ import annotations

import math
import uuid
from typing import Annotated, Any

from attrs import Factory, asdict, frozen

from hexloop.domain.errors import CheckpointError
from hexloop.domain.ranges import LARGEST_BATCH, Between, Count, Holding, PositiveCount
from hexloop.domain.schemas import Open, read_document
from hexloop.domain.state import RunState

LEAST_EPOCHS = 1e-12

Epochs = Annotated[float, Holding("a number of epochs", lambda epochs: LEAST_EPOCHS <= epochs <= 2**53)]
Amount = Annotated[float, Holding("a finite number from 0", lambda amount: 0 <= amount < math.inf)]
Tokens = Annotated[float, Holding("a number of tokens", lambda tokens: 0 <= tokens <= 2**53)]
Samples = Annotated[int, Between(0, LARGEST_BATCH)]


@frozen
class SavedTrainerState(Open):
    """What an import reads of it. Early releases do not have all entries."""

    global_step: PositiveCount
    epoch: Epochs
    train_batch_size: Samples | None = None
    num_input_tokens_seen: Tokens | None = None
    total_flos: Amount | None = None
    best_metric: float | None = None
    best_global_step: Count | None = None
    log_history: list[Any] | None = None
    stateful_callbacks: dict[str, Any] | None = None


@frozen
class LoggedLoss(Open):
    """An entry of the history with a loss, which may be NaN."""

    loss: float
    step: Count


@frozen
class LoggedLosses:
    """The entries of the history with a loss."""

    log_history: list[LoggedLoss] = Factory(list)


def run_state(
    document: Any, where: str, batch: int | None, accumulation: int, processes: int, seed: int, data_seed: int
) -> RunState:
    """Return the run state that a `trainer_state.json` describes, but for the number of updates.

    Its fractional epoch and its step determine the steps per epoch, and so the position in the current epoch.
    where: the path of the file. batch: the micro-batch size of a process, as the caller gave it; None if not.
    Raises CheckpointError, with every problem, if the document is invalid, or does not agree with these numbers.
    """
    found = read_document(document, SavedTrainerState, where)
    logs = [entry for entry in found.log_history or () if isinstance(entry, dict)]
    read = read_document({"log_history": [entry for entry in logs if "loss" in entry]}, LoggedLosses, where)
    step, samples = found.global_step, _batch_size(found.train_batch_size, batch) * accumulation * processes
    try:
        epoch, done = _position(step, found.epoch, accumulation)
    except ValueError as error:
        raise CheckpointError(f"{where} is invalid: {error}.") from None
    callbacks = dict(found.stateful_callbacks or {})
    callbacks.pop("TrainerControl", None)
    state = RunState(
        run=uuid.uuid4().hex,
        seed=seed,
        data_seed=data_seed,
        global_batch_size=samples,
        step=step,
        updates=step,
        epoch=epoch,
        position=done * samples,
        batches=done * accumulation,
        samples=step * samples,
        tokens=int(found.num_input_tokens_seen or 0),
        operations=float(found.total_flos or 0),
        logged_step=step,
        loss_total=_loss_total(read.log_history, step),
        best_metric=found.best_metric,
        best_step=found.best_global_step,
        history=logs,
        callbacks=callbacks,
    )
    return read_document(asdict(state, recurse=False), RunState, f"The run state of {where}")


def _batch_size(saved: int | None, given: int | None) -> int:
    if saved and given not in (None, saved):
        raise CheckpointError(f"You chose train_batch_size={given}, but trainer_state.json has {saved}; leave it out.")
    batch = saved or given
    if batch is None:
        raise CheckpointError(
            "trainer_state.json does not contain the micro-batch size, as it is of an early release of transformers; "
            "set train_batch_size."
        )
    return int(batch)


def _position(step: int, epochs: float, accumulation: int) -> tuple[int, int]:
    """Return the epoch, from 0, and the number of optimizer steps done in it."""
    epoch = math.floor(epochs + 1e-9)
    per_epoch = round(step / epochs)
    if abs(per_epoch * epochs - step) <= 1e-6 * step:
        return epoch, step - epoch * per_epoch
    # The last window of each epoch is partial: the micro-batches per epoch are not a multiple of the window's.
    fraction = epochs - epoch
    near = math.floor(step * fraction / epochs)  # an epoch has at most one step more than `done / fraction`
    for done in range(max(1, near - 2), min(step, near + 2) + 1) if fraction > 0 else ():
        micro_batches = round(done * accumulation / fraction)
        per_epoch = math.ceil(micro_batches / accumulation)
        agrees = abs(done * accumulation / micro_batches - fraction) < 1e-9
        if agrees and done < per_epoch and epoch * per_epoch + done == step:
            return epoch, done
    raise ValueError(
        f"step {step} is not at epoch {epochs} with {accumulation} micro-batches per step; set "
        "gradient_accumulation_steps to that of the run"
    )


def _loss_total(logs: list[LoggedLoss], step: int) -> float:
    """Return the sum of the losses of all steps, from the logs; steps after the last log use its loss."""
    total, before, loss = 0.0, 0, 0.0
    for entry in logs:
        if math.isfinite(entry.loss):
            loss = float(entry.loss)
            total += loss * (entry.step - before)
            before = entry.step
    return total + loss * (step - before)
