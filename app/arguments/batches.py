"""How large batches are and how long training goes on."""

from __future__ import annotations

from hexloop.app.arguments.checks import at_least, unset_or_positive
from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.group import Arguments
from hexloop.domain.wording import RefusalError


@argument_group
class Batches(Arguments):
    """Batches and length of the run."""

    per_device_train_batch_size: int = argument(
        default=8, checks=(at_least(1),), help="samples in a training micro-batch on each device"
    )
    per_device_eval_batch_size: int = argument(
        default=8, checks=(at_least(1),), help="samples in a batch on each device in evaluation and prediction"
    )
    gradient_accumulation_steps: int = argument(
        default=1, checks=(at_least(1),), help="micro-batches whose gradients are summed before each optimizer step"
    )
    num_train_epochs: float = argument(
        default=3.0, checks=(at_least(0),), help="passes over the training data; the last may be a fraction of one"
    )
    max_steps: int = argument(
        default=-1,
        checks=(unset_or_positive,),
        help="optimizer steps to train for, whatever num_train_epochs says; needed for data of unknown length; "
        "-1 leaves it to num_train_epochs",
    )
    auto_find_batch_size: bool = argument(
        default=False, help="when a training batch does not fit into memory, start again with a smaller one"
    )
    average_tokens_across_devices: bool = argument(
        default=True, help="divide the loss by the count of tokens of all processes together; one process is unaffected"
    )

    @rule("num_train_epochs", "max_steps")
    def _some_steps_to_train(self) -> None:
        if self.num_train_epochs == 0 and self.max_steps == -1:
            raise RefusalError("that makes no step to train", "give one of them a positive value")
