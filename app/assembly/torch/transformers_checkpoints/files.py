"""The files of transformers' checkpoints: how they are recognised, and how the pickled ones are written.

This is the only module that writes pickled files, for an export. `reading` reads them, for an import.
"""

from __future__ import annotations

import os
import shlex
from typing import Any

from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.errors import CheckpointError

WEIGHTS, WEIGHTS_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OPTIMIZER, SCHEDULER, SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
RANDOM, RANDOM_OF_FIRST = "rng_state.pth", "rng_state_0.pth"
ARGUMENTS = "training_args.bin"

SAGEMAKERS = "user_content.pt"
"""A file of the checkpoints that were written with SageMaker's model parallelism."""

DEVICE_STREAMS = ("cuda", "xla", "npu", "hpu", "mlu", "musa")
"""The kinds of devices whose random states transformers saves, each under its name."""

SIGNS = (WEIGHTS, WEIGHTS_INDEX, OPTIMIZER, SCHEDULER, RANDOM, RANDOM_OF_FIRST, ARGUMENTS)
"""Files that only transformers' checkpoints contain; each has some of them."""

WRITTEN_FROM = {
    OPTIMIZER: "optimizer.safetensors, and optimizer in run_state.json",
    SCHEDULER: "updates and scheduler in run_state.json",
    SCALER: "scaler in run_state.json",
    RANDOM: "random in run_state.json",
}
"""Where an export takes the content of each pickled file from."""


def refuse_transformers_checkpoint(folder: str) -> None:
    """Raise CheckpointError, with the command to import it, if `folder` contains a checkpoint of transformers."""
    held = [name for name in SIGNS if os.path.lexists(os.path.join(folder, name))]
    if not held or os.path.lexists(os.path.join(folder, MANIFEST)):
        return
    raise CheckpointError(
        f"You chose to resume from {folder}, but that is a checkpoint of another library: it has {', '.join(held)} "
        f"and no {MANIFEST}. Such files may run code when they are loaded, so hexloop reads them only on request; "
        f"run `hexloop checkpoints import {shlex.quote(folder)} --to OUTPUT_DIR`, and resume from the folder that it "
        "prints."
    )


def write_pickled(folder: str, name: str, value: Any) -> None:
    """Write `value`, made of tensors, arrays, numbers, strings and containers, as transformers reads it."""
    import torch

    torch.save(value, os.path.join(folder, name))  # noqa: TID251 - the format of transformers, on explicit request
