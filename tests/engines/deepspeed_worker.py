"""Trains under DeepSpeed as one of several processes: `python -m tests.engines.deepspeed_worker JOB`.

JOB is JSON: `arguments` of TrainingArguments, and `phases`. Each phase creates a Trainer with a new model and trains it
(`resume` from a checkpoint; `output`, a folder of its own; `again`, the number of calls of train; `trained`, the only
parameters to train).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from hexloop import Trainer, TrainerCallback, TrainingArguments

ROWS, FEATURES, CLASSES = 53, 7, 3


class Points(Dataset[dict[str, Tensor]]):
    def __init__(self, rows: int = ROWS) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(rows, FEATURES, generator=generator)
        self.labels = torch.randint(0, CLASSES, (rows,), generator=generator)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"features": self.features[index], "labels": self.labels[index]}


class Classifier(nn.Module):
    """Odd sizes, which the number of processes does not divide, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(FEATURES, 13)
        self.norm = nn.LayerNorm(13)
        self.last = nn.Linear(13, CLASSES)
        self.register_buffer("scale", torch.tensor([1.5]))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.last(torch.tanh(self.norm(self.first(features)))) * self.scale.to(features.dtype)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.float(), labels), "logits": logits}


class Programs(TrainerCallback):
    """Records the names of programs started during training."""

    def __init__(self) -> None:
        self.started: list[str] = []
        sys.addaudithook(self._heed)

    def _heed(self, event: str, of: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self.started.append(str(of[0]))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started.clear()


def train(output: str, arguments: dict[str, Any], resume: str | bool | None = None, model: Any = None) -> Trainer:
    """Train a new model."""
    chosen: dict[str, Any] = {
        "use_cpu": True,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 3,
        "max_steps": 20,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "weight_decay": 0.1,
        "report_to": [],
        "disable_tqdm": True,
    }
    trainer = Trainer(
        model=Classifier() if model is None else model,
        args=TrainingArguments(output, **{**chosen, **arguments}),
        train_dataset=Points(),
        eval_dataset=Points(17),
        callbacks=[Programs()],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def report(trainer: Trainer) -> dict[str, Any]:
    """Return what the tests check."""
    engine: Any = trainer.model_wrapped
    (programs,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, Programs))
    return {
        "engine": type(engine).__name__,
        "world_size": trainer.args.world_size,
        "stage": engine.zero_optimization_stage() if hasattr(engine, "zero_optimization_stage") else None,
        "optimizer": type(engine.optimizer).__name__ if hasattr(engine, "optimizer") else None,
        "programs": programs.started,
        "parameters": trainer.get_num_trainable_parameters(),
        "rates": trainer.get_learning_rates(),
        "log": list(trainer.state.log_history),
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    for phase in job["phases"]:
        model = Classifier()
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name in phase.get("trained", [name])
        trainer = train(phase["output"], {**job["arguments"], **phase.get("arguments", {})}, phase.get("resume"), model)
        for _ in range(1, phase.get("again", 1)):
            trainer.train()
        trainer.save_model(os.path.join(phase["output"], "model"))
        reported = report(trainer)
        reported["evaluated"] = trainer.evaluate()["eval_loss"]
        if trainer.is_world_process_zero():
            Path(phase["output"], "report.json").write_text(json.dumps(reported), encoding="utf-8")
    trainer.accelerator.wait_for_everyone()
    sys.stdout.flush()
    os._exit(0)  # threads of gloo sometimes abort the exit of the interpreter


if __name__ == "__main__":
    main()
