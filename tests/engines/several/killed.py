"""A script of several processes that may be killed at any time; a launcher restarts it."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from hexloop import Trainer, TrainerCallback, TrainingArguments
from tests.end_to_end.small.trainers import history
from tests.engines.killed_run import Net, Noisy, digests


class NotesTheWait(TrainerCallback):
    """Adds the seconds from the start of this process's run, whose other processes it waits for, to a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._began = file, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        with self._file.open("a") as notes:
            notes.write(f"{time.monotonic() - self._began:.3f}\n")


def main(folder: Path, steps: int, width: int) -> None:
    """Start or resume the run in `folder`/run."""
    warnings.filterwarnings("ignore", "The run that resumes from")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments = TrainingArguments(
        str(folder / "run"), max_steps=steps, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        per_device_eval_batch_size=4, logging_steps=3, eval_strategy="steps", eval_steps=5, save_strategy="steps",
        save_steps=2, save_total_limit=2, learning_rate=1e-3, use_cpu=True, disable_tqdm=True, report_to=[],
        ddp_find_unused_parameters=False, ddp_bucket_cap_mb=1,
    )  # fmt: skip
    wait = NotesTheWait(folder / "waits.txt")
    trainer = Trainer(Net(width), arguments, train_dataset=Noisy(42), eval_dataset=Noisy(9), callbacks=[wait])
    trainer.train(resume_from_checkpoint="auto")
    assert type(trainer.model_wrapped).__name__ == "DistributedDataParallel"
    assert arguments.world_size == int(os.environ["WORLD_SIZE"]) > 1
    if arguments.process_index == 0:
        end = {"weights": digests(trainer.model), "history": history(trainer)}
        (folder / "end.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
