"""Resumes runs with adapters in a process of its own: reads one JSON document a line, and answers each with another.

`python -m tests.end_to_end.small.resuming`; a document names the kind of adapters, the folder of the base, and the
checkpoint. The answer has a digest of all weights at the end of the run, and its last logged loss.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.end_to_end.small.adapters import KINDS, SAVING, adapted, tiny_llama, token_rows
from tests.end_to_end.small.trainers import small_trainer


def digest_of(model: Any) -> str:
    """Return a digest of all tensors of a model."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def losses_of(trainer: Any) -> list[float]:
    """Return the losses that a run has logged, the last three."""
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-3:]


def trainer_of(kind: str, base: Path, folder: Path, **given: Any) -> Any:
    """Return a Trainer of a kind of adapters."""
    parts = {"model": adapted(KINDS[kind], tiny_llama(base)), "train_dataset": token_rows(32)}
    return small_trainer(folder, parts=parts, **{**SAVING, **given})


def main() -> None:
    """Answer every line of the input."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            trainer = trainer_of(asked["kind"], Path(asked["base"]), Path(folder))
            trainer.train(resume_from_checkpoint=asked["checkpoint"])
            print(json.dumps({"digest": digest_of(trainer.model), "losses": losses_of(trainer)}), flush=True)


if __name__ == "__main__":
    main()
