"""When the model is evaluated and what evaluation keeps."""

from __future__ import annotations

from hexloop.app.arguments.checks import at_least, each_one_of, steps_or_ratio
from hexloop.app.arguments.choices import IntervalStrategy
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.reporting import Reporting
from hexloop.app.arguments.scripts import Scripts
from hexloop.domain.wording import RefusalError


@argument_group
class Evaluation(Reporting, Scripts):
    """Evaluation."""

    eval_strategy: IntervalStrategy | str = argument(
        default="no",
        help="when the model is evaluated in training: no (never), steps (every eval_steps), epoch (as each ends)",
    )
    eval_steps: float | None = argument(
        default=None,
        checks=(steps_or_ratio,),
        help="optimizer steps from one evaluation to the next; below 1, a ratio of the whole run; as logging_steps if "
        "not given",
    )
    eval_delay: float = argument(
        default=0,
        checks=(at_least(0),),
        help="steps, or with eval_strategy epoch epochs, that pass before the first evaluation",
    )
    eval_on_start: bool = argument(default=False, help="evaluate once before the first step")
    prediction_loss_only: bool = argument(
        default=False, help="keep nothing but the loss in evaluation and prediction, neither outputs nor labels"
    )
    eval_accumulation_steps: int | None = argument(
        default=None,
        checks=(at_least(1),),
        help="batches whose outputs stay on the device before they are moved to the host; if not given, as many as "
        "have room in 64 MB",
    )
    eval_do_concat_batches: bool = argument(
        default=True, help="join the outputs of all batches; otherwise they stay a list with an entry a batch"
    )
    eval_use_gather_object: bool = argument(
        default=False, help="gather outputs that are no tensors over the processes; one process is unaffected"
    )
    batch_eval_metrics: bool = argument(
        default=False, help="call compute_metrics after every batch, instead of keeping the outputs of all of them"
    )
    past_index: int = argument(
        default=-1,
        checks=(at_least(-1),),
        help="old: place among the model's outputs of a memory that is handed to its next batch; -1 for none",
    )
    include_for_metrics: list[str] = argument(
        factory=list,
        checks=(each_one_of("inputs", "loss"),),
        help="what compute_metrics is given besides outputs and labels: inputs, loss",
    )

    def _settle(self) -> None:
        super()._settle()
        if self.eval_strategy != IntervalStrategy.NO:
            self.do_eval = True
        if self.eval_strategy == IntervalStrategy.STEPS and not self.eval_steps:
            self.eval_steps = self.logging_steps
        if self.eval_steps is not None and self.eval_steps >= 1:
            self.eval_steps = int(self.eval_steps)

    @rule("eval_strategy", "eval_steps", "logging_steps")
    def _some_steps_between_evaluations(self) -> None:
        if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps == 0:
            raise RefusalError("no number of steps lies between two evaluations", "give eval_steps a positive value")
