"""Evaluations that are large compared with memory, disk or time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hexloop
from hexloop import EvalPrediction, Trainer
from hexloop.domain.errors import ConfigurationError, DataError
from tests.end_to_end.evaluation.both import assert_equal, trainer_of
from tests.end_to_end.evaluation.models import FORMS, Giving, Passing, Points
from tests.end_to_end.small.models import Stream, rows
from tests.end_to_end.small.trainers import small_trainer

ROOT = Path(__file__).parents[3]

MEASURING = """
import json, sys, torch
from hexloop import Trainer, TrainingArguments
from tests.bench.evaluation import Peak, Stream, Wide, WideRows, collate

def peak(dataset, **given):
    args = TrainingArguments(sys.argv[1], use_cpu=True, report_to="none", disable_tqdm=True,
                             per_device_eval_batch_size=256, **given)
    trainer = Trainer(Wide(), args, data_collator=collate, compute_metrics=lambda found, compute_result=False: {})
    trainer.evaluate(WideRows(512))
    with Peak() as found:
        if given:
            trainer.evaluate(dataset)
        else:
            output = trainer.predict(dataset)
    return (found.most - found.before) / (30_000 * 4008)

known, unknown = peak(WideRows(30_000)), peak(Stream(30_000))
print(json.dumps([known, unknown, peak(WideRows(30_000), batch_eval_metrics=True)]))
"""


@pytest.mark.matrix
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_evaluation_needs_little_more_memory_than_its_result(tmp_path: Path) -> None:
    """30,000 rows of 1,000 logits take at most 1.2 times their size, with or without a known number of rows."""
    command = [sys.executable, "-c", MEASURING, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    known, unknown, accumulated = json.loads(done.stdout.splitlines()[-1])

    assert 0.9 < known <= 1.2
    assert 0.9 < unknown <= 1.2
    assert accumulated < 0.1


@pytest.mark.parametrize("form", ["two tensors", "wider from batch to batch", "a number a batch"])
@pytest.mark.parametrize("points", [Points(10), Passing(10)], ids=["length", "no length"])
def test_predictions_in_a_folder_are_equal(form: str, points: Any, tmp_path: Path) -> None:
    """Mapped from files in a new folder, which looks empty, they equal those in memory."""
    outputs = []
    for arguments in ({}, {"predictions_folder": str(tmp_path / "new" / "folder")}):
        outputs.append(trainer_of(hexloop, tmp_path, Giving(FORMS[form]), arguments).predict(points))
    in_memory, mapped = outputs

    assert isinstance(mapped.label_ids, np.memmap)
    assert not isinstance(in_memory.label_ids, np.memmap)
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    assert_equal(_as_arrays(mapped.predictions), in_memory.predictions)
    assert_equal(_as_arrays(mapped.label_ids), in_memory.label_ids)


def _as_arrays(value: Any) -> Any:
    return tuple(map(np.asarray, value)) if isinstance(value, tuple) else np.asarray(value)


def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    """Before a batch is predicted, with the argument's name."""
    (tmp_path / "file").write_text("")
    trainer = small_trainer(tmp_path, predictions_folder=str(tmp_path / "file" / "folder"))

    with pytest.raises(
        ConfigurationError,
        match=r"predictions_folder='.*folder' does not exist and cannot be created",
    ):
        trainer.predict(rows(4))


@pytest.mark.parametrize("when", ["constructed", "evaluated"])
def test_metrics_that_cannot_accumulate_are_refused(when: str, tmp_path: Path) -> None:
    """With `batch_eval_metrics` the function must accept `compute_result`; it may also be set later."""

    def compute(found: EvalPrediction) -> dict[str, float]:
        return {}

    def evaluate() -> None:
        given = compute if when == "constructed" else None
        trainer = small_trainer(tmp_path, parts={"compute_metrics": given}, batch_eval_metrics=True)
        trainer.compute_metrics = compute
        trainer.evaluate(rows(4))

    with pytest.raises(ConfigurationError, match="batch_eval_metrics=True needs a compute_metrics with a param"):
        evaluate()


def test_metrics_of_another_type_are_refused(tmp_path: Path) -> None:
    """The message names the returned and the expected type, also for the last batch."""
    for by_batch in (False, True):
        parts = {"compute_metrics": lambda found, compute_result=True: None}
        with pytest.raises(ConfigurationError, match="compute_metrics returned NoneType"):
            small_trainer(tmp_path, parts=parts, batch_eval_metrics=by_batch).evaluate(rows(10))


def test_outputs_that_cannot_be_concatenated(tmp_path: Path) -> None:
    """Outputs that differ in their third dimension, or in their structure."""

    def deeper(x: Any, logits: Any) -> dict[str, Any]:
        return {"logits": logits[:, None, : len(x)]}

    def changing(x: Any, logits: Any) -> dict[str, Any]:
        return {"logits": logits, **({"more": x} if len(x) == 2 else {})}

    for give in (deeper, changing):
        with pytest.raises(DataError, match="eval_do_concat_batches=False"):
            trainer_of(hexloop, tmp_path, Giving(give), {}).predict(Points(10))
        apart = trainer_of(hexloop, tmp_path, Giving(give), {"eval_do_concat_batches": False}).predict(Points(10))
        assert len(apart.predictions) == 3


def test_prediction_loop_works(tmp_path: Path) -> None:
    """`prediction_loop` calls `evaluation_loop`, overridden or not."""
    calls: list[str] = []

    class Own(Trainer):
        def evaluation_loop(self, dataloader: Any, description: str, *given: Any, **further: Any) -> Any:
            calls.append(description)
            return super().evaluation_loop(dataloader, description, *given, **further)

    trainer = small_trainer(tmp_path, kind=Own)
    loader = trainer.get_eval_dataloader(rows(10))
    one = trainer.prediction_loop(loader, description="Prediction", metric_key_prefix="old")
    other = trainer.evaluation_loop(loader, description="Prediction", metric_key_prefix="old")

    assert calls == ["Prediction", "Prediction"]
    assert set(one.metrics) == {"old_loss", "old_model_preparation_time"}
    assert torch.equal(torch.from_numpy(one.predictions), torch.from_numpy(other.predictions))
    assert one.num_samples == 10


def test_an_overridden_evaluation_loop_may_use_a_loader_without_length(tmp_path: Path) -> None:
    """The speed is computed from the number of samples that it returns."""

    class Own(Trainer):
        def evaluation_loop(self, *given: Any, **further: Any) -> Any:
            return super().evaluation_loop(*given, **further)

    metrics = small_trainer(tmp_path, kind=Own).evaluate(Stream(10))

    assert {"eval_loss", "eval_runtime", "eval_samples_per_second", "eval_steps_per_second"} <= metrics.keys()
