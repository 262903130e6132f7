"""What a script is asked to do. The Trainer does what its methods are called for, whatever stands here."""

from __future__ import annotations

from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


@argument_group
class Scripts(Arguments):
    """Switches for scripts, which the Trainer itself does not go by."""

    do_train: bool = argument(default=False, help="whether the script should train")
    do_eval: bool = argument(
        default=False, help="whether the script should evaluate; set by itself where eval_strategy is not no"
    )
    overwrite_output_dir: bool = argument(
        default=False, help="old: whether a script may train into a folder that holds checkpoints already"
    )
    do_predict: bool = argument(default=False, help="whether the script should predict on the test set")
