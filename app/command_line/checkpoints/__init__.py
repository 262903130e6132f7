"""`hexloop checkpoints`: checkpoints given by path or URL, and the run state that they contain."""

from __future__ import annotations

from contextlib import suppress

from attrs import frozen

from hexloop.app.wiring.checkpoint_files import CheckpointFiles
from hexloop.app.wiring.storage import is_missing, split_location, storage_for
from hexloop.domain.checkpoints.manifest import MANIFEST, checkpoint_name, is_set_aside, marks_unfinished, step_of
from hexloop.domain.checkpoints.reading import checkpoint_steps, read_manifest
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.domain.state import RunState
from hexloop.ports.signatures import Signatures
from hexloop.ports.storage import Storage

OPTIONAL_DIGEST = "blake2b"
"""The digest that a storage computes only if it is told to."""

PREFIX = "eval_"
NO_METRICS = ("runtime", "per_second")
"""Suffixes of the names of time readings."""


@frozen
class CheckpointLocation:
    """A checkpoint as the user named it (`given`): its storage, and its name in it."""

    given: str
    storage: Storage
    name: str


def open_folder(given: str, signatures: Signatures | None = None) -> Storage:
    """Return the storage of a folder of checkpoints, with a key if one is given.

    Raises ConfigurationError if the folder does not exist on this machine.
    """
    refuse_missing([given])
    storage = storage_for(given, signatures=signatures)
    if signatures is not None:
        return storage
    return _with_digest_of(given, storage, [checkpoint_name(step) for step in checkpoint_steps(storage)])


def open_checkpoints(given: list[str], signatures: Signatures | None = None) -> list[CheckpointLocation]:
    """Locate checkpoints, on storages with a key if one is given.

    Raises ConfigurationError with all folders that do not exist on this machine.
    """
    refuse_missing(given)
    locations = []
    for each in given:
        parent, name = split_location(each)
        storage = storage_for(parent, signatures=signatures)
        storage = storage if signatures is not None else _with_digest_of(parent, storage, [name])
        locations.append(CheckpointLocation(each, storage, name))
    return locations


def refuse_missing(given: list[str]) -> None:
    """Raise ConfigurationError for folders of this machine that do not exist."""
    if missing := list(filter(is_missing, given)):
        raise ConfigurationError(f"You chose {each}, but there is no such folder; check its name." for each in missing)


def is_checkpoint(given: str) -> bool:
    """Return whether a folder is meant as a checkpoint, and not as a folder of checkpoints."""
    name = split_location(given)[1]
    if step_of(name) is not None or is_set_aside(name) or marks_unfinished(name):
        return True
    return MANIFEST in {entry.name for entry in storage_for(given).list("")}


def read_state(storage: Storage, name: str) -> RunState | None:
    """Return the run state in a checkpoint; None if it has none or this version of hexloop cannot read it."""
    try:
        return CheckpointFiles(storage, name, {}).run_state()
    except (CheckpointError, StorageError):
        return None


def metric_of(state: RunState) -> tuple[str, float] | None:
    """Return name and value of a metric evaluated at the state's step; None if there was no evaluation.

    It is the metric by which the best checkpoint is chosen, if known, else the loss, else the first one.
    """
    measured = _metrics(state, state.step)
    at_best = {} if state.best_step is None else _metrics(state, state.best_step)
    best = next((name for name, value in at_best.items() if value == state.best_metric), "")
    for name in (best, "eval_loss", *measured):
        if name in measured:
            return name, measured[name]
    return None


def best_of(state: RunState) -> str | None:
    """Return the name of the checkpoint with the best evaluation; None if there is none."""
    return state.best_checkpoint or (None if state.best_step is None else checkpoint_name(state.best_step))


def _with_digest_of(location: str, storage: Storage, names: list[str]) -> Storage:
    """Return a storage that computes the kind of digest of the first checkpoint whose manifest is readable."""
    for name in names:
        with suppress(CheckpointError, StorageError):
            digests = [stored.digest.partition(":")[0] for stored in read_manifest(storage, name).files.values()]
            return storage_for(location, OPTIONAL_DIGEST) if OPTIONAL_DIGEST in digests else storage
    return storage


def _metrics(state: RunState, step: int) -> dict[str, float]:
    return {
        name: value
        for entry in state.history
        if entry.get("step") == step
        for name, value in entry.items()
        if name.startswith(PREFIX) and not name.endswith(NO_METRICS) and isinstance(value, int | float)
    }
