"""The loaders that a Trainer makes from data sets."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, cast

from attrs import frozen
from torch.utils.data import DataLoader

from hexloop.adapters.batches.torch.batches import (
    Distribute,
    LoaderBatches,
    ShardedBatches,
    length_of,
    local_share,
    too_many_ranks,
)
from hexloop.adapters.batches.torch.collate import ColumnFilter
from hexloop.adapters.batches.torch.data_state import Progress, no_progress
from hexloop.adapters.batches.torch.external import (
    ExternalBatches,
    is_sharded_already,
    reads_by_index,
    unsharded_batches,
)
from hexloop.adapters.batches.torch.external_shares import (
    ExternalShares,
    PresplitBatches,
    SampledShares,
    SharingOptions,
)
from hexloop.adapters.batches.torch.fingerprints import batch_fingerprint
from hexloop.adapters.batches.torch.loader import OrderedLoader, is_iterable
from hexloop.adapters.batches.torch.order import IndexSampler, OrderedBatchSampler, VectorisedPermutation
from hexloop.adapters.batches.torch.random_streams import KeyedDataset, preserved_rng_states
from hexloop.adapters.batches.torch.shares import Dispatcher
from hexloop.adapters.batches.torch.stream import KeyedRows, StreamLoader
from hexloop.adapters.batches.torch.structure import Transfer, row_count
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.app.callbacks.progress import SkipProgressBar, shows_bars
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError, DataError
from hexloop.domain.order import Order, Sequential
from hexloop.domain.order.grouped import GroupedByLength
from hexloop.domain.order.slices import Shard
from hexloop.ports.batches import Batches, Padding


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
                progress=_skip_progress(args),
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
            return _without_unused_columns(dataset, self.columns), self.collate
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


def _skip_progress(args: TrainingArguments) -> Progress:
    return SkipProgressBar() if shows_bars(args) else no_progress


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


def _without_unused_columns(dataset: Any, columns: frozenset[str]) -> Any:
    """A `datasets.Dataset` without the columns that the model does not take.

    Raises ConfigurationError, naming both sides, where no column is left.
    """
    unused = [name for name in dataset.column_names if name not in columns]
    if len(unused) == len(dataset.column_names):
        raise ConfigurationError(
            [
                f"The data set has the columns {', '.join(unused)}, and the model takes {', '.join(sorted(columns))}: "
                "none fits; rename the columns, or set remove_unused_columns=False and collate them yourself."
            ]
        )
    if unused:
        logging.getLogger("hexloop").info(
            "The columns %s of the data set are left out, as the model's forward does not take them; "
            "set remove_unused_columns=False to keep them.",
            ", ".join(unused),
        )
    return dataset.remove_columns(unused)


Shared = ShardedBatches | ExternalShares | PresplitBatches


def _as_it_is(batch: Any) -> Any:
    return batch


def _uninspected(batch: Any) -> None:
    """Any batch will do."""


def training_batches(
    parts: TrainerParts, loader: Any, transfer: Callable[[Any], Any], inspect: Callable[[Any], None]
) -> Batches[Any]:
    """The batches of this process of a training loader, whoever made it."""
    progress = _skip_progress(parts.args)
    if parts.args.world_size == 1:
        return batches_of(loader, transfer, inspect, progress)
    if parts.hooks.training_step.overridden:
        transfer = _without_padding(transfer)
    if isinstance(loader, OrderedLoader | StreamLoader):
        distribute = _distribute(parts, loader)
        reads = distribute is local_share or _is_first(parts)
        at_least = parts.args.world_size if loader.num_workers < 2 else 1  # of one worker there may be less
        return ShardedBatches(loader, transfer, inspect, distribute, reads, _comparing(parts), at_least)
    if is_sharded_already(loader):
        return PresplitBatches(loader, parts.args.world_size, transfer, inspect, progress)
    sharing = _sharing(parts)
    if reads_by_index(loader) and sharing.distribute is None:
        return SampledShares(loader, sharing, transfer, inspect, progress)
    return ExternalShares(loader, sharing, transfer, inspect, progress)


def evaluation_batches(parts: TrainerParts, loader: Any) -> Iterable[Any]:
    """The batches of this process of a loader to evaluate on: over all processes each row once, in order."""
    if parts.args.world_size == 1:
        return cast(Iterable[Any], loader)
    return _batches_of_shares(_evaluation_shares(parts, loader))


def _evaluation_shares(parts: TrainerParts, loader: Any) -> Shared:
    if isinstance(loader, OrderedLoader | StreamLoader):
        return ShardedBatches(loader, _as_it_is, distribute=_distribute(parts, loader), compare=_comparing(parts))
    sharing, whole = _sharing(parts), unsharded_batches(loader)
    if is_sharded_already(loader) and whole is None:
        return PresplitBatches(loader, parts.args.world_size, _as_it_is)
    if reads_by_index(loader) and sharing.distribute is None:
        return SampledShares(loader, sharing, _as_it_is, batch_sampler=whole)
    return ExternalShares(loader, sharing, _as_it_is)


def _batches_of_shares(shared: Shared) -> Iterator[Any]:
    with closing(shared.shares_from(0, 0)) as shares:
        for share in shares:
            yield share.batch


def refuse_too_many_processes(parts: TrainerParts, batches: Batches[Any]) -> None:
    """Raise ConfigurationError where the data are too few for the processes, or for a step of the user's own."""
    world, samples = parts.args.world_size, batches.samples_per_epoch()
    if world == 1:
        return
    if samples is not None and 0 < samples < world:
        raise ConfigurationError([too_many_ranks(world, samples)])
    if parts.hooks.training_step.overridden and _pads(batches, world):
        raise ConfigurationError([_no_padding()])


def _pads(batches: Batches[Any], world: int) -> bool:
    """Whether the last batch is known to have less than a sample for each process."""
    if isinstance(batches, ShardedBatches):
        samples, loader = batches.samples_per_epoch(), batches.loader
        drops = loader.drop_last if isinstance(loader, StreamLoader) else loader.batch_sampler.drop_last  # type: ignore[union-attr]
        ends = max(1, loader.num_workers) if isinstance(loader, StreamLoader) else 1
        rest = 0 if samples is None else samples % loader.cursor.batch_size
        return not drops and ends == 1 and 0 < rest < world
    if isinstance(batches, ExternalShares) and not batches.sharing.splits and not batches.drops_last:
        return (length_of(batches.loader) or 0) % world > 0
    return False


def _no_padding() -> str:
    return (
        "You overrode training_step, but the last batch of an epoch has not a sample for each process, and what a "
        "process without one computes must not count, which only the standard step knows; set "
        "dataloader_drop_last=True, or override compute_loss."
    )


def _without_padding(transfer: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def transferred(batch: Any) -> Any:
        if isinstance(batch, Padding):
            raise DataError(_no_padding())
        return transfer(batch)

    return transferred


def _comparing(parts: TrainerParts) -> Callable[[Any], None]:
    """See to it that all processes begin with the same rows, where each of them reads all."""

    def compare(first_row: Any) -> None:
        if len(set(map(str, parts.adapters.collectives.gather(batch_fingerprint(first_row))))) > 1:
            raise DataError(
                "The processes read different rows, where each reads the whole and takes its share of every batch: the "
                "data, or their sampler, take a part by the rank (as after split_dataset_by_node), or an order that "
                "each process draws for itself. Let all read the same (a part by the rank may come from torch's "
                "DistributedSampler), or set accelerator_config={'dispatch_batches': True}, and the first process "
                "reads for all."
            )

    return compare


def _distribute(parts: TrainerParts, loader: OrderedLoader | StreamLoader) -> Distribute:
    if isinstance(loader, OrderedLoader) or not dispatches(parts.args):
        return local_share
    return dispatcher_of(parts).distribute


def _is_first(parts: TrainerParts) -> bool:
    return parts.args.process_index == 0


def _sharing(parts: TrainerParts) -> SharingOptions:
    args, collectives = parts.args, parts.adapters.collectives

    def from_rank_zero(states: list[str]) -> list[str]:
        return cast(list[str], collectives.broadcast(states))

    return SharingOptions(
        args.process_index,
        args.world_size,
        args.seed if args.data_seed is None else args.data_seed,
        splits(args),
        from_rank_zero,
        dispatcher_of(parts).distribute if dispatches(args) else None,
        _comparing(parts),
    )


def dispatcher_of(parts: TrainerParts) -> Dispatcher:
    """How the first process hands out what it reads. All processes ask for it together, at the first time."""
    from hexloop.adapters.collectives.torch.tensors import host_group

    args = parts.args
    return Dispatcher(args.process_index, args.world_size, host_group(float(args.ddp_timeout)))
