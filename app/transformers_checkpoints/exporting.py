"""Export of hexloop's checkpoints in the format of transformers."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import Any

from hexloop.app.transformers_checkpoints.conversion import random_state_dict, schedule_state_dict
from hexloop.app.transformers_checkpoints.files import OPTIMIZER, RANDOM, SCALER, SCHEDULER, STATE, write_pickled
from hexloop.app.wiring.checkpoint_conversion import optimizer_state_dict
from hexloop.app.wiring.checkpoint_files import CheckpointFiles, is_run_file
from hexloop.app.wiring.storage import storage_for
from hexloop.domain.checkpoints.selection import open_checkpoint
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_value
from hexloop.domain.state import RunState
from hexloop.ports.state import Part

NOT_COPIED = frozenset({"training_args.json", "model.json"})
"""Files of the model that transformers does not use."""


def export_checkpoint(checkpoint: str | os.PathLike[str], to: str | os.PathLike[str]) -> str:
    """Write a checkpoint of hexloop in transformers' format, as `checkpoint-<step>` in the folder `to`.

    Returns its folder, which transformers' Trainer accepts as `resume_from_checkpoint` (it warns about the missing
    `training_args.bin`, which it does not need). Optimizer, schedule, loss scale and random states are pickled, because
    transformers reads them so.

    Raises CheckpointError if the checkpoint is damaged, contains only weights or state that transformers cannot load,
    and if `to` already contains a checkpoint of that step.
    """
    parent, name = os.path.split(os.path.abspath(os.fspath(checkpoint)))
    storage = storage_for(parent)
    manifest = open_checkpoint(storage, name).manifest
    source = CheckpointFiles(storage, name, manifest.files)
    if not source.has_run_state or not source.parts("optimizer"):
        raise CheckpointError(f"{checkpoint} contains only weights, which from_pretrained loads as they are.")
    target = os.path.join(os.fspath(to), f"checkpoint-{manifest.step}")
    if os.path.lexists(target):
        raise CheckpointError(f"You chose to write {target}, but it exists already; choose another folder.")
    os.makedirs(os.fspath(to), exist_ok=True)
    staging = tempfile.mkdtemp(prefix=".unfinished-", dir=os.fspath(to))
    try:
        _write(source, staging)
        os.chmod(staging, 0o755)
        os.rename(staging, target)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint} cannot be exported: {error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _write(source: CheckpointFiles, folder: str) -> None:
    state = source.run_state()
    for path in source.files:
        if path not in NOT_COPIED and not is_run_file(path):
            _copy(source, path, folder)
    optimizer = optimizer_state_dict(_parts(source, "optimizer"), _groups(source))
    write_pickled(folder, OPTIMIZER, optimizer)
    schedule = schedule_state_dict(_parts(source, "scheduler"), optimizer["param_groups"], state)
    write_pickled(folder, SCHEDULER, schedule)
    if scaler := _parts(source, "scaler"):
        write_pickled(folder, SCALER, json_value(scaler["scaler"]))
    write_pickled(folder, RANDOM, random_state_dict(_parts(source, "random")))
    with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:
        json.dump(_trainer_state(source, state), file, indent=2, sort_keys=True)


def _parts(source: CheckpointFiles, component: str) -> dict[str, Part]:
    return {part.name: part for part in source.parts(component)}


def _groups(source: CheckpointFiles) -> list[list[str]] | None:
    """Return transformers' two parameter groups, with and without weight decay, if hexloop saved one group for them."""
    document = json_value(_parts(source, "optimizer")["param_groups"])
    setup = source.run_setup().get("optimizer", {})
    if len(document["groups"]) != 1 or not setup.get("by_arguments"):
        return None
    undecayed = frozenset(setup["without_decay"])
    names = document["groups"][0]["params"]
    return [[name for name in names if name not in undecayed], [name for name in names if name in undecayed]]


def _trainer_state(source: CheckpointFiles, state: RunState) -> dict[str, Any]:
    if STATE not in source.files:
        raise ValueError(f"it has no {STATE}")
    found: dict[str, Any] = json.loads(b"".join(source.read(STATE)))
    found["global_step"], found["best_model_checkpoint"] = state.step, None
    return found


def _copy(source: CheckpointFiles, path: str, folder: str) -> None:
    target = os.path.join(folder, *path.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        for chunk in source.read(path):
            file.write(chunk)
