"""Every difference of evaluation from transformers in docs/differences.md, shown with both libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hexloop
from tests.end_to_end.evaluation.both import by_both, lenient, trainer_of
from tests.end_to_end.evaluation.models import FORMS, Giving, Points

PLAIN = Giving(FORMS["one tensor"])


class Uneven(nn.Module):
    """Its loss is the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return {"loss": self.weight * len(x), "logits": x}


def trained(library: Any, folder: Path, **given: Any) -> Tensor:
    """Return a weight after training with dropout and the given arguments."""
    arguments = {"max_steps": 4, "save_strategy": "no", "train_sampling_strategy": "sequential", **given}
    with lenient(library):
        parts = {"train_dataset": Points(40), "eval_dataset": Noisy(8)}
        trainer = trainer_of(library, folder, PLAIN, arguments, **parts)
        trainer.train()
    weight: Tensor = trainer.model.line.weight.detach()
    return weight


class Noisy(Points):
    """Samples with new noise on each read."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {**super().__getitem__(index), "x": torch.randn(4)}


@pytest.mark.parametrize("library", [hexloop, transformers])
def test_only_transformers_training_is_changed_by_an_evaluation(library: Any, tmp_path: Path) -> None:
    """Compare runs with and without an evaluation on noisy data."""
    evaluating = trained(library, tmp_path / "evaluating", eval_strategy="steps", eval_steps=1)
    without = trained(library, tmp_path / "without")

    assert torch.equal(evaluating, without) == (library is hexloop)


def test_the_loss_is_the_mean_over_rows_for_any_loader(tmp_path: Path) -> None:
    """For batches of 4, 4 and 2 rows from a user's loader, transformers weights the last like a full one."""

    def derive(kind: Any) -> Any:
        class Own(kind):  # type: ignore[misc]
            def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
                return DataLoader(Points(10), batch_size=4)

        return Own

    ours, theirs = by_both(tmp_path, Uneven(), {}, lambda trainer: trainer.evaluate()["eval_loss"], derive=derive)
    assert ours == pytest.approx((8 * 4 + 2 * 2) / 10)
    assert theirs == pytest.approx((4 + 4 + 2) / 3)


def test_only_predicted_samples_are_counted(tmp_path: Path) -> None:
    """If the last batch is dropped."""

    def ask(trainer: Any) -> Any:
        output = trainer.evaluation_loop(trainer.get_eval_dataloader(Points(10)), "Prediction")
        return output.num_samples, len(output.predictions)

    assert by_both(tmp_path, PLAIN, {"dataloader_drop_last": True}, ask) == ((8, 8), (10, 8))


def test_a_number_of_a_single_batch_is_a_row(tmp_path: Path) -> None:
    """Transformers returns a scalar for a single number."""
    model = Giving(FORMS["a number a batch"])
    ours, theirs = by_both(tmp_path, model, {}, lambda trainer: trainer.predict(Points(4)).predictions[1])

    assert (ours.shape, theirs.shape) == ((1,), ())
    assert ours[0] == theirs


def test_a_single_tensor_is_the_prediction(tmp_path: Path) -> None:
    """For a batch of one row, transformers drops the row's first dimension."""

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Any:
            return self.line(x)

    arguments = {"per_device_eval_batch_size": 1}
    ours, theirs = by_both(tmp_path, Bare(), arguments, lambda trainer: trainer.predict(Points(2, ())).predictions)

    assert (ours.shape, theirs.shape) == ((2, 3), (6,))


def test_strings_can_be_predicted(tmp_path: Path) -> None:
    """One list per batch becomes one list; transformers cannot concatenate them."""

    class Speaking(Giving):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            return {**super().forward(x, labels), "text": [str(round(float(row[0]))) for row in x]}

    model, points = Speaking(FORMS["one tensor"]), Points(6)
    logits, texts = trainer_of(hexloop, tmp_path, model, {}).predict(points).predictions
    assert logits.shape == (6, 3)
    assert texts == [str(round(float(x[0]))) for x in points.x]

    with lenient(transformers), pytest.raises(TypeError):
        trainer_of(transformers, tmp_path, model, {}).predict(points)


def test_metrics_are_plain_at_any_depth(tmp_path: Path) -> None:
    """Arrays become lists, which can be written to a file; transformers does not convert them."""

    def compute(found: Any) -> dict[str, Any]:
        return {"matrix": np.eye(2), "deep": {"pair": (np.float32(1), torch.ones(2))}}

    ours, theirs = by_both(tmp_path, PLAIN, {}, lambda trainer: trainer.evaluate(Points(4)), compute_metrics=compute)
    assert ours["eval_matrix"] == [[1.0, 0.0], [0.0, 1.0]]
    assert ours["eval_deep"] == {"pair": [1.0, [1.0, 1.0]]}
    assert isinstance(theirs["eval_matrix"], np.ndarray)
