"""Runs of one and two real processes leave out the same windows, bit-identical to runs whose data lack them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hexloop import Trainer
from tests.engines.several.training import Trained, Training, distance, fresh, run

PLANTED = {
    **dict.fromkeys((0, 5, 6, 7, 11, 20, 21, 29, 36, 59), math.nan),
    **dict.fromkeys((2, 9, 13, 17, 18, 33, 40, 44, 45, 57), math.inf),
}
"""Twenty of the sixty windows of an epoch, by number."""

WINDOW, WINDOWS = 8, 60


class Planted(Trainer):
    """Its loss is not finite where a planted sample is read, which only one rank does."""

    def __init__(self, model: Any, args: Any, collate: Any, data: Any, *further: Any, **named: Any) -> None:
        for window, value in PLANTED.items():
            at = window * WINDOW + window % WINDOW
            data.rows[at] = data.rows[at].new_zeros(2 if math.isnan(value) else 3)  # a word that others lack
        super().__init__(model, args, collate, data, *further, **named)

    def compute_loss(self, model: Any, inputs: Any, *further: Any, **named: Any) -> Any:
        planted = (inputs["words"] == 0).all(1)
        words = inputs["words"].where(~planted[:, None], 1)
        found = super().compute_loss(model, {**inputs, "words": words}, *further, **named)
        if not planted.any():
            return found
        return found * (math.nan if inputs["labels"][planted].eq(-100).sum() % 2 else math.inf)


class Lacking(Planted):
    """Its data lack the planted windows."""

    def __init__(self, model: Any, args: Any, collate: Any, data: Any, *further: Any, **named: Any) -> None:
        data.rows = [row for at, row in enumerate(data.rows) if at // WINDOW not in PLANTED]
        Trainer.__init__(self, model, args, collate, data, *further, **named)


def training(processes: int, **arguments: Any) -> Training:
    """Return a run of 55 steps: an epoch of 40 without the planted windows, and a part of the next."""
    given = {
        "max_steps": 55, "save_strategy": "steps", "save_steps": 9, "logging_steps": 6, "seed": 3,
        "train_sampling_strategy": "sequential", **arguments,
    }  # fmt: skip
    return Training(processes, rows=WINDOW * WINDOWS, size=WINDOW, dropout=0.1, arguments=given)


def logs(trained: Trained) -> list[dict[str, float]]:
    """Return the logs without epochs, which are shorter without the planted windows."""
    return [{k: v for k, v in log.items() if k not in ("epoch", "total_flos")} for log in trained.logged]


@pytest.mark.parametrize(
    ("processes", "reaction"),
    [
        (2, "skip"),
        *(pytest.param(*given, marks=pytest.mark.matrix) for given in ((1, "skip"), (1, "rollback"), (2, "rollback"))),
    ],
)
def test_planted_windows_leave_no_trace(processes: int, reaction: str, tmp_path: Path) -> None:
    """Weights and logs are those of data without the windows, also if the run is resumed in between."""
    chosen = training(processes, on_nonfinite=reaction)
    with_them = chosen.of(processes, kind=Planted)
    lacking = run(chosen.of(processes, kind=Lacking), fresh(tmp_path / "lacking"))
    whole = run(with_them, fresh(tmp_path / "whole"))
    assert logs(whole) == logs(lacking)
    assert distance(whole.weights, lacking.weights) == 0.0
    resumed = run(
        with_them.of(processes, resume=str(tmp_path / "whole" / "checkpoint-18")), fresh(tmp_path / "resumed")
    )
    assert logs(resumed)[:-1] == logs(lacking)[:-1]
    assert distance(resumed.weights, lacking.weights) == 0.0
    (journal,) = (tmp_path / "whole").rglob("journal.jsonl")
    notes = [json.loads(line) for line in journal.read_text().splitlines()]
    named = [note for note in notes if note["kind"] == "irregular" and note["epoch"] == 0]
    assert {note["first_sample"] // WINDOW for note in named} == set(PLANTED)
    assert all(note["indices"] == list(range(note["first_sample"], note["first_sample"] + WINDOW)) for note in named)
