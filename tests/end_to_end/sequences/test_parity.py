"""Predictions and metrics of Seq2SeqTrainer match transformers' for the same model."""

from __future__ import annotations

import warnings
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import transformers

import hexloop
from tests.end_to_end.parity.scripts.comparing import assert_same_arrays
from tests.end_to_end.sequences.models import MODELS, digits, exact_match, padded, padded_with_decoder_inputs

pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning")

TIMES = ("_runtime", "_per_second", "_preparation_time")
COMMON: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "per_device_eval_batch_size": 4,
    "predict_with_generate": True,
}


class Tokenizer:
    """The part of a tokenizer that the Trainers use here."""

    def __init__(self, pad_token_id: int | None) -> None:
        self.pad_token_id, self.eos_token_id = pad_token_id, 2


def trainer_of(library: Any, folder: Path, model: Any, arguments: dict[str, Any], **parts: Any) -> Any:
    parts = {"data_collator": padded, "eval_dataset": digits(12), "compute_metrics": exact_match, **parts}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of transformers itself
        if library is hexloop:
            arguments = {"loss_weighting": "reference", **arguments}
        made = library.Seq2SeqTrainingArguments(output_dir=str(folder), **{**COMMON, **arguments})
        return library.Seq2SeqTrainer(model=deepcopy(model), args=made, **parts)


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith(TIMES)}


def generating(**says: Any) -> Any:
    """Return a config that leaves other options open."""
    config: Any = transformers.GenerationConfig
    return config(decoder_start_token_id=0, **says)


LENGTH = {"generation_max_length": 8}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}, {"eval_dataset": digits(4)}),
    "length of the arguments": ({"generation_max_length": 6}, {}, {}),
    "length beyond the config's": ({"generation_max_length": 30}, {}, {}),
    "beams of the arguments": ({"generation_num_beams": 2, "generation_max_length": 8}, {}, {}),
    "length of the call": ({"generation_max_length": 6}, {"max_length": 9}, {}),
    "new tokens of the call": ({"generation_max_length": 6}, {"max_new_tokens": 4}, {}),
    "nothing of the call": ({"generation_max_length": 6}, {"max_length": None, "num_beams": None}, {}),
    "other keywords of the call": ({}, {"max_length": 7, "no_repeat_ngram_size": 2, "num_beams": 3}, {}),
    "a config": ({"generation_config": generating(max_length=9, num_beams=2)}, {}, {}),
    "a config of new tokens": (
        {"generation_config": generating(max_new_tokens=24)},
        {},
        {},
    ),
    "a tokenizer's padding": (LENGTH, {}, {"processing_class": Tokenizer(5)}),
    "a tokenizer's end token": (LENGTH, {}, {"processing_class": Tokenizer(None)}),
    "decoder inputs from the labels": (LENGTH, {}, {"data_collator": padded_with_decoder_inputs}),
    "long labels": ({}, {}, {"eval_dataset": digits(4, longest=26)}),
    "losses alone": ({"prediction_loss_only": True}, {}, {}),
    "logits": ({"predict_with_generate": False}, {}, {"compute_metrics": None}),
    "smoothed labels": (
        {"label_smoothing_factor": 0.1, **LENGTH},
        {},
        {"data_collator": padded_with_decoder_inputs},
    ),
}
FEW = ("defaults", "new tokens of the call", "decoder inputs from the labels", "long labels")


def case(name: str, model: str) -> Any:
    return pytest.param(name, model, marks=() if model == "T5" and name in FEW else pytest.mark.matrix)


@pytest.mark.parametrize(("name", "model"), [case(name, model) for name in CASES for model in MODELS])
def test_predictions_and_metrics_match_transformers(name: str, model: str, tmp_path: Path) -> None:
    """Shapes and values of predictions and labels, and names and values of metrics, are equal."""
    arguments, keywords, parts = CASES[name]
    made = MODELS[model]()
    results = []
    for library in (hexloop, transformers):
        evaluated = untimed(trainer_of(library, tmp_path, made, arguments, **parts).evaluate(**keywords))
        trainer = trainer_of(library, tmp_path, made, arguments, **parts)
        predicted = trainer.predict(parts.get("eval_dataset", digits(12)), metric_key_prefix="test", **keywords)
        results.append((evaluated, untimed(predicted.metrics), predicted.predictions, predicted.label_ids))
    ours, theirs = results
    for one, other in zip(ours[:2], theirs[:2], strict=True):
        assert one.keys() == other.keys()
        assert one == pytest.approx(other, rel=1e-6)
    for one, other in zip(ours[2:], theirs[2:], strict=True):
        assert_same_arrays(one, other)
    if name not in ("losses alone", "logits"):
        assert "eval_exact_match" in ours[0]
        assert ours[2].shape == ours[3].shape or ours[2].shape[1] != ours[3].shape[1]


def test_rows_without_labels_are_predicted_as_in_transformers(tmp_path: Path) -> None:
    """Without labels there is no loss, and the generated tokens are equal."""
    unlabelled = [{"input_ids": row["input_ids"]} for row in digits(8)]
    ours, theirs = (
        trainer_of(library, tmp_path, MODELS["T5"](), {}).predict(unlabelled, max_length=7)
        for library in (hexloop, transformers)
    )
    assert ours.label_ids is None is theirs.label_ids
    assert_same_arrays(ours.predictions, theirs.predictions)
    assert untimed(ours.metrics).keys() == untimed(theirs.metrics).keys() == set()


def test_evaluation_in_training_uses_the_arguments(tmp_path: Path) -> None:
    """Keywords of an earlier `evaluate` do not apply to the next evaluation; histories are equal."""
    histories = []
    for library in (hexloop, transformers):
        arguments = {
            "generation_max_length": 5,
            "max_steps": 4,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "logging_steps": 2,
            "learning_rate": 0.01,
            "train_sampling_strategy": "sequential",
        }
        trainer = trainer_of(library, tmp_path, MODELS["T5"](), arguments, train_dataset=digits(32))
        trainer.remove_callback(library.PrinterCallback)
        trainer.evaluate(max_length=12)
        trainer.train()
        histories.append([untimed(entry) for entry in trainer.state.log_history])
    ours, theirs = histories
    assert [entry.keys() for entry in ours] == [entry.keys() for entry in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
