"""Small runs of either library, and what code and tests of users read from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

import hexloop

LIBRARIES = {"transformers": transformers, "hexloop": hexloop}

Observation = Callable[[ModuleType, Path], Any]


class Classifier(nn.Module):
    """(batch, 4) -> (batch, 3), with the same weights every time."""

    main_input_name = "x"

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Any, labels: Any = None) -> Any:
        logits = self.second(torch.tanh(self.first(x)))
        return {"logits": logits} if labels is None else {"loss": self.loss(logits, labels), "logits": logits}

    def loss(self, logits: Any, labels: Any) -> Any:
        return nn.functional.cross_entropy(logits, labels)


def samples(count: int) -> list[dict[str, Any]]:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return [{"x": each, "labels": (each.sum() > 0).long()} for each in x]


def arguments(library: ModuleType, folder: Path, **given: Any) -> Any:
    """Return arguments of a quiet run in the order of the data, with the loss weights of transformers."""
    own = {"loss_weighting": "reference"} if issubclass(library.TrainingArguments, hexloop.TrainingArguments) else {}
    quiet = {
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 1,
        "logging_steps": 2,
        "train_sampling_strategy": "sequential",
    }
    return library.TrainingArguments(**{"output_dir": str(folder), **quiet, **own, **given})


def trainer(
    library: ModuleType, folder: Path, kind: Any = None, parts: dict[str, Any] | None = None, **given: Any
) -> Any:
    chosen = {"train_dataset": samples(20), "eval_dataset": samples(7), **(parts or {})}
    if "model_init" not in chosen:
        chosen.setdefault("model", Classifier())
    return (kind or library.Trainer)(args=arguments(library, folder, **given), **chosen)


def trained(
    library: ModuleType, folder: Path, kind: Any = None, parts: dict[str, Any] | None = None, **given: Any
) -> Any:
    """Return a Trainer after its run."""
    made = trainer(library, folder, kind, parts, **given)
    made.result = made.train()
    return made


def plain(value: Any) -> Any:
    """Return a value without measurements and folders, with rounded numbers, and arrays as types and shapes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, dict):
        measured = ("runtime", "per_second", "preparation_time", "total_flos")
        return {name: "measured" if str(name).endswith(measured) else plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        return [str(value.dtype), list(value.shape)]
    if isinstance(value, float):
        return round(value, 4) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        named = Path(value).name
        return "folder" if "/" in value and named in LIBRARIES else named if "/" in value else value
    return value if isinstance(value, int | bool | None) else type(value).__name__


def assert_same(observe: Observation, folder: Path) -> Any:
    """Both libraries show the same; return it."""
    theirs, ours = (plain(observe(library, folder / name)) for name, library in LIBRARIES.items())
    assert ours == theirs
    return ours
