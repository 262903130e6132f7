"""A Trainer accepts transformers' TrainingArguments."""

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


def test_the_run_matches_one_with_hexloop_s_arguments(tmp_path: Path) -> None:
    """Weights and history are those of the same keyword arguments; `trainer.args` is hexloop's class."""
    theirs = trained(transformers.TrainingArguments(str(tmp_path / "theirs"), **GIVEN))
    ours = trained(hexloop.TrainingArguments(str(tmp_path / "ours"), **GIVEN))

    assert type(theirs.args) is hexloop.TrainingArguments
    assert theirs.args.output_dir == str(tmp_path / "theirs")
    assert same_weights(weights(theirs), weights(ours))
    assert history(theirs) == history(ours)


def test_other_types_of_arguments_are_refused() -> None:
    """The error says which types a Trainer accepts."""
    with pytest.raises(hexloop.ConfigurationError, match="pass TrainingArguments"):
        hexloop.Trainer(net(), "out")  # type: ignore[arg-type]
