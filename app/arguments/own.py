"""The arguments that the reference library does not have."""

from __future__ import annotations

from hexloop.app.arguments.checks import each_one_of, one_of
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.journal import Journal
from hexloop.app.arguments.preemption import Preemption


@argument_group
class Own(Journal, Preemption):
    """hexloop's own.

    loss_weighting: how the losses of the micro-batches of one optimizer step are put together. `exact` weighs each by
        the items in it (labels that count, else rows), so that accumulating over 4 batches equals one batch four times
        as large. `reference` takes the mean of the micro-batches' means, as the reference library does for models that
        do not take the count of items.
    keyed_data_randomness: with loader workers or several processes, the random streams of each sample are keyed by its
        position. True does so in a single process without workers as well, and then any number of workers gives the
        same samples; it costs a few microseconds a sample.
    predictions_folder: a folder on whose disk evaluation keeps the arrays of predictions, labels and inputs, as files
        that are mapped into memory and go with the arrays. What is larger than the memory can be evaluated so.
    save_async: write checkpoints behind the loop instead of making training wait for them. It takes memory for one more
        copy of the weights and the optimizer's state. A run with a callback that overrides `on_save`, or a Trainer that
        overrides `save_model`, waits all the same.
    save_when_busy: what happens to a save that comes due while an earlier one is still being written: `wait` for that,
        or `skip` it, unless somebody asked for it, or it is that of the best evaluation so far, or the run's last.
    resume_despite: what may differ between a checkpoint and the run that goes on from it, which is refused otherwise.
        `precision`: the weights are converted. `optimizer`: one of another class or other groups begins anew; other
        options are this run's. `data_length`: the order of samples is that of the new data. `batch_size`: the run goes
        on at the same sample, and a schedule of its own is stretched over the steps that are left.
    """

    loss_weighting: str = argument(
        default="exact",
        checks=(one_of("exact", "reference"),),
        help="how accumulated losses are weighed: exact (by the items in each), or reference (mean of means)",
    )
    keyed_data_randomness: bool = argument(
        default=False, help="key each sample's random streams by its position even without loader workers"
    )
    predictions_folder: str | None = argument(
        default=None,
        help="folder in which evaluation keeps the arrays of predictions as mapped files; in memory if not given",
    )
    save_async: bool = argument(
        default=True, help="write checkpoints behind the loop instead of making training wait for them"
    )
    save_when_busy: str = argument(
        default="wait",
        checks=(one_of("wait", "skip"),),
        help="when a save comes due while one is being written: wait for that one, or skip it",
    )
    resume_despite: list[str] = argument(
        factory=list,
        checks=(each_one_of("precision", "optimizer", "data_length", "batch_size"),),
        help="what may differ from the checkpoint that the run goes on from: precision, optimizer, data_length, "
        "batch_size",
    )
