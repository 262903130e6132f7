"""Classify the 1,797 handwritten digits of scikit-learn (8 by 8 pixels) with a small convolutional network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from hexloop import EvalPrediction, TrainerCallback, TrainerControl, TrainerState

CLASSES = 10


class Digits:
    """A map-style data set of images: `pixels` (1, 8, 8) between 0 and 1, `labels` () from 0 to 9."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"pixels": self.pixels[index], "labels": self.labels[index]}


def train_split(split_seed: int = 0) -> Digits:
    """Return four fifths of the images."""
    return _splits(split_seed)[0]


def held_out_split(split_seed: int = 0) -> Digits:
    """Return the other fifth, with the same distribution of digits."""
    return _splits(split_seed)[1]


def _splits(seed: int) -> tuple[Digits, Digits]:
    scans, labels = load_digits(return_X_y=True)
    parts = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=seed)
    pixels = torch.tensor(scans / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    train, held_out = (Digits(pixels[part], torch.tensor(labels[part])) for part in parts)
    return train, held_out


class ConvolutionalNet(nn.Module):
    """Four convolutions, the last two on half the resolution with twice the channels, and one linear layer."""

    def __init__(self, width: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _convolution(1, width),
            _convolution(width, width),
            nn.MaxPool2d(2),
            _convolution(width, 2 * width),
            _convolution(2 * width, 2 * width),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(dropout),
            nn.Linear(2 * width * 2 * 2, CLASSES),
        )

    def forward(self, pixels: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Logits (rows, 10) for pixels (rows, 1, 8, 8), and their mean cross entropy in nats where labels are given."""
        logits: Tensor = self.layers(pixels)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _convolution(channels_in: int, channels_out: int) -> nn.Module:
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.ReLU())


def accuracy(evaluated: EvalPrediction) -> dict[str, float]:
    """Return the accuracy."""
    return {"accuracy": float((evaluated.predictions.argmax(axis=-1) == evaluated.label_ids).mean())}


class Pictures(TrainerCallback):
    """Draws confusion.png and losses.png next to the checkpoints when the run is over."""

    def __init__(self, held_out: Digits) -> None:
        self.held_out = held_out

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        figures = {
            "confusion.png": confusion_figure(confusion(kwargs["model"], self.held_out)),
            "losses.png": loss_figure(state.log_history),
        }
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=150)
            print(folder / name)


@torch.no_grad()
def confusion(model: nn.Module, scans: Digits) -> Tensor:
    """Return the confusion matrix: counts (10, 10) of digits (row) predicted as digits (column)."""
    device = next(model.parameters()).device
    was_training = model.training
    read_as = model.eval()(scans.pixels.to(device))["logits"].argmax(dim=-1).cpu()
    model.train(was_training)
    return torch.bincount(scans.labels * CLASSES + read_as, minlength=CLASSES * CLASSES).view(CLASSES, CLASSES)


def confusion_figure(counts: Tensor) -> Figure:
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(counts.numpy(), cmap="Blues")
    for row, column in torch.nonzero(counts).tolist():
        color = "white" if row == column else "black"
        axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", color=color)
    right = int(counts.diagonal().sum())
    axes.set(xlabel="read as", ylabel="digit", title=f"{right} of {int(counts.sum())} held-out scans read rightly")
    axes.set(xticks=range(CLASSES), yticks=range(CLASSES))
    return figure


def loss_figure(log_history: Sequence[Mapping[str, float]]) -> Figure:
    """Plot training and evaluation losses over the epochs, on a logarithmic scale."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for key, label in (("loss", "training"), ("eval_loss", "held out")):
        logged = [logs for logs in log_history if key in logs]
        axes.plot([logs["epoch"] for logs in logged], [logs[key] for logs in logged], marker=".", label=label)
    axes.set(xlabel="epoch", ylabel="loss (nats)", yscale="log")
    axes.legend()
    return figure
