"""Import of transformers' checkpoints."""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from hexloop.app.transformers_checkpoints.conversion import random_parts, run_state_of
from hexloop.app.transformers_checkpoints.files import (
    ARGUMENTS,
    OPTIMIZER,
    SCALER,
    SCHEDULER,
    STATE,
    WEIGHTS,
    WEIGHTS_INDEX,
    read_pickled,
    refuse_irregular,
)
from hexloop.app.wiring.checkpoint_conversion import (
    optimizer_parts,
    safetensors_weights,
    weight_part,
    write_checkpoint,
)
from hexloop.app.wiring.storage import storage_for
from hexloop.domain.checkpoints.names import MANIFEST, checkpoint_name
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, read_json
from hexloop.domain.state import RunState
from hexloop.ports.files import File
from hexloop.ports.state import Part

COMPANIONS = frozenset({".json", ".txt", ".model", ".jinja", ".vocab", ".md"})
"""Extensions of the files next to a model's weights: its configuration and tokenizer."""

NO_LOSSES = {"sum": 0.0, "finite": 0, "added": 0, "waiting": [], "dtype": "float32"}


def import_checkpoint(
    folder: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    gradient_accumulation_steps: int = 1,
    processes: int = 1,
    seed: int = 42,
    data_seed: int | None = None,
    train_batch_size: int | None = None,
) -> str:
    """Convert a checkpoint of transformers (version 4 or 5) to `checkpoint-<step>` in the folder `to`.

    Returns the new checkpoint's folder, from which a hexloop run can resume. Weights, optimizer, schedule, loss scale,
    random states and history are imported. `training_args.bin` is not read: pass the run's arguments again.
    gradient_accumulation_steps, processes, seed, data_seed: those of the run, which its checkpoint does not contain.
    train_batch_size: the micro-batch size per process, which checkpoints of early releases do not contain either.

    Files are read as data only: one that requires code is refused before any of it runs. Raises CheckpointError if the
    folder is not such a checkpoint or cannot be read as data, and if `to` already contains a checkpoint of that step;
    StorageError if it cannot be written.
    """
    source = os.fspath(folder)
    state = run_state_of(
        _read_state(source),
        gradient_accumulation_steps,
        processes,
        seed,
        seed if data_seed is None else data_seed,
        train_batch_size,
    )
    state.run = uuid.uuid4().hex
    storage, name = storage_for(to), checkpoint_name(state.step)
    if any(entry.name == name for entry in storage.list("")):
        raise CheckpointError(
            f"You chose to write {name} to {os.fspath(to)}, but it exists already; choose another folder."
        )
    components = _components(source, state)
    write_checkpoint(storage, state, components, lambda: _companions(source), "transformers")
    return os.path.join(os.fspath(to), name)


def _components(folder: str, state: RunState) -> dict[str, list[Part]]:
    """Return the contents of the folder by the components of a hexloop run."""
    parts = {"model": weight_parts(folder), "losses": [json_part("undrained", NO_LOSSES)]}
    if not _has(folder, OPTIMIZER) or not _has(folder, SCHEDULER):
        raise CheckpointError(
            f"You chose to import {folder}, but it has no {OPTIMIZER} or no {SCHEDULER}, so no run can resume from it: "
            "it contains only weights, or the state of several processes; load its weights into your model instead."
        )
    optimizer, schedule = read_pickled(folder, OPTIMIZER), read_pickled(folder, SCHEDULER)
    state.updates = _checked(folder, SCHEDULER, lambda: int(schedule["last_epoch"]))
    rates = _checked(folder, OPTIMIZER, lambda: [float(group["lr"]) for group in optimizer["param_groups"]])
    parts["optimizer"] = _checked(folder, OPTIMIZER, lambda: optimizer_parts(optimizer))
    parts["scheduler"] = _checked(folder, SCHEDULER, lambda: [_schedule_part(schedule, rates, state)])
    if _has(folder, SCALER):
        parts["scaler"] = [json_part("scaler", read_pickled(folder, SCALER))]
    parts["random"] = random_parts(folder)
    return parts


def _schedule_part(schedule: dict[str, Any], rates: list[float], state: RunState) -> Part:
    """Return the state of hexloop's own schedule, or of a torch scheduler of the user.

    Schedules that are a function of the step only need the number of updates and ignore it.
    """
    state.learning_rate = rates[0]
    if "num_bad_epochs" not in schedule:
        return json_part("scheduler", {"state": schedule, "rates": rates})
    state.updates = state.step
    if "warmup_counter" in schedule:
        raise CheckpointError(
            "The schedule of this checkpoint is the greedy one, whose state cannot be imported; finish the run with "
            "transformers, or start a new one from its weights."
        )
    best = schedule["best"]
    memory = {
        "best": None if best in (float("inf"), float("-inf")) else float(best),
        "num_bad_epochs": int(schedule["num_bad_epochs"]),
        "cooldown_counter": int(schedule["cooldown_counter"]),
    }
    equal = len(set(rates)) == 1
    return json_part("adaptive", {"rates": rates[:1] if equal else rates, "state": memory})


def _read_state(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, STATE)
    if not os.path.isdir(folder) or not _has(folder, STATE):
        raise CheckpointError(f"You chose to import {folder}, but it has no {STATE}; name a checkpoint's folder.")
    if _has(folder, MANIFEST):
        raise CheckpointError(
            f"You chose to import {folder}, but that is already a checkpoint of hexloop; resume from it."
        )
    refuse_irregular(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))  # transformers writes NaN as a bare word
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a JSON document: {error}.") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    if _has(folder, ARGUMENTS):
        warnings.warn(
            f"{ARGUMENTS} is not loaded, as that would run code: pass the run's arguments again when you resume.",
            stacklevel=3,
        )
    return found


def _companions(folder: str) -> Iterator[File]:
    """Yield the files of the model's configuration and tokenizer."""
    for path in sorted(Path(folder).iterdir()):
        if path.suffix in COMPANIONS and not path.name.endswith(".index.json"):
            refuse_irregular(str(path))
            yield File(path.name, [path.read_bytes()])


def _has(folder: str, name: str) -> bool:
    return os.path.lexists(os.path.join(folder, name))


def _checked(folder: str, name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{os.path.join(folder, name)} is invalid: {error!r}.") from error


CHUNK = 1 << 22


def weight_parts(folder: str) -> list[Part]:
    """Return the weights, each tensor once, under its first name. Raises CheckpointError if there are none."""
    names = os.listdir(folder)
    weights = safetensors_weights(names, lambda path, start=0: _chunks(folder, path, start))
    if weights is not None:
        return weights
    if WEIGHTS in names:
        return _distinct(read_pickled(folder, WEIGHTS), WEIGHTS)
    if WEIGHTS_INDEX in names:
        state: dict[str, Any] = {}
        for shard in _shards(folder, names):
            state |= read_pickled(folder, shard)
        return _distinct(state, WEIGHTS_INDEX)
    raise CheckpointError(
        f"You chose to import {folder}, but it has neither model.safetensors nor {WEIGHTS}, whole or in shards; import "
        "a checkpoint with the model's own weights (adapters and checkpoints of sharded runs are not supported)."
    )


def _distinct(state: Any, name: str) -> list[Part]:
    """Return a part for each tensor; tied weights, which have several names, are returned once."""
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{name} is not a mapping from names to the weights of a model.")
    seen: dict[object, str] = {}
    for key, tensor in state.items():
        seen.setdefault(
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if len(tensor.shape) else key, key
        )
    return [weight_part(key, state[key]) for key in seen.values()]


def _shards(folder: str, names: list[str]) -> list[str]:
    refuse_irregular(os.path.join(folder, WEIGHTS_INDEX))
    with open(os.path.join(folder, WEIGHTS_INDEX), "rb") as file:
        try:
            shards = sorted(set(read_json(file.read())["weight_map"].values()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{WEIGHTS_INDEX} is not an index of weights: {error!r}.") from error
    if missing := [shard for shard in shards if shard not in names]:
        raise CheckpointError(f"{WEIGHTS_INDEX} lists files that are missing: {', '.join(map(repr, missing))}.")
    return shards


def _chunks(folder: str, name: str, start: int) -> Iterator[memoryview]:
    path = os.path.join(folder, name)
    refuse_irregular(path)
    with open(path, "rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield memoryview(chunk)
