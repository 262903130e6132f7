"""The parameters of a trial in a copy of the arguments."""

from __future__ import annotations

import logging
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexloop import ConfigurationError, TrainingArguments, with_hyperparameters
from hexloop.app.notices import TRAINER, TRANSFORMERS
from hexloop.app.search.parameters import plain_parameters, set_hyperparameters


def arguments(folder: Path, **given: Any) -> TrainingArguments:
    return TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **given)


def test_a_copy_is_changed(tmp_path: Path) -> None:
    """The arguments themselves stay, and so do the dictionaries that they hold."""
    args = arguments(tmp_path, lr_scheduler_kwargs={"num_cycles": 1}, lr_scheduler_type="cosine_with_restarts")
    changed = with_hyperparameters(
        args, {"learning_rate": 0.5, "lr_scheduler_kwargs.num_cycles": 3, "per_device_train_batch_size": 2}
    )
    assert (changed.learning_rate, changed.train_batch_size) == (0.5, 2)
    assert changed.lr_scheduler_kwargs == {"num_cycles": 3}
    assert (args.learning_rate, args.per_device_train_batch_size) == (5e-5, 8)
    assert args.lr_scheduler_kwargs == {"num_cycles": 1}


def test_entries_of_several_levels(tmp_path: Path) -> None:
    """A dictionary is made where there is none, and an entry of an object of options is set in a copy of it."""
    args: Any = arguments(tmp_path)
    changed: Any = with_hyperparameters(
        args, {"gradient_checkpointing_kwargs.one.two": 1, "accelerator_config.even_batches": False}
    )
    assert changed.gradient_checkpointing_kwargs == {"one": {"two": 1}}
    assert args.gradient_checkpointing_kwargs is None
    assert (args.accelerator_config.even_batches, changed.accelerator_config.even_batches) == (True, False)


def test_every_problem_is_reported(tmp_path: Path) -> None:
    """Unknown names with the nearest one, values of the wrong type, and entries of what has none."""
    with pytest.raises(ConfigurationError) as raised:
        with_hyperparameters(
            arguments(tmp_path),
            {"learning_rat": 0.1, "seed": 1.5, "num_train_epochs": "many", "seed.entry": 1, "max_steps": 3},
        )
    text = str(raised.value)
    assert "did you mean learning_rate?" in text
    assert "seed=1.5" in text
    assert "num_train_epochs='many'" in text
    assert "has no entry 'entry'" in text
    assert "The search space chose" in text


def test_combinations_are_checked(tmp_path: Path) -> None:
    """What is refused at construction is refused in a trial."""
    with pytest.raises(ConfigurationError, match="bf16"):
        with_hyperparameters(arguments(tmp_path), {"bf16": True, "fp16": True})


def test_during_a_takeover_unknown_names_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And values are cast, as in transformers."""
    args = arguments(tmp_path)
    with caplog.at_level(logging.WARNING, TRAINER):
        set_hyperparameters(args, {"weight_of_something": 1, "seed": 3.7, "learning_rate": 1}, TRANSFORMERS)
    assert (args.seed, args.learning_rate) == (3, 1.0)
    assert "weight_of_something" in caplog.text


def test_attributes_of_subclasses(tmp_path: Path) -> None:
    """What a program sets on its arguments by itself can be searched."""
    args = arguments(tmp_path)
    args.margin = 0.1  # type: ignore[attr-defined]
    assert with_hyperparameters(args, {"margin": 0.5}).margin == 0.5  # type: ignore[attr-defined]
    assert args.margin == 0.1  # type: ignore[attr-defined]


class Kind(Enum):
    ONE = "one"


def test_values_are_recorded_as_they_are() -> None:
    """Numbers of NumPy and torch become Python's; enumerations their values."""
    given = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": Kind.ONE,
        "d": (1, [True, None]),
        "e": {"f": np.bool_(True)},
        "g": torch.tensor(2.5),
    }
    assert plain_parameters(given) == {"a": 0.5, "b": 3, "c": "one", "d": [1, [True, None]], "e": {"f": True}, "g": 2.5}


def test_values_that_cannot_be_recorded() -> None:
    """Every one is named."""
    with pytest.raises(ConfigurationError) as raised:
        plain_parameters({"a": float("inf"), "b": object(), "c": np.zeros(3)})
    assert "not finite" in str(raised.value)
    assert "type object cannot be recorded" in str(raised.value)
    assert "type ndarray cannot be recorded" in str(raised.value)
