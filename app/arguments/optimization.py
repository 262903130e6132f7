"""Arguments about the optimizer, learning rate and gradients, random seeds, evaluation, and the best model."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hexloop.app.arguments.choices import (
    IntervalStrategy,
    IntervalText,
    OptimizerNames,
    SaveStrategy,
    SchedulerType,
    ScheduleText,
)
from hexloop.app.arguments.conversion import assignments, at_least, below_one, each_one_of, steps_or_ratio
from hexloop.app.arguments.conversion import seed as valid_seed
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.app.arguments.outputs import LoggingArguments, SavingArguments
from hexloop.domain.wording import RefusalError

METRIC_SCHEDULES = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)
"""The schedules that follow a metric."""

_TURN_ON_EVALUATION = "set eval_strategy to 'steps' or 'epoch'"


@argument_group
class OptimizationArguments(ArgumentGroup):
    """Optimizer and learning rate."""

    learning_rate: float = argument(default=5e-5, check=at_least(0), help="peak learning rate, after warmup")
    lr_scheduler_type: SchedulerType | ScheduleText = argument(
        default="linear", help="learning-rate schedule after warmup"
    )
    lr_scheduler_kwargs: dict[str, Any] | str | None = argument(
        default=None, help='further options of the schedule, such as {"num_cycles": 2} for cosine_with_restarts'
    )
    warmup_steps: float = argument(
        default=0, check=steps_or_ratio, help="optimizer steps of rising learning rate; below 1, a ratio of the run"
    )
    optim: OptimizerNames | str = argument(default="adamw_torch_fused", help="name of the optimizer")
    optim_args: str | None = argument(
        default=None, check=assignments, help="further options of the optimizer: name=value, separated by commas"
    )
    optim_target_modules: None | str | list[str] = argument(  # noqa: RUF036 - transformers' parser reads the second type
        default=None, help="modules that GaLore and APOLLO project: their names, a regular expression, or all-linear"
    )
    weight_decay: float = argument(
        default=0.0, check=at_least(0), help="decoupled weight decay, except of biases and norms"
    )
    adam_beta1: float = argument(default=0.9, check=below_one, help="decay rate of Adam's mean of gradients")
    adam_beta2: float = argument(default=0.999, check=below_one, help="decay rate of Adam's mean of squared gradients")
    adam_epsilon: float = argument(default=1e-8, check=at_least(0), help="constant in Adam's denominator")
    max_grad_norm: float = argument(
        default=1.0, check=at_least(0), help="norm to which the whole model's gradient is clipped; 0 disables clipping"
    )
    label_smoothing_factor: float = argument(
        default=0.0, check=below_one, help="share of each target that is spread over all classes; 0: no smoothing"
    )
    neftune_noise_alpha: float | None = argument(
        default=None, check=at_least(0), help="strength of NEFTune's noise on embeddings in training; none if unset"
    )

    def _derive(self) -> None:
        super()._derive()
        if self.warmup_steps >= 1:
            self.warmup_steps = int(self.warmup_steps)


@argument_group
class ReproducibilityArguments(ArgumentGroup):
    """Randomness."""

    seed: int = argument(default=42, check=valid_seed, help="seed of all random generators, set when training starts")
    data_seed: int | None = argument(default=None, check=valid_seed, help="seed of the order of samples; seed if unset")
    full_determinism: bool = argument(default=False, help="use only deterministic kernels, which may be slower")


@argument_group
class ScriptArguments(ArgumentGroup):
    """Switches for scripts, which the Trainer itself ignores."""

    do_train: bool = argument(default=False, help="whether the script should train")
    do_eval: bool = argument(
        default=False, help="whether the script should evaluate; set automatically if eval_strategy is not no"
    )
    overwrite_output_dir: bool = argument(
        default=False, help="old: whether a script may train into a folder that already holds checkpoints"
    )
    do_predict: bool = argument(default=False, help="whether the script should predict on the test set")


@argument_group
class EvaluationArguments(LoggingArguments, ScriptArguments):
    """Evaluation."""

    eval_strategy: IntervalStrategy | IntervalText = argument(
        default="no",
        help="when to evaluate during training: no (never), steps (every eval_steps), epoch (at the end of each epoch)",
    )
    eval_steps: float | None = argument(
        default=None,
        check=steps_or_ratio,
        help="optimizer steps between evaluations; below 1, a ratio of the run; logging_steps if unset",
    )
    eval_delay: float = argument(
        default=0, check=at_least(0), help="steps, or with eval_strategy=epoch epochs, before the first evaluation"
    )
    eval_on_start: bool = argument(default=False, help="evaluate once before the first step")
    prediction_loss_only: bool = argument(
        default=False, help="return only the loss in evaluation and prediction, without outputs and labels"
    )
    eval_accumulation_steps: int | None = argument(
        default=None,
        check=at_least(1),
        help="batches whose outputs stay on the device until moved to the host; if unset, what fits into 64 MB",
    )
    eval_do_concat_batches: bool = argument(
        default=True, help="concatenate the outputs of all batches; otherwise they are lists with an entry per batch"
    )
    eval_use_gather_object: bool = argument(
        default=False, help="gather outputs that are not tensors from all processes; no effect in one process"
    )
    batch_eval_metrics: bool = argument(
        default=False, help="call compute_metrics after every batch, instead of keeping all outputs"
    )
    past_index: int = argument(
        default=-1, check=at_least(-1), help="old: index of the model output that is the next batch's memory; -1: none"
    )
    jit_mode_eval: bool = argument(
        default=False, help="old: evaluate the model as torch.jit traces it with the first batch"
    )
    include_for_metrics: list[str] = argument(
        factory=list,
        check=each_one_of("inputs", "loss"),
        help="what compute_metrics receives in addition to outputs and labels: inputs, loss",
    )

    def _derive(self) -> None:
        super()._derive()
        if self.eval_strategy != IntervalStrategy.NO:
            self.do_eval = True
        if self.eval_strategy == IntervalStrategy.STEPS and not self.eval_steps:
            self.eval_steps = self.logging_steps
        if self.eval_steps is not None and self.eval_steps >= 1:
            self.eval_steps = int(self.eval_steps)

    @rule("eval_strategy", "eval_steps", "logging_steps")
    def _some_steps_between_evaluations(self) -> None:
        if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps == 0:
            raise RefusalError("eval_steps must be greater than 0", "give eval_steps a positive value")


@argument_group
class BestModelArguments(EvaluationArguments, OptimizationArguments, SavingArguments):
    """The best model."""

    load_best_model_at_end: bool = argument(default=False, help="load the best checkpoint by metric when training ends")
    metric_for_best_model: str | None = argument(
        default=None, help="metric of the best model, with or without the prefix eval_; if unset, loss where needed"
    )
    greater_is_better: bool | None = argument(
        default=None, help="whether a higher metric is better; if unset, true unless its name ends in loss"
    )

    def _derive(self) -> None:
        super()._derive()
        needed = self.load_best_model_at_end or self.lr_scheduler_type in METRIC_SCHEDULES
        if needed and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")

    @rule("lr_scheduler_type", "eval_strategy")
    def _metric_schedules_need_evaluation(self) -> None:
        if self.lr_scheduler_type in METRIC_SCHEDULES and self.eval_strategy == IntervalStrategy.NO:
            raise RefusalError("this schedule follows a metric, which only evaluation measures", _TURN_ON_EVALUATION)

    @rule("save_strategy", "metric_for_best_model")
    def _best_needs_a_metric(self) -> None:
        if self.save_strategy == SaveStrategy.BEST and self.metric_for_best_model is None:
            raise RefusalError("the best model is determined by a metric", "name the metric in metric_for_best_model")

    @rule("save_strategy", "eval_strategy")
    def _best_needs_evaluation(self) -> None:
        if self.save_strategy == SaveStrategy.BEST and self.eval_strategy == IntervalStrategy.NO:
            raise RefusalError("only evaluation determines the best model", _TURN_ON_EVALUATION)

    @rule("load_best_model_at_end", "eval_strategy", "save_strategy")
    def _best_is_saved(self) -> None:
        if not self.load_best_model_at_end or self.save_strategy == SaveStrategy.BEST:
            return
        if self.eval_strategy == IntervalStrategy.NO:
            raise RefusalError("only evaluation determines the best model", _TURN_ON_EVALUATION)
        if self.eval_strategy != self.save_strategy:
            raise RefusalError(
                "an evaluated model may then not be saved",
                "give both strategies the same value, or set save_strategy='best'",
            )

    @rule("load_best_model_at_end", "eval_strategy", "save_strategy", "eval_steps", "save_steps")
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
                "a model may then be saved without being evaluated", "make save_steps a multiple of eval_steps"
            )
