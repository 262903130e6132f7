"""Where a run of the reference library stands, in hexloop's terms."""

from __future__ import annotations

import math
from typing import Any

from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState


def run_state_of(
    found: dict[str, Any],
    gradient_accumulation_steps: int,
    processes: int,
    seed: int,
    data_seed: int,
    train_batch_size: int | None = None,
) -> RunState:
    """The state that a `trainer_state.json` describes, but for the run's name and the count of updates.

    Its epoch, a fraction, and its step give the steps of a pass, and so the samples that are done of the present one.
    train_batch_size: that of a micro-batch in each process, where the file, of an early release, does not say it.
    Raises CheckpointError where it makes no sense, where step and epoch do not agree with each other, and where nobody
    says the batch size, or file and argument say different ones.
    """
    try:
        batch = _batch_size(found.get("train_batch_size"), train_batch_size)
        return _run_state(found, batch, gradient_accumulation_steps, processes, seed, data_seed)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(f"trainer_state.json makes no sense: {error!r}.") from error


def _batch_size(said: Any, given: int | None) -> int:
    if said and given not in (None, said):
        raise CheckpointError(f"You chose train_batch_size={given}, but trainer_state.json says {said}; leave it out.")
    batch = said or given
    if batch is None:
        raise CheckpointError(
            "trainer_state.json does not say how many samples a micro-batch had, as those of early releases do not; "
            "say it with train_batch_size."
        )
    return int(batch)


def _run_state(
    found: dict[str, Any], batch: int, accumulation: int, processes: int, seed: int, data_seed: int
) -> RunState:
    step, epochs = int(found["global_step"]), float(found["epoch"])
    if step < 1 or not 0 < epochs < math.inf:
        raise ValueError(f"step {step} of epoch {epochs}")
    epoch, done = _place(step, epochs, accumulation)
    logs = [entry for entry in found.get("log_history", ()) if isinstance(entry, dict)]
    callbacks = dict(found.get("stateful_callbacks") or {})
    callbacks.pop("TrainerControl", None)
    return RunState(
        seed=seed,
        data_seed=data_seed,
        global_batch_size=batch * accumulation * processes,
        step=step,
        updates=step,
        epoch=epoch,
        position=done * batch * accumulation * processes,
        batches=done * accumulation,
        samples=step * batch * accumulation * processes,
        tokens=int(found.get("num_input_tokens_seen") or 0),
        operations=float(found.get("total_flos") or 0),
        logged_step=step,
        loss_total=_loss_total(logs, step),
        best_metric=found.get("best_metric"),
        best_step=found.get("best_global_step"),
        history=logs,
        callbacks=callbacks,
    )


def _place(step: int, epochs: float, accumulation: int) -> tuple[int, int]:
    """The pass over the data, from 0, and the optimizer steps that are done of it."""
    epoch = math.floor(epochs + 1e-9)
    per_pass = round(step / epochs)
    if abs(per_pass * epochs - step) <= 1e-6 * step:
        return epoch, step - epoch * per_pass
    # The last window of each pass is a partial one: the micro-batches of a pass are no multiple of a window's.
    fraction = epochs - epoch
    for done in range(1, step + 1):
        micro_batches = round(done * accumulation / fraction)
        per_pass = math.ceil(micro_batches / accumulation)
        agrees = abs(done * accumulation / micro_batches - fraction) < 1e-9
        if agrees and done < per_pass and epoch * per_pass + done == step:
            return epoch, done
    raise ValueError(
        f"step {step} does not lie at epoch {epochs} with {accumulation} micro-batches to a step; say how many there "
        "were with gradient_accumulation_steps"
    )


def _loss_total(logs: list[dict[str, Any]], step: int) -> float:
    """The sum of all steps' losses, as far as they were logged; steps since the last log count as the last did."""
    total, before, loss = 0.0, 0, 0.0
    for entry in logs:
        if "loss" in entry and math.isfinite(entry["loss"]):
            loss = float(entry["loss"])
            total += loss * (int(entry["step"]) - before)
            before = int(entry["step"])
    return total + loss * (step - before)
