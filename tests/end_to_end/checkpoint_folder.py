"""A small checkpoint on disk, and how damaged copies of it are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import HexloopError
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

STEP = 2
NAME = f"checkpoint-{STEP}"


def make_checkpoint(folder: Path) -> Path:
    """Save a checkpoint of the small model after two steps with AdamW; return its folder."""
    small_trainer(folder / "made", max_steps=STEP, save_strategy="steps", save_steps=STEP).train()
    return folder / "made" / NAME


def copy_of(checkpoint: Path, folder: Path) -> Path:
    """Copy the checkpoint to a folder of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkpoint, folder / NAME, symlinks=True)
    return folder / NAME


def refused_by_verify(checkpoint: Path) -> str:
    """Return the error raised when verification refuses the checkpoint."""
    with pytest.raises(HexloopError) as raised:
        verify(LocalStorage(checkpoint.parent), checkpoint.name)
    return str(raised.value)


def refused_by_resume(checkpoint: Path, output: Path) -> str:
    """Return the error raised when the run cannot resume from the checkpoint; its weights have not changed."""
    trainer = small_trainer(output, max_steps=STEP + 1)
    before = weights(trainer)
    with pytest.raises(HexloopError) as raised:
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert same_weights(weights(trainer), before)
    return str(raised.value)
