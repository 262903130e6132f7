"""The arguments of averages of weights."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop import TrainingArguments
from hexloop.domain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ema_decay": 1.0}, "it must be at least 0 and less than 1"),
        ({"ema_decay": -0.1}, "it must be at least 0 and less than 1"),
        ({"ema_decay": 0.9, "ema_start_step": 2.5}, "values from 1 on are numbers of steps"),
        ({"ema_decay": 0.9, "ema_update_every": 0}, "ema_update_every"),
        ({"ema_decay": 0.9, "ema_weights": "both"}, "choose 'instead' or 'beside'"),
        ({"ema_weights": "beside"}, "there are no averages without ema_decay"),
        ({"ema_start_step": 3}, "there are no averages without ema_decay"),
        ({"ema_decay": 0.9, "reproduce": "transformers"}, "transformers' Trainer keeps no averages"),
    ],
)
def test_values_that_are_refused(given: dict[str, Any], problem: str) -> None:
    """On construction, with the remedy."""
    with pytest.raises(ConfigurationError, match=problem):
        TrainingArguments("out", **given)


def test_a_start_is_a_step_or_a_ratio() -> None:
    """From 1 on, a whole number."""
    assert TrainingArguments("out", ema_decay=0.9, ema_start_step=10.0).ema_start_step == 10
    assert TrainingArguments("out", ema_decay=0.9, ema_start_step=0.25).ema_start_step == 0.25
