"""`compile_buckets`: the batches of which loaders are padded to planned lengths, and by which order of samples."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from attrs import frozen

from hexloop.adapters.batches.torch.batches import TorchBatches
from hexloop.adapters.batches.torch.buckets import BucketCollate, buckets_of
from hexloop.adapters.batches.torch.collate import Collate, collate_columns
from hexloop.adapters.batches.torch.lengths import planned_collate
from hexloop.adapters.batches.torch.loader import example_count, length_of
from hexloop.adapters.batches.torch.order import rebalances
from hexloop.adapters.batches.torch.passes import KeptLoaders
from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.mesh import Place

LOGGER = logging.getLogger("hexloop")


@frozen
class Buckets:
    """Lets collate functions pad to planned lengths.

    most: how many lengths there may be. ranks: the place of this process among those that read different samples.
    sampling: the strategy by which training samples are ordered. main_input: the name of the model's main input. plans:
    keeps the plan of a data set for its next loader.
    """

    most: int
    args: TrainingArguments
    ranks: Place
    sampling: str
    main_input: str
    plans: KeptLoaders

    def training_collate(
        self, given: Any, data: Any, collate: Collate, batch_size: int, sampler: Any = None
    ) -> Collate:
        """Return what collates and pads the batches of training, all of which have the same number of samples.

        given, data: the data set before and after unused columns are left out. batch_size: samples of all processes.
        sampler: of the user's, which decides the order. Raises ConfigurationError if the batches cannot be padded, or
        if their numbers of samples differ.
        """
        if sampler is not None and rebalances(sampler):
            raise ConfigurationError(
                f"{self._chosen} needs training batches of one size, and those of the {type(sampler).__name__} differ; "
                "choose another sampler, or leave compile_buckets out."
            )
        if not self.args.dataloader_drop_last:
            self._refuse_incomplete_batch(batch_size, len(data) if sampler is None else length_of(sampler))
        drawn: int | None = self._rows(batch_size)
        if sampler is None and self.sampling != "random":
            # A batch of samples of similar lengths has nearly the length of any of them.
            drawn = None if self.sampling == "sequential" else 1
        return self._planned(given, data, collate, batch_size, drawn)

    def evaluation_collate(
        self, given: Any, data: Any, collate: Collate, batch_size: int, sampler: Any = None
    ) -> Collate:
        """Return what collates and pads the batches of an evaluation, by a plan of its own data.

        The last batch may have fewer samples, because each is predicted. An evaluation that generates is not padded: no
        two of its steps have the same shapes. See `training_collate` for the parameters.
        """
        if getattr(self.args, "predict_with_generate", False):
            return collate
        return self._planned(given, data, collate, batch_size, None if sampler is None else self._rows(batch_size))

    def _planned(self, given: Any, data: Any, collate: Collate, batch_size: int, drawn: int | None) -> Collate:
        """Return a collate function by a plan that is kept. drawn: samples of a batch at random; None if in order."""
        args, most, rows = self.args, self.most, self._rows(batch_size)

        def plan() -> BucketCollate:
            column = args.length_column_name
            planned = planned_collate(given, data, collate, most, drawn, rows, column, self.main_input)
            if args.should_log:
                _log_plan(planned)
            return planned

        selecting = isinstance(collate, partial) and collate.func is collate_columns
        function, columns = collate.args if selecting else (collate, None)  # type: ignore[attr-defined]
        values = len(data), columns, most, drawn, rows, args.length_column_name, self.main_input
        kept: BucketCollate = self.plans.plan_of((given, function), values, plan)
        return kept

    def _refuse_incomplete_batch(self, batch_size: int, samples: int | None) -> None:
        """Raise ConfigurationError unless all batches of an epoch have the same number of samples.

        Rows that fill up the last one could change its loss: not every loss ignores a label, and the samples of a batch
        may depend on each other.
        """
        if samples is not None and samples % batch_size == 0:
            return
        left = "the sampler has no length, so that fewer may be left"
        if samples is not None:
            left = f"{samples} samples leave {samples % batch_size}"
        raise ConfigurationError(
            f"{self._chosen} needs training batches of one size, which is {batch_size}, and {left} for the last batch "
            "of an epoch, whose shape would be another; set dataloader_drop_last=True, or choose a batch size that "
            "divides the samples."
        )

    def _rows(self, batch_size: int) -> int:
        """Return the samples of a batch of this process."""
        return max(1, batch_size // self.ranks.size)

    @property
    def _chosen(self) -> str:
        return f"compile_buckets={self.most}"


def refuse_stream(most: int) -> None:
    """Raise ConfigurationError for training data that can only be read from the start."""
    raise ConfigurationError(
        f"compile_buckets={most} plans by the lengths of all samples, and those of an iterable dataset are not known "
        "before they are trained on; pad them in the data_collator, such as with pad_to_multiple_of, and leave "
        "compile_buckets out, or pass a dataset with indices."
    )


def refuse_unpadded(most: int, loader: Any) -> None:
    """Raise ConfigurationError if a training loader does not pad to planned lengths."""
    if buckets_of(loader) is None and example_count(loader) != 0:
        raise ConfigurationError(
            f"compile_buckets={most} pads the batches of hexloop's own loaders, and the training "
            f"loader is a {type(loader).__name__} that get_train_dataloader or accelerator.prepare returned, or whose "
            "collate_fn was replaced; pad the batches there, and leave compile_buckets out."
        )


def _log_plan(planned: BucketCollate) -> None:
    if not planned.axes:
        LOGGER.info("You chose compile_buckets=%d, which has no effect here: all samples have one shape.", planned.most)
        return
    LOGGER.info(
        "compile_buckets=%d: batches are padded to the lengths %s, and are %.1f %% larger than their longest samples "
        "require.",
        planned.most,
        ", ".join(" and ".join(map(str, dict.fromkeys(sizes))) for sizes in planned.buckets),
        100 * planned.added,
    )


def described(batches: object) -> dict[str, Any] | None:
    """Return by what the padded lengths of a run's batches were planned; None if they are not planned."""
    planned = buckets_of(batches.loader) if isinstance(batches, TorchBatches) else None
    return None if planned is None else {"most": planned.most, "data": planned.data}
