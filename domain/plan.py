"""How long a run is: its epochs, its steps, its windows."""

from __future__ import annotations

import math

from attrs import frozen

from hexloop.domain.errors import ConfigurationError


@frozen
class Plan:
    """The length of a run.

    total_steps: optimizer steps in all.
    epochs: passes over the data, the last of which may be cut short; None where only the steps limit the run.
    steps_per_epoch: optimizer steps in a whole pass, the one of a partial last window among them; None if not known.
    batches_per_epoch: micro-batches in a whole pass; None if not known.
    accumulation: micro-batches in a whole window.
    """

    total_steps: int
    epochs: int | None
    steps_per_epoch: int | None
    batches_per_epoch: int | None
    accumulation: int

    def is_last(self, epoch: int) -> bool:
        """Whether no pass comes after pass `epoch`."""
        return self.epochs is not None and epoch + 1 >= self.epochs

    def epoch_at(self, epoch: int, batches: int) -> float:
        """How many passes are done after `batches` micro-batches of pass `epoch`, as a fraction.

        Where the length of a pass is not known, the whole run counts as one pass, as the reference library has it.
        """
        whole = self.batches_per_epoch or self.total_steps * self.accumulation
        return epoch + batches / whole


def make_plan(batches_per_epoch: int | None, accumulation: int, epochs: float, max_steps: int) -> Plan:
    """Work out the length of a run; a positive `max_steps` goes before `epochs`, which may be a fraction.

    Raises ConfigurationError where there is no data, or where neither the data nor `max_steps` says when to end.
    """
    if batches_per_epoch is None:
        if max_steps <= 0:
            raise ConfigurationError(
                [
                    "You chose num_train_epochs to say when training ends, but the training data has no length, "
                    "so an epoch has none either; set max_steps."
                ]
            )
        return Plan(max_steps, None, None, None, accumulation)
    if batches_per_epoch == 0:
        raise ConfigurationError(
            [
                "The training data gives no batch: it is empty, or shorter than one batch with "
                "dataloader_drop_last=True; give it at least one batch."
            ]
        )
    steps_per_epoch = math.ceil(batches_per_epoch / accumulation)
    total_steps = max_steps if max_steps > 0 else math.ceil(epochs * steps_per_epoch)
    return Plan(total_steps, math.ceil(total_steps / steps_per_epoch), steps_per_epoch, batches_per_epoch, accumulation)
