"""The results of a script, and the usual end of scripts for transformers."""

from __future__ import annotations

from typing import Any

from attrs import define


@define
class Results:
    """trainer: after the script. measured: the metrics, by the name of the call.
    predicted: predictions and labels, if any.
    """

    trainer: Any
    measured: dict[str, dict[str, float]]
    predicted: tuple[Any, Any] | None = None


def train_evaluate_predict(trainer: Any, test: Any = None) -> Results:
    """Train and save, evaluate, predict, and print and save the metrics of each."""
    measured = {"train": dict(trainer.train().metrics)}
    trainer.save_model()
    trainer.log_metrics("train", measured["train"])
    trainer.save_metrics("train", measured["train"])
    trainer.save_state()
    if trainer.eval_dataset is not None:
        measured["eval"] = dict(trainer.evaluate())
        trainer.log_metrics("eval", measured["eval"])
        trainer.save_metrics("eval", measured["eval"])
    if test is None:
        return Results(trainer, measured)
    output = trainer.predict(test, metric_key_prefix="predict")
    measured["predict"] = dict(output.metrics)
    trainer.save_metrics("predict", measured["predict"])
    return Results(trainer, measured, (output.predictions, output.label_ids))
