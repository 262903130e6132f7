from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from docs.examples.digits import (
    ConvolutionalNet,
    Digits,
    Pictures,
    accuracy,
    confusion,
    held_out_split,
    loss_figure,
    train_split,
)
from hexloop import EvalPrediction, TrainerControl, TrainerState


def scans_of(split: Digits) -> list[bytes]:
    return [row.numpy().tobytes() for row in split.pixels]


def test_splits_are_disjoint_and_complete() -> None:
    """The splits have four fifths and one fifth of the 1,797 scans, without overlap."""
    train, held_out = scans_of(train_split()), scans_of(held_out_split())
    assert (len(train), len(held_out)) == (1437, 360)
    assert set(train).isdisjoint(held_out)


def test_splits_are_stratified() -> None:
    """A fifth of each digit's scans is held out, to within one scan."""
    train, held_out = (torch.bincount(split.labels) for split in (train_split(), held_out_split()))
    assert (held_out - (train + held_out) / 5).abs().max() <= 1


def test_split_depends_on_its_seed_only() -> None:
    """Equal seeds hold out equal scans, and other seeds hold out other scans."""
    assert scans_of(held_out_split(0)) == scans_of(held_out_split(0))
    assert set(scans_of(held_out_split(0))) != set(scans_of(held_out_split(1)))


def test_net_accepts_the_rows() -> None:
    """Rows have pixels between 0 and 1 and a label; the net returns logits, and a loss for labels."""
    rows = [train_split()[index] for index in range(4)]
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    assert batch["pixels"].shape == (4, 1, 8, 8)
    assert batch["pixels"].min() >= 0
    assert batch["pixels"].max() == 1
    answer = ConvolutionalNet(width=4)(**batch)
    assert answer["logits"].shape == (4, 10)
    expected = -answer["logits"].log_softmax(dim=-1)[torch.arange(4), batch["labels"]].mean()
    torch.testing.assert_close(answer["loss"], expected)
    assert "loss" not in ConvolutionalNet(width=4)(batch["pixels"])


def test_accuracy_counts_the_highest_logits() -> None:
    """Two of three rows have their highest logit at their label."""
    logits = np.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]])
    assert accuracy(EvalPrediction(logits, np.array([1, 1, 1]))) == {"accuracy": pytest.approx(2 / 3)}


class ReadsTheBrightness(torch.nn.Module):
    """Predicts ten times the mean pixel of a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.tenfold = torch.nn.Parameter(torch.tensor(10.0))

    def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        read = (self.tenfold * pixels.mean(dim=(1, 2, 3))).round().long()
        return {"logits": torch.nn.functional.one_hot(read, 10).float()}


def bright_scans(read_as: list[int], labels: list[int]) -> Digits:
    pixels = (torch.tensor(read_as) / 10).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    return Digits(pixels, torch.tensor(labels))


def test_confusion_matrix_has_labels_in_rows_and_predictions_in_columns() -> None:
    """A two read as a five counts in row 2, column 5; the model's mode is restored."""
    model = ReadsTheBrightness().train()
    counts = confusion(model, bright_scans(read_as=[2, 5, 5, 0], labels=[2, 2, 2, 9]))
    assert counts.nonzero().tolist() == [[2, 2], [2, 5], [9, 0]]
    assert counts[[2, 2, 9], [2, 5, 0]].tolist() == [1, 2, 1]
    assert model.training


def test_loss_figure_shows_both_losses_by_epoch() -> None:
    """The figure has one curve of training losses and one of held-out losses."""
    history = [
        {"loss": 2.0, "epoch": 1},
        {"eval_loss": 1.5, "epoch": 1},
        {"loss": 1.0, "epoch": 2},
        {"grad_norm": 1.4},
    ]
    training, held_out = loss_figure(history).axes[0].lines
    assert np.asarray(training.get_xydata()).tolist() == [[1, 2], [2, 1]]
    assert np.asarray(held_out.get_xydata()).tolist() == [[1, 1.5]]


@pytest.mark.parametrize("logged", [[], [{"loss": 2.0, "epoch": 1}, {"eval_loss": 1.5, "epoch": 1}]])
def test_figures_are_written_by_rank_0_only(logged: list[dict[str, float]], tmp_path: Path) -> None:
    """Rank 0 writes both figures to the output folder; other processes write nothing."""
    args = SimpleNamespace(output_dir=str(tmp_path / "run"))
    pictures = Pictures(bright_scans([1, 2], [1, 3]))
    for first in (False, True):
        state = TrainerState(log_history=logged, is_world_process_zero=first)
        pictures.on_train_end(args, state, TrainerControl(), model=ReadsTheBrightness())
        assert {path.name for path in tmp_path.rglob("*.png")} == ({"confusion.png", "losses.png"} if first else set())
