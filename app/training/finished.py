"""Which run in a folder has come to its end, so that nobody trains it again by starting it once more.

A checkpoint does not say so: a run may end after its last one (early stopping, or a best model that came before).
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.checkpoints.choosing import runs_in
from hexloop.domain.errors import StorageError
from hexloop.ports.storage import Storage

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

FINISHED = "finished.json"


def note_finished(trainer: Trainer) -> None:
    """Write down that the live run of `trainer` is finished, for as long as it is not to be longer."""
    run, storage = trainer.session.run if trainer.session is not None else None, trainer.adapters.storage
    if run is None or not trainer.is_world_process_zero():
        return
    document = {"run": run.state.run, "step": run.state.step, **_length(trainer.args)}
    try:
        storage.remove(FINISHED)
        storage.write(FINISHED, [f"{json.dumps(document, indent=2)}\n".encode()])
    except StorageError as error:
        warnings.warn(
            f"It could not be written down that the run is finished ({error}); resume_from_checkpoint='auto' will go "
            "on from its last checkpoint.",
            stacklevel=2,
        )


def finished_at(storage: Storage, args: TrainingArguments, run: str | None = None) -> int | None:
    """The step at which `run` (None: the only one in the folder) came to the end that `args` give it.

    None where it did not, or where there are several.
    """
    if FINISHED not in {entry.name for entry in storage.list("")}:
        return None
    try:
        document = json.loads(b"".join(storage.read(FINISHED)))
        same = all(document[name] == value for name, value in _length(args).items())
        name, step = document["run"], int(document["step"])
    except (ValueError, KeyError, TypeError):
        return None  # torn by a crash, or not hexloop's
    if run is None and list(runs_in(storage)) != [name]:
        return None
    return step if same and run in (None, name) else None


def _length(args: TrainingArguments) -> dict[str, float]:
    return {"max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs}
