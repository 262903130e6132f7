"""The length of a run in epochs, steps and micro-batches."""

from __future__ import annotations

import math

from attrs import frozen

from hexloop.domain.errors import ConfigurationError


@frozen
class Plan:
    """The length of a run.

    total_steps: total optimizer steps.
    epochs: passes over the data, the last of which may be cut short; None if only `total_steps` limits the run.
    steps_per_epoch: optimizer steps in an epoch, including the one of a partial last window; None if unknown.
    batches_per_epoch: micro-batches in an epoch; None if unknown.
    accumulation: micro-batches in a full window.
    """

    total_steps: int
    epochs: int | None
    steps_per_epoch: int | None
    batches_per_epoch: int | None
    accumulation: int

    def is_last(self, epoch: int) -> bool:
        """Return whether `epoch` is the last one."""
        return self.epochs is not None and epoch + 1 >= self.epochs

    def epoch_at(self, epoch: int, batches: int) -> float:
        """Return the fractional epoch after `batches` micro-batches of `epoch`.

        If the length of an epoch is unknown, the whole run counts as one epoch, as in transformers.
        """
        whole = self.batches_per_epoch or self.total_steps * self.accumulation
        return epoch + batches / whole


def make_plan(batches_per_epoch: int | None, accumulation: int, epochs: float, max_steps: int) -> Plan:
    """Compute the length of a run. A positive `max_steps` overrides `epochs`, which may be fractional.

    Raises ConfigurationError if there is no data, or if neither the data nor `max_steps` limits the run.
    """
    if batches_per_epoch is None:
        if max_steps <= 0:
            raise ConfigurationError(
                "num_train_epochs cannot determine the number of steps, because the training data has no length. "
                "Set max_steps."
            )
        return Plan(max_steps, None, None, None, accumulation)
    if batches_per_epoch == 0:
        raise ConfigurationError(
            "The training data yields no batches: it is empty, or shorter than one batch with "
            "dataloader_drop_last=True. Provide at least one batch."
        )
    steps_per_epoch = math.ceil(batches_per_epoch / accumulation)
    total_steps = max_steps if max_steps > 0 else math.ceil(epochs * steps_per_epoch)
    return Plan(total_steps, math.ceil(total_steps / steps_per_epoch), steps_per_epoch, batches_per_epoch, accumulation)
