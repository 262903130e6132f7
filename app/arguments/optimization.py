"""Arguments about the optimizer, the learning rate, losses and gradients, and random seeds."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.choices import OptimizerNames, SchedulerType
from hexloop.app.arguments.conversion import assignments, at_least, below_one, steps_or_ratio
from hexloop.app.arguments.conversion import seed as valid_seed
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group


@argument_group
class OptimizationArguments(ArgumentGroup):
    """Optimizer and learning rate."""

    learning_rate: float = argument(default=5e-5, check=at_least(0), help="peak learning rate, after warmup")
    lr_scheduler_type: SchedulerType | str = argument(default="linear", help="learning-rate schedule after warmup")
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
