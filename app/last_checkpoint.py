"""The newest checkpoint of a folder, by its name."""

from __future__ import annotations

import os

from hexloop.app.storages import as_location, is_elsewhere, joined, storage_for
from hexloop.domain.checkpoints.names import checkpoint_name, step_of


def get_last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The path or URL of the folder "checkpoint-<step>" with the highest step in `folder`; None where there is none.

    Only names are looked at; what is in it is verified where it is loaded. Raises FileNotFoundError where a folder of
    this machine is not there.
    """
    folder = os.fspath(folder)
    if is_elsewhere(folder):
        names = [entry.name for entry in storage_for(folder).list("") if entry.is_folder]
    else:
        names = [entry.name for entry in os.scandir(as_location(folder)) if entry.is_dir()]
    steps = [step for step in map(step_of, names) if step is not None]
    return joined(folder, checkpoint_name(max(steps))) if steps else None
