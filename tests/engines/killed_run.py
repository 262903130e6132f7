"""A training run in a process of its own that saves almost constantly and may be killed at any time."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from hexloop import Trainer, TrainingArguments
from tests.end_to_end.small.trainers import history

FEATURES = 32
BYTES_PER_PARAMETER = 12
"""A weight and its two moments, in float32."""


@frozen
class Job:
    """A run of `steps` optimizer steps; `width` sets the size of the model, and so of a checkpoint.

    start_method: of the workers. A fork server would import torch again in each process.
    """

    width: int
    steps: int
    seed: int = 0
    start_method: Literal["fork", "spawn", "forkserver"] = "fork"

    @staticmethod
    def width_for(size: int) -> int:
        """Return the width at which weights and moments take `size` bytes or slightly more."""
        return math.isqrt(size // BYTES_PER_PARAMETER) + 1


class Net(nn.Module):
    """(batch, 32) -> (batch, 1), through a hidden layer of width x width weights, with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Dropout(0.2), nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.2),
            nn.Linear(width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": mse_loss(logits, labels), "logits": logits}


class Noisy(Dataset[dict[str, Tensor]]):
    """Samples to which each of the three random generators adds noise on every read."""

    def __init__(self, count: int) -> None:
        self.x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        noise = torch.randn(FEATURES) + float(np.random.rand()) + random.random()
        return {"x": self.x[index] + 0.1 * noise, "labels": self.x[index].sum().reshape(1)}


def make_trainer(folder: Path, job: Job) -> Trainer:
    """Eleven batches per epoch and two per step, so that the last step of an epoch has one; saves every other step."""
    torch.manual_seed(job.seed)
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=job.steps,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        gradient_accumulation_steps=2,
        dataloader_num_workers=2,
        dataloader_multiprocessing_context=job.start_method,
        dataloader_persistent_workers=True,
        learning_rate=1e-3,
        warmup_steps=3,
        lr_scheduler_type="cosine",
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=5,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=2,
        seed=job.seed,
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    return Trainer(model=Net(job.width), args=args, train_dataset=Noisy(42), eval_dataset=Noisy(8), loggers=[])


def live(folder: Path, job: Job, temporary: str) -> None:
    """Start or resume the run in `folder`/run, train to the end, and write the result to `folder`/end.json.

    Warnings are errors: nothing that a killed process leaves may cause one. The process and its workers form a process
    group. temporary: the folder for temporary files.
    """
    os.setsid()
    errors = os.open(folder / "errors.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(errors, 2)
    tempfile.tempdir = temporary
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    trainer = make_trainer(folder / "run", job)
    trainer.train("auto")
    end = {"weights": digests(trainer.model), "history": history(trainer)}
    (folder / "end.json").write_text(json.dumps(end))


def digests(model: Any) -> dict[str, str]:
    """Return a digest of the bytes of each tensor of a model."""
    return {
        name: hashlib.blake2b(tensor.detach().contiguous().numpy().tobytes(), digest_size=16).hexdigest()
        for name, tensor in model.state_dict().items()
    }
