"""Early stopping."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from hexloop.app.callbacks.base import TrainerCallback, TrainerControl
from hexloop.app.callbacks.exportable import ExportableState
from hexloop.app.callbacks.trainer_state import TrainerState
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric, patience_after


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops the run after `early_stopping_patience` evaluations in a row without an improvement.

    An improvement is a `metric_for_best_model` that beats the best before it by more than `early_stopping_threshold`.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def check_metric_value(self, args: Any, state: TrainerState, control: TrainerControl, metric_value: float) -> None:
        """Update the patience counter with the metric of an evaluation."""
        self.early_stopping_patience_counter = patience_after(
            metric_value,
            state.best_metric,
            self.early_stopping_patience_counter,
            greater_is_better=bool(args.greater_is_better),
            threshold=self.early_stopping_threshold or 0.0,
        )

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop a resumed run that early stopping had ended, unless the patience is larger now.

        Raises ConfigurationError if there is no metric to compare.
        """
        if state.global_step > 0 and self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True
        problems = []
        if args.metric_for_best_model is None:
            problems.append(
                "EarlyStoppingCallback needs a metric to compare; set metric_for_best_model to the name of a metric, "
                'such as "loss".'
            )
        if args.eval_strategy == "no":
            problems.append(
                'EarlyStoppingCallback needs evaluations, but eval_strategy="no"; choose "steps" or "epoch".'
            )
        if problems:
            raise ConfigurationError(problems)
        if not args.load_best_model_at_end:
            warnings.warn(
                "EarlyStoppingCallback stops the run some evaluations after the best one, so without "
                "load_best_model_at_end=True the run ends with the last weights, not the best.",
                stacklevel=2,
            )

    def on_evaluate(  # type: ignore[override]  # the base takes the keywords of all events
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Mapping[str, float], **kwargs: Any
    ) -> None:
        """Stop the run if the patience is used up; only warn if the metric was not measured."""
        if args.metric_for_best_model is None:  # an evaluation outside a run: a run would have been refused
            return
        name = BestMetric(args.metric_for_best_model).full_name
        if metrics.get(name) is None:
            warnings.warn(
                f"EarlyStoppingCallback compares {name!r}, but an evaluation measured only "
                f"{', '.join(sorted(metrics)) or 'nothing'}; that evaluation was not counted.",
                stacklevel=2,
            )
            return
        self.check_metric_value(args, state, control, metrics[name])
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        """What it was made with, and how many evaluations in a row were no improvement."""
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter},
        }
