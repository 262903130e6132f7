"""Conversion of random states, learning-rate schedules and the run state from and to transformers' formats."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hexloop.app.transformers_checkpoints.files import RANDOM, RANDOM_OF_FIRST, read_pickled
from hexloop.app.wiring.adapters import DEVICES
from hexloop.app.wiring.checkpoint_conversion import decode_random_state, encode_random_state
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.state import RunState
from hexloop.ports.state import Part


def random_parts(folder: str) -> list[Part]:
    """Return the random states in a checkpoint's folder as a device exports them.

    If there are none, warn and return the current states.
    """
    name = next((name for name in (RANDOM, RANDOM_OF_FIRST) if os.path.lexists(os.path.join(folder, name))), None)
    if name is None:
        warnings.warn(f"{folder} has no {RANDOM}, so the current random states are used.", stacklevel=4)
        device = DEVICES["cpu"](0)
        assert device is not None
        return list(device.export())
    if name == RANDOM_OF_FIRST:
        warnings.warn(
            "The checkpoint was written by several processes: only the random states of the first are imported.",
            stacklevel=4,
        )
    found = read_pickled(folder, name)
    try:
        version, words, gauss = found["python"]
        kind, keys, position, has_gauss, cached = found["numpy"]
        return [
            json_part("python", [version, list(words), gauss]),
            json_part("numpy", [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]),
            json_part("torch", encode_random_state(found["cpu"])),
            *_gpu_states(found.get("cuda")),
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{os.path.join(folder, name)} is invalid: {error!r}.") from error


def _gpu_states(states: Tensor | list[Tensor] | None) -> list[Part]:
    if states is None:
        return []
    if isinstance(states, Tensor):
        return [json_part("device", encode_random_state(states))]
    return [
        json_part("device", encode_random_state(states[0])),
        json_part("devices", [encode_random_state(state) for state in states]),
    ]


def random_state_dict(parts: dict[str, Part]) -> dict[str, Any]:
    """Return the random states that a device exported, as transformers saves them in a single process."""
    version, words, gauss = json_value(parts["python"])
    kind, keys, position, has_gauss, cached = json_value(parts["numpy"])
    streams: dict[str, Any] = {
        "python": (version, tuple(words), gauss),
        "numpy": (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached),
        "cpu": decode_random_state(json_value(parts["torch"])),
    }
    if "device" in parts:
        streams["cuda"] = decode_random_state(json_value(parts["device"])).to(torch.uint8)
    return streams


def schedule_state_dict(
    parts: Mapping[str, Part], groups: Sequence[Mapping[str, Any]], state: RunState
) -> dict[str, Any]:
    """Return the state dict of the torch scheduler that transformers uses for the schedule of a checkpoint.

    A torch scheduler of the user has its own; a schedule that is a function of the step is a `LambdaLR`, and one that
    follows a metric is a `ReduceLROnPlateau`. Raises ValueError for the greedy schedule, which is neither.
    """
    rates = [float(group["lr"]) for group in groups]
    if "scheduler" in parts:
        kept: dict[str, Any] = json_value(parts["scheduler"])["state"]
        return kept
    if "adaptive" in parts:
        return _plateau(json_value(parts["adaptive"])["state"], rates, state)
    return {
        "base_lrs": [float(group.get("initial_lr", group["lr"])) for group in groups],
        "last_epoch": state.updates,
        "_step_count": state.updates + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": rates,
        "lr_lambdas": [None] * len(groups),
    }


def _plateau(memory: Mapping[str, Any], rates: list[float], state: RunState) -> dict[str, Any]:
    if "cooldown_counter" not in memory or "warmup_counter" in memory:
        raise ValueError("transformers cannot load the state of the greedy schedule")
    entries: dict[str, Any] = {
        "num_bad_epochs": memory["num_bad_epochs"],
        "cooldown_counter": memory["cooldown_counter"],
        "last_epoch": state.step,
        "_last_lr": rates,
    }
    best = memory["best"]
    return entries if best is None or not math.isfinite(best) else {**entries, "best": best}


def run_state_of(
    found: dict[str, Any],
    gradient_accumulation_steps: int,
    processes: int,
    seed: int,
    data_seed: int,
    train_batch_size: int | None = None,
) -> RunState:
    """Return the run state that a `trainer_state.json` describes, without the run's name and the number of updates.

    Its fractional epoch and its step determine the steps per epoch, and so the position in the current epoch.
    train_batch_size: the micro-batch size per process, if the file, of an early release, does not contain it.
    Raises CheckpointError if the file is invalid, step and epoch contradict each other, or the batch size is unknown or
    contradicts the file.
    """
    try:
        batch = _batch_size(found.get("train_batch_size"), train_batch_size)
        return _run_state(found, batch, gradient_accumulation_steps, processes, seed, data_seed)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise CheckpointError(f"trainer_state.json is invalid: {error!r}.") from error


def _batch_size(saved: Any, given: int | None) -> int:
    if saved and given not in (None, saved):
        raise CheckpointError(f"You chose train_batch_size={given}, but trainer_state.json has {saved}; leave it out.")
    batch = saved or given
    if batch is None:
        raise CheckpointError(
            "trainer_state.json does not contain the micro-batch size, as it is of an early release of transformers; "
            "set train_batch_size."
        )
    return int(batch)


def _run_state(
    found: dict[str, Any], batch: int, accumulation: int, processes: int, seed: int, data_seed: int
) -> RunState:
    step, epochs = int(found["global_step"]), float(found["epoch"])
    if step < 1 or not 0 < epochs < math.inf:
        raise ValueError(f"step {step} of epoch {epochs}")
    epoch, done = _position(step, epochs, accumulation)
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


def _position(step: int, epochs: float, accumulation: int) -> tuple[int, int]:
    """Return the epoch, from 0, and the number of optimizer steps done in it."""
    epoch = math.floor(epochs + 1e-9)
    per_epoch = round(step / epochs)
    if abs(per_epoch * epochs - step) <= 1e-6 * step:
        return epoch, step - epoch * per_epoch
    # The last window of each epoch is partial: the micro-batches per epoch are not a multiple of the window's.
    fraction = epochs - epoch
    for done in range(1, step + 1):
        micro_batches = round(done * accumulation / fraction)
        per_epoch = math.ceil(micro_batches / accumulation)
        agrees = abs(done * accumulation / micro_batches - fraction) < 1e-9
        if agrees and done < per_epoch and epoch * per_epoch + done == step:
            return epoch, done
    raise ValueError(
        f"step {step} is not at epoch {epochs} with {accumulation} micro-batches per step; set "
        "gradient_accumulation_steps to that of the run"
    )


def _loss_total(logs: list[dict[str, Any]], step: int) -> float:
    """Return the sum of the losses of all steps, from the logs; steps after the last log use its loss."""
    total, before, loss = 0.0, 0, 0.0
    for entry in logs:
        if "loss" in entry and math.isfinite(entry["loss"]):
            loss = float(entry["loss"])
            total += loss * (int(entry["step"]) - before)
            before = int(entry["step"])
    return total + loss * (step - before)
