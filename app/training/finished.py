"""Which run in a folder has come to its end, so that nobody trains it again by starting it once more.

A checkpoint does not say so: a run may end after its last one (early stopping, or a best model that came before). What
is noted is therefore the checkpoint that it ended with: whoever goes on from any other has something left to do.
"""

from __future__ import annotations

import json
import warnings
from contextlib import suppress

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.checkpoints.reading import read_manifest, verify
from hexloop.domain.checkpoints.selection import from_newest, publish_staged, readable_manifests
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.state import RunState
from hexloop.ports.storage import Storage

FINISHED = "finished.json"


def note_finished(storage: Storage, args: TrainingArguments, state: RunState, last: str | None) -> None:
    """Record that a run is finished, unless its arguments are changed later to make it longer.

    last: the newest checkpoint of the run.
    """
    try:
        ended_with = None if last is None else read_manifest(storage, last).session
        document = {"run": state.run, "step": state.step, "checkpoint": last, "session": ended_with}
        storage.remove(FINISHED)
        storage.write(FINISHED, [f"{json.dumps({**document, **_length(args)}, indent=2)}\n".encode()])
    except (CheckpointError, StorageError) as error:
        warnings.warn(
            f"It could not be written down that the run is finished ({error}); resume_from_checkpoint='auto' will go "
            "on from its last checkpoint.",
            stacklevel=2,
        )


def finished_at(storage: Storage, args: TrainingArguments, chosen: str | None = None) -> int | None:
    """The step at which a run came to the end that `args` give it, if it ended with the checkpoint `chosen`.

    chosen: None for the good one that the only run in the storage would go on from. None where the run did not end
    with it, or where there are several runs.
    """
    if FINISHED not in {entry.name for entry in storage.list("")}:
        return None
    try:
        document = json.loads(b"".join(storage.read(FINISHED)))
        same = all(document[name] == value for name, value in _length(args).items())
        ended_with = document["run"], document["checkpoint"], document["session"]
        step = int(document["step"])
    except (ValueError, KeyError, TypeError):
        return None  # torn by a crash, or not hexloop's
    name = chosen or _next(storage)
    if not same or name is None:
        return None
    try:
        manifest = read_manifest(storage, name)
        if (manifest.run, name, manifest.session) != ended_with:
            return None
        if chosen is None:
            verify(storage, name)
    except CheckpointError:
        return None
    return step


def _next(storage: Storage) -> str | None:
    """The checkpoint that the only run in the storage would go on from, if it is good; None where there are several."""
    with suppress(StorageError):
        publish_staged(storage)
    manifests = readable_manifests(storage)
    alone = len({manifest.run for manifest in manifests.values()}) == 1
    return next(from_newest(manifests)) if alone else None


def _length(args: TrainingArguments) -> dict[str, float]:
    return {"max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs}
