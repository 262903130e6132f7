"""A Trainer takes transformers' own arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import hexloop
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import DEFAULTS, history, same_weights, weights

GIVEN: dict[str, Any] = {**DEFAULTS, "eval_strategy": "steps", "eval_steps": 2, "warmup_steps": 0.5, "optim": "sgd"}


def trained(args: Any) -> hexloop.Trainer:
    trainer = hexloop.Trainer(net(), args, train_dataset=rows(16), eval_dataset=rows(8), loggers=[])
    trainer.train()
    return trainer


def test_the_run_is_that_of_hexloop_s_arguments(tmp_path: Path) -> None:
    """Weights and history are those of the same keywords; the Trainer's arguments are hexloop's."""
    theirs = trained(transformers.TrainingArguments(str(tmp_path / "theirs"), **GIVEN))
    ours = trained(hexloop.TrainingArguments(str(tmp_path / "ours"), **GIVEN))

    assert type(theirs.args) is hexloop.TrainingArguments
    assert theirs.args.output_dir == str(tmp_path / "theirs")
    assert same_weights(weights(theirs), weights(ours))
    assert history(theirs) == history(ours)


def test_what_is_no_arguments_is_refused() -> None:
    """A Trainer given anything else says what it takes."""
    with pytest.raises(hexloop.ConfigurationError, match="a Trainer takes TrainingArguments"):
        hexloop.Trainer(net(), "out")  # type: ignore[arg-type]
