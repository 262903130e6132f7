"""The files of a checkpoint of the reference library, and how a folder with them is recognised."""

from __future__ import annotations

import os
import shlex

from hexloop.domain.checkpoints.names import MANIFEST
from hexloop.domain.errors import CheckpointError

WEIGHTS, WEIGHTS_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OPTIMIZER, SCHEDULER, SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
RANDOM, RANDOM_OF_FIRST = "rng_state.pth", "rng_state_0.pth"
STATE, ARGUMENTS = "trainer_state.json", "training_args.bin"

SIGNS = (WEIGHTS, WEIGHTS_INDEX, OPTIMIZER, SCHEDULER, RANDOM, RANDOM_OF_FIRST, ARGUMENTS)
"""Files of which the reference library's checkpoints have some, and hexloop's none."""


def refuse_foreign(folder: str) -> None:
    """Raise CheckpointError, with the command that reads it, where `folder` holds a checkpoint of that library."""
    held = [name for name in SIGNS if os.path.lexists(os.path.join(folder, name))]
    if not held or os.path.lexists(os.path.join(folder, MANIFEST)):
        return
    raise CheckpointError(
        f"You chose to go on from {folder}, but that is a checkpoint of another library: it has {', '.join(held)} "
        f"and no {MANIFEST}, and such files may run code when they are loaded, so hexloop reads them only where you "
        f"ask for it; run `hexloop checkpoints import {shlex.quote(folder)} --to OUTPUT_DIR`, and go on from the "
        "folder that it names."
    )
