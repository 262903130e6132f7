"""A run inside an application: driven step by step, and controlled from another thread."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.domain.events import Logged, Paused, StepEnded, TrainEnded


class Curve(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(x), labels)}


def make_trainer(folder: str | Path) -> Trainer:
    points = torch.linspace(-3, 3, 64).unsqueeze(-1)
    rows = [{"x": x, "labels": x.sin()} for x in points]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=200, logging_steps=50, save_strategy="no", learning_rate=0.01
    )
    return Trainer(model=Curve(), args=arguments, train_dataset=rows, loggers=[])


def drive(folder: str | Path) -> list[float]:
    """Drive the run event by event and return the logged losses."""
    trainer, losses = make_trainer(folder), []
    for event in trainer.stream():
        match event:
            case StepEnded(step=10):
                trainer.pause()
            case Paused():
                trainer.resume()  # an application would wait here until it wants to continue
            case Logged(values={"loss": loss}):
                losses.append(loss)
            case TrainEnded(step=step):
                print(f"{step} steps are done")
    return losses


def ask_from_another_thread(folder: str | Path) -> str:
    """Train in a thread, request a save and a stop from this one, and return the name of the checkpoint."""
    trainer = make_trainer(folder)
    trainer.args.max_steps = 1_000_000
    training = threading.Thread(target=trainer.train)
    training.start()
    while trainer.state.global_step < 100:
        time.sleep(0.01)
    name = trainer.request_save().wait()
    trainer.request_stop("enough for today")
    training.join()
    return name


if __name__ == "__main__":
    print(drive("runs/embedding"))
    print(ask_from_another_thread("runs/embedding"))
