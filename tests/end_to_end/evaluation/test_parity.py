"""Evaluations and predictions match transformers': arrays, metrics, names and order."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.end_to_end.evaluation.both import assert_equal, by_both
from tests.end_to_end.evaluation.models import FORMS, Giving, Passing, Points

POINTS = Points(10)


class Plain(Giving):
    """Returns one tensor of logits, computed in the dtype of the weights."""

    main_input_name = "x"

    def __init__(self) -> None:
        super().__init__(FORMS["one tensor"])

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return super().forward(x.to(self.line.weight.dtype), labels)


PLAIN = Plain()


def predicted(trainer: Any) -> Any:
    return trainer.predict(POINTS)


def evaluated(trainer: Any) -> Any:
    return trainer.evaluate(POINTS)


def measure(found: Any) -> dict[str, Any]:
    """Return metrics that depend on every value in the arrays; one has its prefix already."""
    predictions, labels = found.predictions, found.label_ids
    return {
        "error": ((predictions.sum(1) - labels) ** 2).mean(),
        "eval_largest": predictions.max(),
        "count": len(labels),
        "nested": {"mean": predictions.mean()},
    }


@pytest.mark.parametrize("form", FORMS)
def test_predictions_match_transformers(form: str, tmp_path: Path) -> None:
    """For every form of outputs: nesting, shapes, types, padding and bits are equal."""
    assert_equal(*by_both(tmp_path, Giving(FORMS[form]), {}, predicted))


@pytest.mark.matrix
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "arguments",
    [
        {"eval_accumulation_steps": 1},
        {"eval_accumulation_steps": 2},
        {"eval_do_concat_batches": False},
        {"eval_use_gather_object": True},
        {"per_device_eval_batch_size": 10},
        {"per_device_eval_batch_size": 3, "dataloader_num_workers": 2},
    ],
    ids=str,
)
def test_predictions_match_transformers_with_every_argument(
    form: str, arguments: dict[str, Any], tmp_path: Path
) -> None:
    """Also with arguments that change how predictions are collected."""
    if form == "bytes of many widths" and "eval_accumulation_steps" in arguments:
        return  # transformers cannot pad unsigned bytes in numpy
    apart = arguments.get("per_device_eval_batch_size") == 10 or "eval_do_concat_batches" in arguments
    if form == "a number a batch" and apart:
        return  # transformers returns such numbers as scalars, see test_evaluation_differences
    assert_equal(*by_both(tmp_path, Giving(FORMS[form]), arguments, predicted))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"prediction_loss_only": True},
        {"include_for_metrics": ["inputs", "loss"]},
        {"logging_nan_inf_filter": False},
        {"bf16_full_eval": True},
        {"bf16": True},
    ],
    ids=str,
)
def test_metrics_match_transformers(arguments: dict[str, Any], tmp_path: Path) -> None:
    """Names, order, values, and the entry in the history are equal."""

    def ask(trainer: Any) -> Any:
        metrics = trainer.evaluate(POINTS)
        return metrics, trainer.state.log_history, trainer.predict(POINTS).metrics

    assert_equal(*by_both(tmp_path, PLAIN, arguments, ask, compute_metrics=measure))


def test_metrics_receive_what_transformers_passes(tmp_path: Path) -> None:
    """Predictions, labels, inputs and each row's loss, as arrays, or as lists of arrays without concatenation."""
    seen: list[Any] = []

    class Named(Giving):
        main_input_name = "x"

    def compute(found: Any) -> dict[str, float]:
        seen.append((*found, found.inputs, found.losses, found.elements, found[0]))
        return {}

    for apart in (False, True):
        arguments = {"include_for_metrics": ["inputs", "loss"], "eval_do_concat_batches": not apart}
        by_both(tmp_path, Named(FORMS["two tensors"]), arguments, evaluated, compute_metrics=compute)
        ours, theirs = seen[-2:]
        assert_equal(ours, theirs)


def test_batchwise_metrics_receive_what_transformers_passes(tmp_path: Path) -> None:
    """Each call gets one batch's tensors, inputs and losses; the result is returned by the last; `predict` works."""
    calls: list[Any] = []

    def compute(found: Any, compute_result: bool) -> dict[str, float]:
        calls.append((found.predictions, found.label_ids, dict(found.inputs), found.losses, compute_result))
        return {"calls": float(len(calls))} if compute_result else {"calls": -1.0}

    def ask(trainer: Any) -> Any:
        calls.clear()
        metrics, loop = trainer.evaluate(POINTS), trainer.predict(POINTS)
        return metrics, loop, list(calls)

    arguments = {"batch_eval_metrics": True, "include_for_metrics": ["inputs", "loss"]}
    ours, theirs = by_both(tmp_path, PLAIN, arguments, ask, compute_metrics=compute)
    assert_equal(ours, theirs)
    assert [call[-1] for call in ours[2]] == [False, False, True] * 2


@pytest.mark.parametrize(
    ("names", "asked"),
    [(("labels",), None), (("labels", "more"), ["labels"]), (("target",), ["target"]), ((), None), (("labels",), [])],
    ids=str,
)
def test_label_names_match_transformers(names: tuple[str, ...], asked: list[str] | None, tmp_path: Path) -> None:
    """One name, several, another; none in the data; none requested: loss and labels equal transformers'."""

    class Two(Giving):
        def forward(self, x: Tensor, labels: Any = None, target: Any = None, more: Any = None) -> Any:
            return super().forward(x, labels if target is None else target)

    points = Points(10, names)
    arguments = {"remove_unused_columns": False} | ({} if asked is None else {"label_names": asked})
    ours, theirs = by_both(tmp_path, Two(FORMS["two tensors"]), arguments, lambda trainer: trainer.predict(points))
    assert_equal(ours, theirs)


def test_a_loss_without_labels_matches_transformers(tmp_path: Path) -> None:
    """If forward's `return_loss` is true, or a batch sets it, the loss is computed, and there are no labels."""

    class Unasked(Giving):
        def forward(self, x: Tensor, return_loss: bool = True) -> Any:  # type: ignore[override]
            return super().forward(x, x.sum(1))

    class Asked(Giving):
        def forward(self, x: Tensor, return_loss: bool = False) -> Any:  # type: ignore[override]
            return super().forward(x, x.sum(1))

    def collate(rows: list[Any]) -> Any:
        return {"x": torch.stack([row["x"] for row in rows]), "return_loss": True}

    form = FORMS["one tensor"]
    assert_equal(*by_both(tmp_path, Unasked(form), {}, lambda trainer: trainer.predict(Points(10, ()))))
    ours, theirs = by_both(
        tmp_path, Asked(form), {}, lambda trainer: trainer.predict(Points(10, ())), data_collator=collate
    )
    assert_equal(ours, theirs)
    assert "test_loss" in ours.metrics


@pytest.mark.parametrize("ignored", [None, [], ["hidden"]], ids=str)
def test_outputs_are_ignored_as_in_transformers(ignored: list[str] | None, tmp_path: Path) -> None:
    """With `ignore_keys`, with the configuration if there is one, and without; for tuples, too."""

    def ask(trainer: Any) -> Any:
        return trainer.predict(POINTS, ignore_keys=ignored)

    def give(x: Tensor, logits: Tensor) -> dict[str, Tensor]:
        return {"logits": logits, "hidden": x, "past_key_values": x + 1}

    class Configured:
        keys_to_ignore_at_inference: ClassVar = ["hidden"]

        def to_dict(self) -> dict[str, Any]:
            return {}

    configured = Giving(give)
    configured.config = Configured()  # type: ignore[assignment]
    for model in (Giving(give), configured, Giving(give, as_tuple=True)):
        assert_equal(*by_both(tmp_path, model, {}, ask))


def test_several_datasets_are_evaluated_as_in_transformers(tmp_path: Path) -> None:
    """Dictionaries of datasets, the Trainer's or passed, and one dataset by name: names and values are equal."""

    def ask(trainer: Any) -> Any:
        given = trainer.evaluate({"c": Points(3, seed=3)}, metric_key_prefix="test")
        return trainer.evaluate(), given, trainer.evaluate("b"), trainer.state.log_history

    sets = {"a": POINTS, "b": Points(6, seed=1)}
    assert_equal(*by_both(tmp_path, PLAIN, {}, ask, compute_metrics=measure, eval_dataset=sets))


def test_a_stream_is_evaluated_as_in_transformers(tmp_path: Path) -> None:
    """Data without a length give the same predictions and the same number of samples."""

    def ask(trainer: Any) -> Any:
        loader = trainer.get_eval_dataloader(Passing(12))
        return trainer.predict(Passing(12)), trainer.evaluation_loop(loader, "Prediction")

    ours, theirs = by_both(tmp_path, Giving(FORMS["wider from batch to batch"]), {}, ask)
    assert_equal(ours, theirs)
    assert ours[1].num_samples == 12


@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_names_of_metrics_around_training_match_transformers(when: str, tmp_path: Path) -> None:
    """Metric names match before, during and after a run, including the model preparation time."""

    def ask(trainer: Any) -> Any:
        names = []
        if when != "after":
            names.append(list(trainer.evaluate()))
        trainer.train()
        if when != "before":
            names.append(list(trainer.evaluate()))
        return names, [sorted(entry) for entry in trainer.state.log_history if "eval_loss" in entry]

    arguments = {"eval_strategy": "steps", "eval_steps": 1, "max_steps": 2, "save_strategy": "no"}
    parts = {"compute_metrics": measure, "train_dataset": POINTS, "eval_dataset": POINTS}
    assert_equal(*by_both(tmp_path, PLAIN, arguments, ask, **parts))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "arguments",
    [
        {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 3},
        {"eval_strategy": "epoch", "eval_delay": 2, "num_train_epochs": 3},
        {"eval_strategy": "epoch", "eval_on_start": True},
        {"eval_strategy": "steps", "eval_steps": 0.25},
        {"eval_on_start": True},
    ],
    ids=str,
)
def test_evaluations_run_at_the_same_steps_as_in_transformers(arguments: dict[str, Any], tmp_path: Path) -> None:
    """By steps, by epochs, by a ratio, delayed, and before the first step."""

    def ask(trainer: Any) -> Any:
        trainer.train()
        return [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]

    arguments = {"num_train_epochs": 2, "per_device_train_batch_size": 2, "save_strategy": "no", **arguments}
    ours, theirs = by_both(tmp_path, PLAIN, arguments, ask, train_dataset=POINTS, eval_dataset=POINTS)
    assert ours == theirs != []


def test_logits_are_preprocessed_as_in_transformers(tmp_path: Path) -> None:
    """`preprocess_logits_for_metrics` receives the same, and its result, of any form, is the prediction."""

    def work(logits: Any, labels: Any) -> Any:
        return (logits[0].argmax(-1), {"sum": logits[1].sum((1, 2)) + labels})

    ours, theirs = by_both(tmp_path, Giving(FORMS["two tensors"]), {}, predicted, preprocess_logits_for_metrics=work)
    assert_equal(ours, theirs)


def test_a_custom_step_is_used_as_in_transformers(tmp_path: Path) -> None:
    """`prediction_step` may return any structure of tensors, and no loss or no labels."""

    def derive(kind: Any) -> Any:
        class Own(kind):  # type: ignore[misc]
            def prediction_step(self, model: Any, inputs: Any, loss_only: Any, ignore_keys: Any = None) -> Any:
                assert not loss_only
                return None, {"rows": [inputs["x"], inputs["x"].long()]}, None

        return Own

    assert_equal(*by_both(tmp_path, PLAIN, {}, predicted, derive=derive))


def test_a_custom_loader_is_used_as_in_transformers(tmp_path: Path) -> None:
    """Batches of another size from the user's own loader give the same predictions and number of samples."""

    def derive(kind: Any) -> Any:
        class Own(kind):  # type: ignore[misc]
            def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
                return DataLoader(POINTS, batch_size=5)

        return Own

    def ask(trainer: Any) -> Any:
        return trainer.evaluation_loop(trainer.get_eval_dataloader(), "Prediction")

    ours, theirs = by_both(tmp_path, PLAIN, {}, ask, derive=derive)
    assert_equal((ours.predictions, ours.label_ids, ours.num_samples), (theirs[0], theirs[1], theirs[3]))
    assert ours.metrics["eval_loss"] == pytest.approx(theirs.metrics["eval_loss"])


@pytest.mark.parametrize("filtered", [True, False])
def test_non_finite_losses_count_as_in_transformers(filtered: bool, tmp_path: Path) -> None:
    """It is excluded from the mean or not, by `logging_nan_inf_filter`."""

    class Broken(Giving):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            found = super().forward(x, labels)
            return {**found, "loss": found["loss"] / (x[0, 0] > 0)}

    ours, theirs = by_both(tmp_path, Broken(FORMS["one tensor"]), {"logging_nan_inf_filter": filtered}, evaluated)
    assert np.isfinite(theirs["eval_loss"]) == filtered
    assert_equal(ours, theirs)
