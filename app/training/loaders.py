"""The loaders that a Trainer makes from data sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen
from torch.utils.data import DataLoader

from hexloop.adapters.batches.torch.batches import LoaderBatches, length_of
from hexloop.adapters.batches.torch.collate import ColumnFilter
from hexloop.adapters.batches.torch.data_state import Progress, no_progress
from hexloop.adapters.batches.torch.external import ExternalBatches
from hexloop.adapters.batches.torch.loader import OrderedLoader, is_iterable
from hexloop.adapters.batches.torch.order import IndexSampler, OrderedBatchSampler, VectorisedPermutation
from hexloop.adapters.batches.torch.random_streams import KeyedDataset, preserved_rng_states
from hexloop.adapters.batches.torch.stream import KeyedRows, StreamLoader
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.accelerator_config import AcceleratorConfig
from hexloop.app.training.columns import without_unused_columns
from hexloop.app.training.passing_bar import passing_bar
from hexloop.domain.errors import ConfigurationError, DataError
from hexloop.domain.order import Order, Sequential
from hexloop.domain.order.grouped import GroupedByLength
from hexloop.domain.order.slices import Shard
from hexloop.ports.batches import Batches


@frozen
class LoaderMaker:
    """Makes loaders as the arguments say.

    columns: what the model takes (None: anything). pins_memory: whether the device gains from it.
    main_input: the field whose length is a sample's, where no length column says it.
    """

    args: TrainingArguments
    collate: Callable[[list[Any]], Any]
    columns: frozenset[str] | None
    pins_memory: bool
    main_input: str = "input_ids"

    def training(self, dataset: Any, batch_size: int) -> OrderedLoader | StreamLoader:
        """Batches of `batch_size` samples in the order that the arguments name."""
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return self._loader(dataset, batch_size, lambda data, epoch: self._order(data, seed, epoch), seed)

    def evaluation(self, dataset: Any) -> OrderedLoader | StreamLoader:
        """Batches of the evaluation size, every sample once, in the data set's own order.

        Its workers end with each pass: every evaluation has a loader of its own, which nobody would ask again.
        """
        return self._loader(
            dataset, self.args.eval_batch_size, lambda data, _epoch: Sequential(len(data)), None, keeps_workers=False
        )

    def sampled(self, dataset: Any, batch_size: int, sampler: Any) -> Any:
        """Batches in the order of a `sampler` of somebody else's, in torch's own loader."""
        dataset, collate = self._fitted(dataset)
        return DataLoader(
            dataset, batch_size, sampler=sampler, drop_last=self.args.dataloader_drop_last, **self._options(collate)
        )

    def training_sampler(self, dataset: Any) -> IndexSampler | None:
        """The indices of the training data in the order that the arguments name; None where they have none."""
        if dataset is None or is_iterable(dataset):
            return None
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return IndexSampler(lambda epoch: self._order(dataset, seed, epoch))

    def evaluation_sampler(self, dataset: Any) -> IndexSampler | None:
        """The indices of a data set, one after the other; None where they have none."""
        return None if is_iterable(dataset) else IndexSampler(lambda _epoch: Sequential(len(dataset)))

    def _options(self, collate: Callable[[list[Any]], Any], keeps_workers: bool = True) -> dict[str, Any]:
        """What every loader is told alike."""
        args = self.args
        return {
            "collate_fn": collate,
            "num_workers": args.dataloader_num_workers,
            "pin_memory": args.dataloader_pin_memory and self.pins_memory,
            "persistent_workers": args.dataloader_persistent_workers and keeps_workers,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "in_order": args.dataloader_in_order,
        }

    def _loader(
        self,
        dataset: Any,
        batch_size: int,
        order: Callable[[Any, int], Order],
        key_seed: int | None,
        keeps_workers: bool = True,
    ) -> OrderedLoader | StreamLoader:
        args = self.args
        dataset, collate = self._fitted(dataset)
        options = self._options(collate, keeps_workers)
        several = args.dataloader_num_workers > 0 or args.world_size > 1
        keyed = key_seed is not None and (several or args.keyed_data_randomness)
        if is_iterable(dataset):
            if key_seed is not None and args.train_sampling_strategy == "group_by_length":
                raise ConfigurationError(
                    [
                        "You chose train_sampling_strategy='group_by_length', but the training data can only be read "
                        "from the start, not sorted; choose 'random', or group them where they come from."
                    ]
                )
            evaluates, together = key_seed is None, global_batch_size(args, batch_size)
            if evaluates and args.world_size > 1:
                key_seed, keyed = args.seed, True  # all are to read the same
            return StreamLoader(
                dataset,
                batch_size=together // args.world_size if evaluates else together,
                key_seed=key_seed if keyed else None,
                progress=passing_bar(args),
                shards=self._shards(),
                in_turns=evaluates,
                drop_last=args.dataloader_drop_last,
                **options,
            )
        sampler = OrderedBatchSampler(
            lambda epoch: order(dataset, epoch),
            global_batch_size(args, batch_size),
            drop_last=args.dataloader_drop_last,
            keyed_by=key_seed if keyed else None,
            shard=Shard(args.process_index, args.world_size, in_blocks=key_seed is None),
        )
        return OrderedLoader(KeyedDataset(dataset) if keyed else dataset, sampler, **options)

    def _shards(self) -> list[Shard]:
        """The processes for which this one makes batches of data that can only be read from the start."""
        args = self.args
        every = [Shard(rank, args.world_size) for rank in range(args.world_size)]
        return every if dispatches(args) and args.process_index == 0 else [every[args.process_index]]

    def _fitted(self, dataset: Any) -> tuple[Any, Callable[[list[Any]], Any]]:
        """The data set and the collate function without what the model does not take."""
        if self.columns is None or not self.args.remove_unused_columns:
            return dataset, self.collate
        if hasattr(dataset, "remove_columns") and getattr(dataset, "column_names", None):
            return without_unused_columns(dataset, self.columns), self.collate
        return dataset, ColumnFilter(self.collate, self.columns)

    def _order(self, dataset: Any, seed: int, epoch: int) -> Order:
        length = len(dataset)
        if self.args.train_sampling_strategy == "sequential":
            return Sequential(length)
        if self.args.train_sampling_strategy == "group_by_length":
            step = global_batch_size(self.args, self.args.train_batch_size) * self.args.gradient_accumulation_steps
            return GroupedByLength(
                VectorisedPermutation(seed, epoch, length), step, lambda index: self._length(dataset, index)
            )
        return VectorisedPermutation(seed, epoch, length)

    def _length(self, dataset: Any, index: int) -> int:
        column = self.args.length_column_name
        with preserved_rng_states():  # a resumed run asks for these lengths once more
            sample = dataset[index]
        if column in sample:
            return int(sample[column])
        if self.main_input in sample:
            return len(sample[self.main_input])
        raise ConfigurationError(
            [
                "You chose train_sampling_strategy='group_by_length', but a sample has neither the column "
                f"{column!r} nor {self.main_input!r}; add one, or set length_column_name."
            ]
        )


def global_batch_size(args: TrainingArguments, batch_size: int) -> int:
    """The samples of a micro-batch over all processes, each of which has a `batch_size`, unless they split one.

    Raises ConfigurationError where that cannot be split.
    """
    if not _sharing_settings(args).split_batches:
        return batch_size * args.world_size
    if batch_size % args.world_size:
        raise ConfigurationError(
            [
                f"You chose split_batches=True in accelerator_config with batches of {batch_size}, but "
                f"{args.world_size} processes cannot divide them evenly; choose per_device_train_batch_size and "
                f"per_device_eval_batch_size among the multiples of {args.world_size}."
            ]
        )
    return batch_size


def splits(args: TrainingArguments) -> bool:
    """Whether the processes split each batch, instead of having one each."""
    return args.world_size > 1 and _sharing_settings(args).split_batches


def dispatches(args: TrainingArguments) -> bool:
    """Whether the first process reads for all."""
    return args.world_size > 1 and bool(_sharing_settings(args).dispatch_batches)


def _sharing_settings(args: TrainingArguments) -> AcceleratorConfig:
    config = args.accelerator_config
    return config if isinstance(config, AcceleratorConfig) else AcceleratorConfig()


def sampler_of(method: Callable[..., Any], dataset: Any) -> Any:
    """What an overridden method gives for `dataset`, which only newer releases of the reference library hand to it."""
    return method(dataset) if inspect.signature(method).parameters else method()


def batches_of(
    loader: Any, transfer: Transfer, inspect: Callable[[Any], None], progress: Progress = no_progress
) -> Batches[Any]:
    """Whoever answers the Batches port for a loader where one process reads it.

    hexloop's own begin anywhere, others are taken as they come.

    progress: told of the batches of another loader that are passed over.
    """
    if isinstance(loader, OrderedLoader | StreamLoader):
        return LoaderBatches(loader, transfer, inspect)
    return ExternalBatches(loader, transfer, inspect, progress)


def stop_workers(loader: Any) -> None:
    """End the workers that one of hexloop's own loaders kept for another epoch; others are their maker's."""
    if isinstance(loader, OrderedLoader | StreamLoader):
        loader.stop_workers()


def check_batch(batch: Any) -> None:
    """Raise DataError where a batch cannot be handed to a model: it is no mapping, or its samples are not stacked."""
    if not isinstance(batch, Mapping):
        raise DataError(
            f"The data_collator returned a value of type {type(batch).__name__}, but the model is called with "
            "keyword arguments; let it return a dictionary of tensors whose first dimension is the batch."
        )
    if row_count(batch) == 0:
        raise DataError(
            f"The data_collator returned {', '.join(map(str, batch)) or 'nothing'} without a batch dimension; "
            "let it stack its samples into tensors whose first dimension is the batch."
        )


def example_count(loader: Any) -> int | None:
    """How many samples a loader's data set has; None where nobody knows."""
    dataset = getattr(loader, "dataset", None)
    return length_of(dataset.dataset if isinstance(dataset, KeyedDataset | KeyedRows) else dataset)


def expected_rows(loader: Any) -> int | None:
    """How many samples the batches of a loader hold at most, where that is known before they are read."""
    count, batches = example_count(loader), length_of(loader)
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if count is None or batches is None or size is None:
        return count
    return int(min(count, batches * size * (loader.turns if isinstance(loader, StreamLoader) else 1)))
