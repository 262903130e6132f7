"""Fits a line with transformers' Trainer, as a user's script does; its options are those of TrainingArguments."""

# A user's script, without types.
# mypy: ignore-errors

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments, set_seed


@dataclass
class ScriptArguments:
    random_order: bool = field(default=False, metadata={"help": "whether to shuffle the samples"})
    write: str = field(default="", metadata={"help": "a further file to write"})
    fail_at: int = field(default=-1, metadata={"help": "the step after which the script's callback raises"})


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        logits = self.layer(x).squeeze(-1)
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Fails(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise ArithmeticError("the script's own error")


def compute_metrics(prediction):
    return {"absolute": float(abs(prediction.predictions - prediction.label_ids).mean())}


def main():
    options, args = HfArgumentParser((ScriptArguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(args.seed)
    inputs = torch.randn(24, 4)
    data = [{"x": x, "labels": x.sum()} for x in inputs]
    kind = Trainer if options.random_order else InOrder
    trainer = kind(
        model=Line(),
        args=args,
        train_dataset=data[:16],
        eval_dataset=data[16:],
        compute_metrics=compute_metrics,
        callbacks=[Fails(options.fail_at)],
    )
    result = trainer.train()
    trainer.save_model()
    metrics = trainer.evaluate()
    predictions = trainer.predict(data[16:]).predictions
    if options.write:
        Path(options.write).write_text("done")
    if trainer.is_world_process_zero():
        Path(args.output_dir, "summary.txt").write_text(f"{result.global_step} {predictions.shape[0]}\n")
        library = next(base.__module__ for base in type(trainer).__mro__ if base.__name__ == "Trainer")
        print("trained with", library.split(".")[0], "in", os.environ.get("WORLD_SIZE", "1"), sorted(metrics)[:2])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
