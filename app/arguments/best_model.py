"""Which of a run's models is the best one, and what follows from that."""

from __future__ import annotations

from fractions import Fraction

from hexloop.app.arguments.choices import IntervalStrategy, SaveStrategy, SchedulerType
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.evaluation import Evaluation
from hexloop.app.arguments.optimization import Optimization
from hexloop.app.arguments.saving import Saving
from hexloop.domain.wording import RefusalError

METRIC_SCHEDULES = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
"""The schedules that go by a metric."""


@argument_group
class BestModel(Evaluation, Optimization, Saving):
    """The best model."""

    load_best_model_at_end: bool = argument(
        default=False, help="when training ends, go back to the checkpoint with the best metric"
    )
    metric_for_best_model: str | None = argument(
        default=None,
        help="metric that decides which model is best, with or without its prefix eval_; loss if one is needed and "
        "none is given",
    )
    greater_is_better: bool | None = argument(
        default=None, help="whether more of the metric is better; if not given, so unless its name ends in loss"
    )

    def _settle(self) -> None:
        super()._settle()
        wanted = self.load_best_model_at_end or self.lr_scheduler_type in METRIC_SCHEDULES
        if wanted and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")

    @rule("lr_scheduler_type", "eval_strategy")
    def _metric_schedules_see_metrics(self) -> None:
        if self.lr_scheduler_type in METRIC_SCHEDULES and self.eval_strategy == IntervalStrategy.NO:
            raise RefusalError("this schedule follows a metric, which only evaluation measures", _TURN_ON_EVALUATION)

    @rule("save_strategy", "metric_for_best_model")
    def _best_by_some_metric(self) -> None:
        if self.save_strategy == SaveStrategy.BEST and self.metric_for_best_model is None:
            raise RefusalError("nothing says which model is best", "name the metric in metric_for_best_model")

    @rule("save_strategy", "eval_strategy")
    def _best_after_evaluation(self) -> None:
        if self.save_strategy == SaveStrategy.BEST and self.eval_strategy == IntervalStrategy.NO:
            raise RefusalError("only evaluation tells which model is best", _TURN_ON_EVALUATION)

    @rule("load_best_model_at_end", "eval_strategy", "save_strategy")
    def _best_is_saved(self) -> None:
        if not self.load_best_model_at_end or self.save_strategy == SaveStrategy.BEST:
            return
        if self.eval_strategy == IntervalStrategy.NO:
            raise RefusalError("only evaluation tells which model is best", _TURN_ON_EVALUATION)
        if self.eval_strategy != self.save_strategy:
            raise RefusalError(
                "a model that was evaluated may then never have been saved",
                "give both strategies the same value, or set save_strategy='best'",
            )

    @rule("load_best_model_at_end", "eval_strategy", "save_strategy", "eval_steps", "logging_steps", "save_steps")
    def _each_saved_is_evaluated(self) -> None:
        both_by_steps = self.eval_strategy == IntervalStrategy.STEPS and self.save_strategy == SaveStrategy.STEPS
        if not (self.load_best_model_at_end and both_by_steps and self.eval_steps and self.save_steps):
            return
        if (self.eval_steps < 1) != (self.save_steps < 1):
            raise RefusalError(
                "a ratio and a number of steps cannot be compared before the length of the run is known",
                "make both a ratio, or both a number of steps",
            )
        if Fraction(str(self.save_steps)) % Fraction(str(self.eval_steps)):
            raise RefusalError(
                "a model may then be saved that was not evaluated", "make save_steps a multiple of eval_steps"
            )


_TURN_ON_EVALUATION = "set eval_strategy to 'steps' or 'epoch'"
