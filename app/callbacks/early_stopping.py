"""Ending a run when evaluations no longer get better."""

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
    """Ends the run after `early_stopping_patience` evaluations in a row without an improvement.

    An improvement is a `metric_for_best_model` that beats the best before it by more than `early_stopping_threshold`.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def check_metric_value(self, args: Any, state: TrainerState, control: TrainerControl, metric_value: float) -> None:
        """Count an evaluation that measured `metric_value`."""
        self.early_stopping_patience_counter = patience_after(
            metric_value,
            state.best_metric,
            self.early_stopping_patience_counter,
            greater_is_better=bool(args.greater_is_better),
            threshold=self.early_stopping_threshold or 0.0,
        )

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Ends a resumed run at once that had ended for want of patience, unless there is more of it now.

        Raises ConfigurationError where there is nothing to compare.
        """
        if state.global_step > 0 and self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True
        problems = []
        if args.metric_for_best_model is None:
            problems.append(
                "You chose EarlyStoppingCallback, but metric_for_best_model is not set, so it has nothing to compare; "
                'set it to the name of a metric, such as "loss".'
            )
        if args.eval_strategy == "no":
            problems.append(
                'You chose EarlyStoppingCallback with eval_strategy="no", so nothing is ever evaluated; '
                'choose "steps" or "epoch".'
            )
        if problems:
            raise ConfigurationError(problems)
        if not args.load_best_model_at_end:
            warnings.warn(
                "EarlyStoppingCallback ends the run some evaluations after the best one, and without "
                "load_best_model_at_end=True it ends with the last weights, not the best.",
                stacklevel=2,
            )

    def on_evaluate(  # type: ignore[override]  # the base takes whatever keywords an event comes with
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Mapping[str, float], **kwargs: Any
    ) -> None:
        """Ends the run where patience is over; warns, and does nothing, where the metric was not measured."""
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
