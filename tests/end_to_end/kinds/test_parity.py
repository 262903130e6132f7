"""Every kind of model matches transformers in training, evaluation and prediction."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import hexloop
from tests.end_to_end.kinds.models import KINDS
from tests.end_to_end.parity.compare import SGD, assert_same_log, assert_same_weights

ARGUMENTS: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "train_sampling_strategy": "sequential",
    "optim": "sgd",
    "learning_rate": 0.05,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 5,
    "gradient_accumulation_steps": 2,
    "max_steps": 5,
    "logging_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 3,
}
OFTEN = ("question answering", "causal language model", "several losses")


OWN_LOSSES = {"train_loss", "eval_loss"}
"""What transformers logs with such a name; hexloop also logs losses that a model returns beside its own."""


def flattened(values: Any) -> list[Any]:
    if isinstance(values, tuple | list):
        return [each for value in values for each in flattened(value)]
    return [values]


def size(evaluated: Any) -> dict[str, float]:
    """Return a number that depends on all predictions and labels."""
    arrays = flattened(evaluated.predictions) + flattened(evaluated.label_ids)
    return {f"mean_{index}": float(np.abs(each.astype(np.float64)).mean()) for index, each in enumerate(arrays)}


def run(library: Any, folder: Path, name: str) -> tuple[Any, Any]:
    kind, further = KINDS[name], {"loss_weighting": "reference"} if library is hexloop else {}
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if library is transformers else "error")
        trainer = library.Trainer(
            model=deepcopy(kind.model()),
            args=library.TrainingArguments(output_dir=str(folder), **ARGUMENTS, **further),
            train_dataset=kind.samples(),
            eval_dataset=kind.samples(),
            compute_metrics=size,
        )
        trainer.remove_callback(library.PrinterCallback)
        trainer.train()
        return trainer, trainer.predict(kind.samples())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in OFTEN else pytest.mark.matrix) for name in KINDS]
)
def test_a_kind_of_model_matches_transformers(name: str, tmp_path: Path) -> None:
    """Logs, metrics, weights, predictions and labels are equal."""
    (ours, predicted), (theirs, expected) = (run(library, tmp_path, name) for library in (hexloop, transformers))
    if not hasattr(ours.model, "config"):  # transformers counts operations for its own models only
        assert ours.state.log_history[-1].pop("total_flos") > 0 == theirs.state.log_history[-1].pop("total_flos")
    components = {key for entry in ours.state.log_history for key in entry if key.endswith("_loss")} - OWN_LOSSES
    assert components == ({"size_loss"} if name == "several losses" else set())
    logged = [{key: entry[key] for key in entry.keys() - components} for entry in ours.state.log_history]
    assert_same_log(logged, theirs.state.log_history, 1e-5)
    weights, others = ({key: each.detach() for key, each in run.model.named_parameters()} for run in (ours, theirs))
    assert_same_weights(weights, others, SGD)
    unlike = [key for key, each in KINDS[name].model().named_parameters() if not torch.equal(each, weights[key])]
    assert unlike, "nothing was trained"
    for one, other in (
        (predicted.predictions, expected.predictions),
        (predicted.label_ids, expected.label_ids),
    ):
        assert len(flattened(one)) == len(flattened(other))
        for left, right in zip(flattened(one), flattened(other), strict=True):
            assert left.shape == right.shape
            np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)
    assert {key for key in predicted.metrics if "_second" not in key and "time" not in key} == {
        key for key in expected.metrics if "_second" not in key and "time" not in key
    }
    if name == "frozen parameters":
        assert not any("embeddings" in key for key in unlike)
    if name == "masked language model":
        assert ours.model.cls.predictions.decoder.weight is ours.model.bert.embeddings.word_embeddings.weight
