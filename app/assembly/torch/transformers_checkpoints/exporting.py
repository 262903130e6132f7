"""Export of hexloop's checkpoints in the format of transformers."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hexloop.adapters.contents.adapter_files import is_adapter_file
from hexloop.adapters.contents.checkpoint import files_of
from hexloop.adapters.contents.safetensors_files import MODEL, is_weights
from hexloop.adapters.device.torch import decode_state
from hexloop.adapters.trainable.torch.averaged_weights import trained_weights
from hexloop.adapters.trainable.torch.parameter_groups import state_dict_of
from hexloop.app.assembly.checkpoint_files import CheckpointFiles, is_run_file
from hexloop.app.assembly.storage import storage_for
from hexloop.app.assembly.torch.saved_weights import policy_of
from hexloop.app.assembly.torch.state import LARGEST
from hexloop.app.assembly.torch.transformers_checkpoints.files import (
    DEVICE_STREAMS,
    OPTIMIZER,
    RANDOM,
    SCALER,
    SCHEDULER,
    write_pickled,
)
from hexloop.domain.checkpoints.selection import open_checkpoint
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_value, read_bytes, read_json
from hexloop.domain.run_folder import RUN_STATE, TRAINER_STATE
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from hexloop.ports.storage import TRAINING_ARGUMENTS, Signatures

NOT_COPIED = frozenset({TRAINING_ARGUMENTS, "model.json"})
"""Files of the model that transformers does not use."""


def export_checkpoint(
    checkpoint: str | os.PathLike[str], to: str | os.PathLike[str], signatures: Signatures | None = None
) -> str:
    """Write a checkpoint of hexloop in transformers' format, as `checkpoint-<step>` in the folder `to`.

    Returns its folder, which transformers' Trainer accepts as `resume_from_checkpoint` (it warns about the missing
    `training_args.bin`, which it does not need). Optimizer, schedule, loss scale and random states are pickled, because
    transformers reads them so.

    Args:
        checkpoint: the folder of the checkpoint.
        to: the folder that receives `checkpoint-<step>`.
        signatures: by which the checkpoint must be signed.

    Raises:
        CheckpointError: if the checkpoint is damaged, not signed by them, contains only weights or state that
            transformers cannot load, and if `to` already contains a checkpoint of that step.
    """
    parent, name = os.path.split(os.path.abspath(os.fspath(checkpoint)))
    storage = storage_for(parent, signatures=signatures)
    opened = open_checkpoint(storage, name)
    manifest, source = opened.manifest, CheckpointFiles.of(opened)
    if RUN_STATE not in source.files or not source.parts("optimizer"):
        raise CheckpointError(f"{checkpoint} contains only weights, which from_pretrained loads as they are.")
    target = os.path.join(os.fspath(to), f"checkpoint-{manifest.step}")
    if os.path.lexists(target):
        raise CheckpointError(f"You chose to write {target}, but it exists already; choose another folder.")
    os.makedirs(os.fspath(to), exist_ok=True)
    staging = tempfile.mkdtemp(prefix=".unfinished-", dir=os.fspath(to))
    try:
        _write(source, staging, manifest.environment.get("device", "cuda"))
        os.chmod(staging, 0o755)
        os.rename(staging, target)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint} cannot be exported: {error}.") from error
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{checkpoint} cannot be exported: its state is invalid ({error!r}).") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _write(source: CheckpointFiles, folder: str, device: str) -> None:
    state = source.run_state()
    of_model = [path for path in source.files if path not in NOT_COPIED and not is_run_file(path)]
    trained = trained_weights(source.parts("averages"))
    for path in policy_of(source.run_setup().get("weights")).exported(of_model):
        if not trained or not (is_weights(path) or is_adapter_file(path)):
            _copy(source, path, folder)
    if trained:
        _write_trained(source, trained, folder)
    optimizer = state_dict_of(_parts(source, "optimizer"), _groups(source))
    write_pickled(folder, OPTIMIZER, optimizer)
    schedule = _schedule_state_dict(_parts(source, "scheduler"), optimizer["param_groups"], state)
    write_pickled(folder, SCHEDULER, schedule)
    if scaler := _parts(source, "scaler"):
        write_pickled(folder, SCALER, json_value(scaler["scaler"]))
    write_pickled(folder, RANDOM, _random_state_dict(_parts(source, "random"), device))
    with open(os.path.join(folder, TRAINER_STATE), "w", encoding="utf-8") as file:
        json.dump(_trainer_state(source, state), file, indent=2, sort_keys=True)


def _write_trained(source: CheckpointFiles, trained: Mapping[str, Part], folder: str) -> None:
    """Write the weights that are trained, which transformers continues with, in place of their averages."""
    parts = [trained.get(part.name, part) for part in source.parts(MODEL)]
    if missing := trained.keys() - {part.name for part in parts}:
        raise ValueError(
            f"it holds averages of the weights of adapters, such as {min(missing)}, and transformers would continue "
            "with them in place of the weights that are trained"
        )
    for file in files_of(MODEL, parts, LARGEST):
        with open(os.path.join(folder, file.path), "wb") as written:
            written.writelines(file.chunks)


def _parts(source: CheckpointFiles, component: str) -> dict[str, Part]:
    return {part.name: part for part in source.parts(component)}


def _groups(source: CheckpointFiles) -> list[list[str]] | None:
    """Return transformers' two parameter groups, with and without weight decay, if hexloop saved one group for them."""
    document = json_value(_parts(source, "optimizer")["param_groups"])
    setup = source.run_setup().get("optimizer") or {}
    if len(document["groups"]) != 1 or not setup.get("by_arguments"):
        return None
    undecayed = frozenset(setup["without_decay"])
    names = document["groups"][0]["params"]
    return [[name for name in names if name not in undecayed], [name for name in names if name in undecayed]]


def _trainer_state(source: CheckpointFiles, state: RunState) -> dict[str, Any]:
    if TRAINER_STATE not in source.files:
        raise ValueError(f"it has no {TRAINER_STATE}")
    found = read_json(read_bytes(source.read(TRAINER_STATE)), finite=False)
    if not isinstance(found, dict):
        raise ValueError(f"{TRAINER_STATE} is not a JSON object")
    found["global_step"], found["best_model_checkpoint"] = state.step, None
    return found


def _copy(source: CheckpointFiles, path: str, folder: str) -> None:
    target = os.path.join(folder, *path.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.writelines(source.read(path))


# Conversion


def _random_state_dict(parts: dict[str, Part], device: str) -> dict[str, Any]:
    """Return the random states that a device exported, as transformers saves them in a single process.

    transformers saves those of some kinds of devices only.
    """
    version, words, gauss = json_value(parts["python"])
    kind, keys, position, has_gauss, cached = json_value(parts["numpy"])
    streams: dict[str, Any] = {
        "python": (version, tuple(words), gauss),
        "numpy": (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached),
        "cpu": decode_state(json_value(parts["torch"])),
    }
    kind = device.partition(":")[0]
    if "device" in parts and kind in DEVICE_STREAMS:
        streams[kind] = decode_state(json_value(parts["device"])).to(torch.uint8)
    return streams


def _schedule_state_dict(
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
        return _plateau(json_value(parts["adaptive"]), rates, state)
    return {
        "base_lrs": [float(group.get("initial_lr", group["lr"])) for group in groups],
        "last_epoch": state.updates,
        "_step_count": state.updates + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": rates,
        "lr_lambdas": [None] * len(groups),
    }


def _plateau(kept: Mapping[str, Any], rates: list[float], state: RunState) -> dict[str, Any]:
    memory = kept["state"]
    if "cooldown_counter" not in memory or "warmup_counter" in memory:
        raise ValueError("transformers cannot load the state of the greedy schedule")
    entries: dict[str, Any] = {
        "num_bad_epochs": memory["num_bad_epochs"],
        "cooldown_counter": memory["cooldown_counter"],
        "last_epoch": kept.get("measured", state.step),
        "_last_lr": rates,
    }
    best = memory["best"]
    return entries if best is None or not math.isfinite(best) else {**entries, "best": best}
