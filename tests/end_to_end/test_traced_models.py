"""jit_mode_eval: the model is traced with the first batch, and gives the results that it gives otherwise."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.end_to_end.small.models import Net, rows
from tests.end_to_end.small.trainers import small_trainer

pytestmark = pytest.mark.filterwarnings("ignore:jit_mode_eval is an argument of earlier releases:FutureWarning")


class Counting(Net):
    """Counts its calls by Python; a trace makes none."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        self.calls += 1
        return super().forward(x, labels)


class Branching(Counting):
    """Depends on its values, which a trace of a batch does not."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        if not torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            x = x + 1
        return super().forward(x, labels)


class Untraceable(Counting):
    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
            raise RuntimeError("no trace of this model")
        return super().forward(x, labels)


def evaluated(folder: Path, model: Counting, **given: Any) -> tuple[float, int]:
    """Return the loss of 18 rows, in four batches of four and one of two, and the calls of the model."""
    made = small_trainer(folder, parts={"model": model, "eval_dataset": rows(18)}, **given)
    loss = made.evaluate()["eval_loss"]
    return loss, model.calls


@pytest.mark.parametrize("given", [{}, {"bf16": True}, {"prediction_loss_only": True}], ids=str)
def test_a_traced_model_gives_the_same_loss(tmp_path: Path, given: dict[str, Any]) -> None:
    """The model itself is called for the first batch, to trace it, and for the last one, which is smaller."""
    expected, calls = evaluated(tmp_path, Counting(), **given)
    loss, traced_calls = evaluated(tmp_path, Counting(), jit_mode_eval=True, **given)
    assert loss == pytest.approx(expected, rel=1e-2 if "bf16" in given else 1e-6)
    assert (calls, traced_calls) == (5, 3)


@pytest.mark.parametrize(("kind", "reason"), [(Untraceable, "no trace of this model"), (Branching, "other values")])
def test_a_model_that_cannot_be_traced_is_evaluated_itself(
    tmp_path: Path, kind: type[Counting], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning, and the same results."""
    expected, _ = evaluated(tmp_path, kind())
    with caplog.at_level(logging.WARNING, "hexloop"):
        assert evaluated(tmp_path, kind(), jit_mode_eval=True)[0] == expected
    assert [reason in record.message for record in caplog.records if "jit_mode_eval" in record.message] == [True]


def test_each_evaluation_of_a_run_has_the_present_weights(tmp_path: Path) -> None:
    """A trace contains the weights as constants, so each evaluation makes its own."""
    parts = {"model": Counting(), "eval_dataset": rows(8)}
    logs, settings = [], [dict[str, Any](), {"jit_mode_eval": True}]
    for given in settings:
        made = small_trainer(
            tmp_path, parts={**parts, "model": Counting()}, eval_strategy="steps", eval_steps=2, **given
        )
        made.train()
        logs.append([entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry])
    assert logs[1] == pytest.approx(logs[0], rel=1e-5)
    assert len(set(logs[0])) == 2
