"""The optimizer, the learning rate over time, and what is done to losses and gradients before a step."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.checks import assignments, at_least, below_one, steps_or_ratio
from hexloop.app.arguments.choices import OptimizerNames, SchedulerType
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


@argument_group
class Optimization(Arguments):
    """Optimizer and learning rate."""

    learning_rate: float = argument(
        default=5e-5, checks=(at_least(0),), help="the learning rate at its peak, after warm-up"
    )
    lr_scheduler_type: SchedulerType | str = argument(
        default="linear", help="how the learning rate goes on after warm-up"
    )
    lr_scheduler_kwargs: dict[str, Any] | str | None = argument(
        default=None, help='further settings of the schedule, such as {"num_cycles": 2} for cosine_with_restarts'
    )
    warmup_steps: float = argument(
        default=0,
        checks=(steps_or_ratio,),
        help="optimizer steps over which the learning rate rises from 0; below 1, a ratio of the whole run",
    )
    optim: OptimizerNames | str = argument(default="adamw_torch_fused", help="the optimizer, by name")
    optim_args: str | None = argument(
        default=None,
        checks=(assignments,),
        help="further settings of the optimizer, written name=value and separated by commas",
    )
    optim_target_modules: None | str | list[str] = argument(  # noqa: RUF036 - the reference's parser reads the second type
        default=None,
        help="modules that GaLore and APOLLO project: their names, a regular expression, or all-linear",
    )
    weight_decay: float = argument(
        default=0.0, checks=(at_least(0),), help="decoupled weight decay; biases and weights of norms are left out"
    )
    adam_beta1: float = argument(default=0.9, checks=(below_one,), help="decay rate of Adam's mean of gradients")
    adam_beta2: float = argument(default=0.999, checks=(below_one,), help="decay rate of Adam's mean of squares")
    adam_epsilon: float = argument(default=1e-8, checks=(at_least(0),), help="what Adam adds to its denominator")
    max_grad_norm: float = argument(
        default=1.0,
        checks=(at_least(0),),
        help="norm to which the gradient of the whole model is cut before each step; 0 leaves it as it is",
    )
    label_smoothing_factor: float = argument(
        default=0.0,
        checks=(below_one,),
        help="share of each target that is spread evenly over all classes; 0 for no smoothing",
    )
    neftune_noise_alpha: float | None = argument(
        default=None,
        checks=(at_least(0),),
        help="strength of the noise that NEFTune adds to embeddings in training; none if not given",
    )

    def _settle(self) -> None:
        super()._settle()
        if self.warmup_steps >= 1:
            self.warmup_steps = int(self.warmup_steps)
