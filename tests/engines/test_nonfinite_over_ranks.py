"""Runs of one and two real processes leave out the same windows, bit-identical to runs whose data lack them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hexloop import Trainer
from tests.engines.several.training import Trained, Training, distance, fresh, run
from tests.engines.test_features_over_ranks import ENGINES, HAS_DEEPSPEED

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


def training(processes: int, engine: Training | None = None, **arguments: Any) -> Training:
    """Return a run of 55 steps: an epoch of 40 without the planted windows, and a part of the next."""
    engine = engine or Training(processes)
    given = {
        "max_steps": 55, "save_strategy": "steps", "save_steps": 9, "logging_steps": 6, "seed": 3,
        "train_sampling_strategy": "sequential", **engine.arguments, **arguments,
    }  # fmt: skip
    return engine.of(processes, rows=WINDOW * WINDOWS, size=WINDOW, dropout=0.1, arguments=given)


def zero_3_on_the_cpu() -> dict[str, Any]:
    """Return a configuration of DeepSpeed that offloads the moments and keeps no weight whole."""
    moments = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "stage3_param_persistence_threshold": 0}
    return {"zero_optimization": moments, "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": "auto"}}


def logs(trained: Trained) -> list[dict[str, float]]:
    """Return the logs without epochs, which are shorter without the planted windows."""
    return [{k: v for k, v in log.items() if k not in ("epoch", "total_flos")} for log in trained.logged]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("processes", "reaction"),
    [(2, "skip"), (1, "skip"), (1, "rollback"), (2, "rollback")],
)
def test_planted_windows_leave_no_trace(processes: int, reaction: str, tmp_path: Path) -> None:
    """Weights and logs are those of data without the windows, also if the run is resumed in between."""
    assert_no_trace(training(processes, on_nonfinite=reaction), tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "reaction", "settings"),
    [
        ("fsdp1", "skip", {}),
        ("fsdp2", "skip", {}),
        ("fsdp2", "rollback", {"fsdp": "full_shard offload"}),
        ("fsdp2", "rollback", {"bf16": True}),
        ("zero2", "rollback", {}),
        ("zero2", "skip", {"bf16": True}),
        ("zero3", "skip", {}),
        ("zero3", "rollback", {"bf16": True, "deepspeed": zero_3_on_the_cpu()}),
        ("zero2", "skip", {"deepspeed": {"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}}, "bf16": True}),
        ("zero2", "skip", {"deepspeed": {"zero_optimization": {"stage": 0}}}),
    ],
)
def test_sharded_state_returns_to_what_was_kept(
    name: str, reaction: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The same holds where each process keeps its own part of the weights and moments."""
    if name.startswith("zero") and not HAS_DEEPSPEED:
        pytest.skip("needs deepspeed")
    assert_no_trace(training(2, ENGINES[name], on_nonfinite=reaction, **settings), tmp_path)


def assert_no_trace(chosen: Training, tmp_path: Path) -> None:
    """Check that a run with the windows equals one whose data lack them."""
    processes = chosen.processes
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
