"""From a checkpoint of hexloop's to one that the reference library goes on from."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from hexloop.adapters.contents.checkpoint.contents import RUN_SETUP, RUN_STATE, parts_of
from hexloop.adapters.contents.checkpoint.documents import read_document, state_from_chunks
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.trainable.torch.numbering import state_dict_of
from hexloop.app.foreign.names import OPTIMIZER, RANDOM, SCALER, SCHEDULER, STATE
from hexloop.app.foreign.pickled import write_pickled
from hexloop.app.foreign.schedules import foreign_schedule
from hexloop.app.foreign.streams import foreign_streams
from hexloop.app.wiring.storage import is_of_run
from hexloop.domain.checkpoints.selection import open_checkpoint
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_value
from hexloop.domain.state import RunState
from hexloop.ports.state import Part

OWN = frozenset({"training_args.json", "model.json"})
"""Files of the model that mean nothing to the reference library; those of the run it has in a form of its own."""


@frozen
class Source:
    """A checkpoint of hexloop's, verified."""

    storage: LocalStorage
    name: str
    files: Mapping[str, object]

    def open(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """The bytes of one of its files."""
        return self.storage.read(f"{self.name}/{path}", start)

    def parts(self, keeper: str) -> dict[str, Part]:
        """What it holds of a keeper, by name."""
        return {part.name: part for part in parts_of(keeper, self.files, self.open)}

    def document(self, path: str) -> dict[str, Any]:
        """One of its JSON documents."""
        return read_document(path, self.files, self.open)


def export_checkpoint(checkpoint: str | os.PathLike[str], to: str | os.PathLike[str]) -> str:
    """Write a checkpoint of hexloop's as one of the reference library's, `checkpoint-<step>` in the folder `to`.

    Gives its folder, which the reference's Trainer takes for `resume_from_checkpoint` (it warns that there is no
    `training_args.bin`; it needs none). Optimizer, schedule, loss scale and random streams are pickled there, as that
    library reads them so.

    Raises CheckpointError where the checkpoint is not good, holds no more than weights, or holds what the reference
    library has no place for, and where `to` has one of that step already.
    """
    parent, name = os.path.split(os.path.abspath(os.fspath(checkpoint)))
    storage = LocalStorage(parent)
    opened = open_checkpoint(storage, name)
    source = Source(storage, name, opened.manifest.files)
    if RUN_STATE not in source.files or not source.parts("optimizer"):
        raise CheckpointError(f"{checkpoint} holds weights alone, which load with from_pretrained as they are.")
    target = os.path.join(os.fspath(to), f"checkpoint-{opened.manifest.step}")
    if os.path.lexists(target):
        raise CheckpointError(f"You chose to write {target}, which is there already; choose another folder.")
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


def _write(source: Source, folder: str) -> None:
    state = state_from_chunks(source.open(RUN_STATE))
    for path in source.files:
        if path not in OWN and not is_of_run(path):
            _copy(source, path, folder)
    optimizer = state_dict_of(source.parts("optimizer"), _groups(source))
    write_pickled(folder, OPTIMIZER, optimizer)
    write_pickled(folder, SCHEDULER, foreign_schedule(source.parts("scheduler"), optimizer["param_groups"], state))
    if scaler := source.parts("scaler"):
        write_pickled(folder, SCALER, json_value(scaler["scaler"]))
    write_pickled(folder, RANDOM, foreign_streams(source.parts("random")))
    with open(os.path.join(folder, STATE), "w", encoding="utf-8") as file:
        json.dump(_trainer_state(source, state), file, indent=2, sort_keys=True)


def _groups(source: Source) -> list[list[str]] | None:
    """The reference library's two groups, with and without weight decay, where hexloop made one of them."""
    document = json_value(source.parts("optimizer")["param_groups"])
    setup = source.document(RUN_SETUP).get("optimizer", {})
    if len(document["groups"]) != 1 or not setup.get("by_arguments"):
        return None
    undecayed = frozenset(setup["without_decay"])
    names = document["groups"][0]["params"]
    return [[name for name in names if name not in undecayed], [name for name in names if name in undecayed]]


def _trainer_state(source: Source, state: RunState) -> dict[str, Any]:
    if STATE not in source.files:
        raise ValueError(f"it holds no {STATE}")
    found: dict[str, Any] = json.loads(b"".join(source.open(STATE)))
    found["global_step"], found["best_model_checkpoint"] = state.step, None
    return found


def _copy(source: Source, path: str, folder: str) -> None:
    target = os.path.join(folder, *path.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        for chunk in source.open(path):
            file.write(chunk)
