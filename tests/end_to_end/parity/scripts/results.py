"""What a script comes to, and how those for transformers usually end."""

from __future__ import annotations

from typing import Any

from attrs import define


@define
class Results:
    """trainer: as it is after the script. measured: by the name of what was done, the metrics that it gave.
    predicted: predictions and labels, where any were made.
    """

    trainer: Any
    measured: dict[str, dict[str, float]]
    predicted: tuple[Any, Any] | None = None


def train_evaluate_predict(trainer: Any, test: Any = None) -> Results:
    """Train and save, evaluate, predict, with the metrics of each on the console and in files."""
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
