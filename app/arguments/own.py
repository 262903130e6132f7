"""The arguments that the reference library does not have."""

from __future__ import annotations

from hexloop.app.arguments.checks import one_of
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


@argument_group
class Own(Arguments):
    """hexloop's own.

    loss_weighting: how the losses of the micro-batches of one optimizer step are put together. `exact` weighs each by
        the items in it (labels that count, else rows), so that accumulating over 4 batches equals one batch four times
        as large. `reference` takes the mean of the micro-batches' means, as the reference library does for models that
        do not take the count of items.
    keyed_data_randomness: with loader workers or several processes, the random streams of each sample are keyed by its
        position. True does so in a single process without workers as well, and then any number of workers gives the
        same samples; it costs a few microseconds a sample.
    save_async: write checkpoints behind the loop instead of making training wait for them.
    """

    loss_weighting: str = argument(
        default="exact",
        checks=(one_of("exact", "reference"),),
        help="how accumulated losses are weighed: exact (by the items in each), or reference (mean of means)",
    )
    keyed_data_randomness: bool = argument(
        default=False, help="key each sample's random streams by its position even without loader workers"
    )
    save_async: bool = argument(
        default=False, help="write checkpoints behind the loop instead of making training wait for them"
    )
