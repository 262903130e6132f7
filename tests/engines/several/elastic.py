"""A script of a run on a changing number of machines; `hexloop launch --nodes 1:2` restarts it at each change."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hexloop import Trainer, TrainerCallback, TrainingArguments
from tests.engines.several.training import Reader, Sentences, padded

STEPS = 20


class Slow(TrainerCallback):
    """Makes steps slow enough for a process to leave between two of them."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(0.2)


class Counting(Trainer):
    """Prints the number of processes, the accumulation, and the samples per step."""

    def get_train_dataloader(self) -> Any:
        args = self.args
        if self.is_world_process_zero():
            print("in", args.world_size, "by", args.gradient_accumulation_steps, "of",
                  self.get_total_train_batch_size(args), flush=True)  # fmt: skip
        return super().get_train_dataloader()


def main(folder: Path, accumulation: int) -> None:
    """Start or resume the run in `folder`/run; at its end its losses are in `folder`/end.json."""
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        str(folder / "run"), max_steps=STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=accumulation,
        logging_steps=1, learning_rate=0.01, save_strategy="steps", save_steps=2, use_cpu=True, disable_tqdm=True,
        report_to=[], ddp_timeout=60,
    )  # fmt: skip
    trainer = Counting(Reader(), arguments, padded, Sentences(48), callbacks=[Slow()])
    trainer.train(resume_from_checkpoint="auto")
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        (folder / "end.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
