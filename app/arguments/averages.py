"""Arguments about averages of the weights, which are evaluated and saved."""

from __future__ import annotations

from hexloop.app.arguments.choices import AveragesText
from hexloop.app.arguments.conversion import at_least, below_one, one_of, steps_or_ratio
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.domain.wording import RefusalError

INSTEAD, BESIDE = "instead", "beside"
"""The values of `ema_weights`."""


@argument_group
class AverageArguments(ArgumentGroup):
    """Averages of the weights.

    Args:
        ema_decay: keep an exponential moving average of each weight that is trained: after an optimizer step, average =
            ema_decay * average + (1 - ema_decay) * weight. Averages of weights in half precision are kept in float32.
            Buffers, such as the statistics of a batch normalization, are not averaged.
        ema_start_step: the optimizer step after which the averages begin, as a copy of the weights; 0 for the initial
            weights, and below 1 a ratio of the run. Until then the weights themselves are evaluated and saved.
        ema_update_every: update the averages after every so many optimizer steps.
        ema_weights: `instead`: the averages are evaluated, saved, published and left in the model at the end of the
            run, in place of the weights that are trained, which checkpoints hold as well. `beside`: both are evaluated,
            the averages under the prefix `eval_ema`, and both are saved, the averages in a folder `ema`.
    """

    ema_decay: float | None = argument(
        default=None, check=below_one, help="decay of an exponential moving average of the weights; none if unset"
    )
    ema_start_step: float = argument(
        default=0, check=steps_or_ratio, help="optimizer step at which the averages begin; below 1, a ratio of the run"
    )
    ema_update_every: int = argument(default=1, check=at_least(1), help="optimizer steps between updates of averages")
    ema_weights: AveragesText = argument(
        default=INSTEAD,
        check=one_of(INSTEAD, BESIDE),
        help="whether averages are evaluated and saved instead of the trained weights, or beside them",
    )

    def _derive(self) -> None:
        super()._derive()
        if self.ema_start_step >= 1:
            self.ema_start_step = int(self.ema_start_step)

    @rule("reproduce", "ema_decay")
    def _weights_of_transformers(self) -> None:
        if getattr(self, "reproduce", None) is not None and self.ema_decay is not None:
            raise RefusalError("transformers' Trainer keeps no averages", "leave ema_decay out")

    @rule("ema_decay", "ema_start_step", "ema_update_every", "ema_weights")
    def _averages_to_configure(self) -> None:
        if self.ema_decay is None and (self.ema_start_step, self.ema_update_every, self.ema_weights) != (0, 1, INSTEAD):
            raise RefusalError("there are no averages without ema_decay", "set ema_decay, such as to 0.999")
