"""Data of a run: loaders from data sets, and each process's batches from loaders."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeVar, cast

from attrs import evolve

from hexloop.adapters.batches.torch.batches import (
    LoaderBatches,
    LoaderFactory,
    ShardedBatches,
    example_count,
    length_of,
    too_many_ranks,
)
from hexloop.adapters.batches.torch.collate import DataCollatorWithPadding, default_data_collator
from hexloop.adapters.batches.torch.data_state import Progress, no_progress
from hexloop.adapters.batches.torch.external import ExternalBatches, ExternalShares, SampledShares
from hexloop.adapters.batches.torch.loader import (
    OrderedLoader,
    is_iterable,
    is_sharded_already,
    reads_by_index,
    unsharded_batches,
)
from hexloop.adapters.batches.torch.order import random_fingerprint
from hexloop.adapters.batches.torch.prepared import PreparedLoader
from hexloop.adapters.batches.torch.replay import ReplayedBatches
from hexloop.adapters.batches.torch.reproduction import (
    AccelerateSettings,
    ReproducingFactory,
    import_before_seeding,
    rows_to_keep,
    stop_shielded_workers,
)
from hexloop.adapters.batches.torch.shares import Compare, Dispatcher, SharingOptions
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.batches.torch.structure import Transfer, batch_fingerprint, map_entries, shallow_copy, transfer_to
from hexloop.adapters.trainable.torch.forward import forward_parameters, used_columns
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.app.callbacks.progress import SkipProgressBar, shows_bars
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.transfer import Inspect
from hexloop.domain.errors import CollectiveError, ConfigurationError, DataError
from hexloop.ports.batches import Batches, Padding
from hexloop.ports.mesh import DATA, Mesh, Place

__all__ = [
    "batch_fingerprint",
    "example_count",
    "import_before_seeding",
    "is_iterable",
    "length_of",
    "map_entries",
    "random_fingerprint",
    "rows_to_keep",
]
"""Adapters' names that the rest of the app gets from here."""

Loaders = TypeVar("Loaders", LoaderFactory, ReproducingFactory)

# Loaders


def loader_factory(parts: TrainerParts) -> LoaderFactory:
    """Return what makes the loaders of this process, as the arguments and the model's forward require."""
    args, ranks = parts.args, parts.adapters.mesh.data
    return LoaderFactory(
        collate=parts.data_collator,
        columns=_columns(parts),
        torch_options=_torch_options(parts),
        seed=args.seed,
        data_seed=_data_seed(args),
        rank=ranks.rank,
        world_size=ranks.size,
        dispatches=_dispatches(args, ranks),
        keyed=args.keyed_data_randomness,
        drop_last=args.dataloader_drop_last,
        sampling=_sampling(args),
        training_batch=lambda: global_batch_size(args, ranks, parts.train_batch_size),
        accumulation=lambda: args.gradient_accumulation_steps,
        length_column=args.length_column_name,
        main_input=parts.main_input_name,
        progress=_skip_progress(args),
    )


def reproducing_factory(parts: TrainerParts) -> ReproducingFactory:
    """Return what makes the loaders of this process as transformers makes them."""
    args, ranks, settings = parts.args, parts.adapters.mesh.data, _sharing_settings(parts.args)
    inputs = getattr(parts.processing_class, "model_input_names", None)
    return ReproducingFactory(
        collate=parts.data_collator,
        columns=_columns(parts),
        torch_options=_torch_options(parts),
        accelerate=AccelerateSettings(
            device=parts.adapters.device.name,
            rank=ranks.rank,
            world_size=ranks.size,
            mixed_precision=str(args.mixed_precision),
            split_batches=settings.split_batches,
            dispatch_batches=settings.dispatch_batches,
            even_batches=settings.even_batches,
            use_seedable_sampler=settings.use_seedable_sampler,
            non_blocking=settings.non_blocking,
            data_seed=args.data_seed,
        ),
        seed=_data_seed(args),
        drop_last=args.dataloader_drop_last,
        sampling=_sampling(args),
        train_batch_size=args.train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        eval_group_size=args.eval_batch_size,
        length_column=args.length_column_name,
        main_input=inputs[0] if inputs else None,
    )


def _torch_options(parts: TrainerParts) -> dict[str, Any]:
    args = parts.args
    return {
        "num_workers": args.dataloader_num_workers,
        "pin_memory": args.dataloader_pin_memory and parts.adapters.device.capabilities.pins_memory,
        "persistent_workers": args.dataloader_persistent_workers,
        "multiprocessing_context": args.dataloader_multiprocessing_context,
        "prefetch_factor": args.dataloader_prefetch_factor,
        "in_order": args.dataloader_in_order,
        "timeout": args.dataloader_timeout,
    }


def _sampling(args: TrainingArguments) -> str:
    return str(getattr(args.train_sampling_strategy, "value", args.train_sampling_strategy))


def _columns(parts: TrainerParts) -> frozenset[str] | None:
    """Return the columns that are kept: those that the user assigned to `_signature_columns`, or that forward takes."""
    if not parts.args.remove_unused_columns:
        return None
    if parts.signature_columns is not None:
        return frozenset(parts.signature_columns)
    return used_columns(parts.model, parts.label_names)


def without_columns(loaders: Loaders, collate: Callable[[list[Any]], Any] | None = None) -> Loaders:
    """Return loaders that leave no column out, because the user selects them; `collate` replaces theirs."""
    return evolve(loaders, columns=None, collate=loaders.collate if collate is None else collate)


def signature_columns(model: Any, label_names: Iterable[str]) -> list[str]:
    """Return the parameters of the model's forward, "label", "label_ids" and the label names, each once."""
    return list(dict.fromkeys([*forward_parameters(model), "label", "label_ids", *label_names]))


def selected_columns(loaders: LoaderFactory | ReproducingFactory, dataset: Any) -> Any:
    """Return the dataset with only the columns that the loaders keep."""
    return loaders.fitted(dataset)[0]


def selecting_collator(
    loaders: LoaderFactory | ReproducingFactory, collate: Callable[[list[Any]], Any]
) -> Callable[[list[Any]], Any]:
    """Return `collate` without the columns that the loaders leave out."""
    return evolve(loaders, collate=collate).fitted(())[1]


def default_collator(processing_class: Any) -> Callable[[list[Any]], Any]:
    """Return the collate function to use if the user passed none."""
    return DataCollatorWithPadding(processing_class) if hasattr(processing_class, "pad") else default_data_collator


def global_batch_size(args: TrainingArguments, ranks: Place, batch_size: int) -> int:
    """Return the samples of a micro-batch of all processes together.

    ranks: the processes that read different samples. batch_size: of each of them, or with `split_batches` of all.
    Raises ConfigurationError if it cannot be split.
    """
    if not _sharing_settings(args).split_batches:
        return batch_size * ranks.size
    if batch_size % ranks.size:
        raise ConfigurationError(
            f"split_batches=True in accelerator_config cannot split batches of {batch_size} evenly among "
            f"{ranks.size} processes; choose per_device_train_batch_size and per_device_eval_batch_size among "
            f"the multiples of {ranks.size}."
        )
    return batch_size


def splits(args: TrainingArguments, ranks: Place) -> bool:
    """Return whether the processes split each batch, instead of having one each."""
    return ranks.size > 1 and _sharing_settings(args).split_batches


def sampler_from(method: Callable[..., Any], dataset: Any) -> Any:
    """Call an overridden sampler method, with the dataset if it takes it, as in newer releases of transformers.

    Returns None without a call for data that can only be read from the start.
    """
    if is_iterable(dataset):
        return None
    return method(dataset) if inspect.signature(method).parameters else method()


def is_own_loader(candidate: object) -> bool:
    """Return whether an object is one of hexloop's loaders, which share their batches among the processes."""
    return isinstance(candidate, OrderedLoader | StreamLoader)


def stop_workers(loader: Any) -> None:
    """Stop the persistent workers of one of hexloop's loaders; the user stops those of other loaders."""
    if isinstance(loader, OrderedLoader | StreamLoader):
        loader.stop_workers()
    else:
        stop_shielded_workers(loader)


# Batches


def training_data(parts: TrainerParts, loader: Any, transfer: Transfer, inspect: Inspect) -> Batches[Any]:
    """Return this process's batches of a training loader, hexloop's or the user's.

    Raises ConfigurationError if there are fewer samples than processes, or if an overridden step would see padding
    because the last batch of an epoch is known to have fewer.
    """
    world, progress = parts.adapters.mesh.data.size, _skip_progress(parts.args)
    if parts.args.reproduce is not None:
        evaluation_loader = parts.hooks.get_eval_dataloader

        def kept_loader(name: str) -> Any:
            return evaluation_loader(None if name == "eval" else name)

        return ReplayedBatches(loader, transfer, inspect, progress, world, (parts.kept_loaders, kept_loader))
    if world == 1 and isinstance(loader, OrderedLoader | StreamLoader):
        return LoaderBatches(loader, transfer, inspect)
    if world == 1:
        return ExternalBatches(loader, transfer, inspect, progress)
    overridden = parts.hooks.training_step.overridden
    batches = _shares(parts, loader, _without_padding(transfer) if overridden else transfer, inspect, progress)
    samples = batches.samples_per_epoch()
    if samples is not None and 0 < samples < world:
        raise ConfigurationError(too_many_ranks(world, samples))
    if overridden and _pads(batches, world):
        raise ConfigurationError(PADDING_IN_OVERRIDDEN_STEP)
    return batches


def evaluation_batches(parts: TrainerParts, loader: Any) -> Iterable[Any]:
    """Return this process's batches of an evaluation loader: over all processes each row once, in order.

    With `reproduce` they are the loader's own, as in transformers, in which the last one may repeat rows.
    """
    if parts.args.reproduce is not None:
        return parts.kept_loaders.reading(loader)
    if parts.adapters.mesh.data.size == 1:
        return cast(Iterable[Any], loader)
    shared = _shares(parts, loader, lambda batch: batch, lambda _batch: None, no_progress, unsharded_batches(loader))
    return _batches_of_shares(shared)


def prepared_inputs(inputs: Any, device: str) -> Any:
    """Return a copy of a batch's mapping, with its tensors on the device."""
    return transfer_to(device, non_blocking=True)(shallow_copy(inputs))


# Sharing of batches among processes

Shared = ShardedBatches | ExternalBatches

PADDING_IN_OVERRIDDEN_STEP = (
    "The last batch of an epoch has fewer samples than there are processes, and the results of a process without "
    "samples must not count, which an overridden training_step cannot know; set dataloader_drop_last=True, or override "
    "compute_loss instead."
)


def _shares(
    parts: TrainerParts,
    loader: Any,
    transfer: Transfer,
    inspect: Inspect,
    progress: Progress,
    whole: Iterable[list[Any]] | None = None,
) -> Shared:
    """Return this process's shares of the batches of a loader. whole: batches to read instead of the loader's own."""
    world = parts.adapters.mesh.data.size
    if isinstance(loader, OrderedLoader | StreamLoader):
        at_least = world if loader.num_workers < 2 else 1  # the last batch of one of several workers may be smaller
        return ShardedBatches(loader, _sharing(parts, loader), transfer, inspect, at_least)
    if is_sharded_already(loader) and whole is None:
        return ExternalBatches(loader, transfer, inspect, progress, world)
    sharing = _sharing(parts, loader, whole)
    kind = SampledShares if reads_by_index(loader) and sharing.distribute is None else ExternalShares
    return kind(loader, sharing, transfer, inspect, progress)


def _batches_of_shares(shared: Shared) -> Iterator[Any]:
    try:
        with closing(shared.shares_from(0, 0)) as shares:
            for share in shares:
                yield share.batch
    finally:
        end_pass(shared)


def end_pass(batches: Any) -> None:
    """Let accelerate's state no longer have the loader of these batches as one that is read."""
    loader = getattr(batches, "loader", None)
    if isinstance(loader, PreparedLoader):
        loader.end()


def _pads(batches: Shared, world_size: int) -> bool:
    """Return whether the last batch of an epoch is known to have fewer samples than there are processes."""
    if isinstance(batches, ExternalShares):
        incomplete = (length_of(batches.loader) or 0) % world_size > 0
        return incomplete and not batches.sharing.splits and not batches.drops_last
    samples, loader = batches.samples_per_epoch(), batches.loader
    if samples is None or not isinstance(batches, ShardedBatches):
        return False
    if isinstance(loader, StreamLoader):
        drops = loader.drop_last or loader.num_workers > 1  # then each worker has an incomplete batch
    else:
        drops = loader.order.drop_last
    return not drops and 0 < samples % loader.cursor.batch_size < world_size


def _without_padding(transfer: Transfer) -> Transfer:
    def transfer_or_raise(batch: Any) -> Any:
        if isinstance(batch, Padding):
            raise DataError(PADDING_IN_OVERRIDDEN_STEP)
        return transfer(batch)

    return transfer_or_raise


def _comparison(parts: TrainerParts) -> Compare:
    """Return a check that all processes start with the same rows, for data that each of them reads completely."""
    collectives = parts.adapters.data_collectives

    def compare(first_row: Any, failure: str | None) -> None:
        own = None if first_row is None else str(batch_fingerprint(first_row))
        found = cast("list[tuple[str | None, str | None]]", collectives.gather([own, failure]))
        failed = [rank for rank, (_, cause) in enumerate(found) if cause is not None]
        if failed:
            if failure is None:
                raise CollectiveError(f"Rank {failed[0]} cannot read its data: {found[failed[0]][1]}")
        elif len({row for row, _ in found}) > 1:
            raise DataError(
                "The processes read different rows, although each reads all data and takes its share of every batch: "
                "the dataset or its sampler selects a part by rank (as after split_dataset_by_node), or each process "
                "draws an order of its own. Let all processes read the same (torch's DistributedSampler may select a "
                "part by rank), or set accelerator_config={'dispatch_batches': True}, so that rank 0 reads for all."
            )

    return compare


def _sharing(parts: TrainerParts, loader: Any, batch_sampler: Iterable[list[Any]] | None = None) -> SharingOptions:
    args, collectives, mesh = parts.args, parts.adapters.data_collectives, parts.adapters.mesh
    ranks = mesh.data

    def from_rank_zero(states: list[str]) -> list[str]:
        return cast(list[str], collectives.broadcast(states))

    return SharingOptions(
        ranks.rank,
        ranks.size,
        _data_seed(args),
        splits(args, ranks),
        from_rank_zero,
        _dispatcher(args, mesh).distribute
        if _dispatches(args, ranks) and not isinstance(loader, OrderedLoader)
        else None,
        _comparison(parts),
        batch_sampler,
    )


def _dispatcher(args: TrainingArguments, mesh: Mesh) -> Dispatcher:
    """Return how rank 0 distributes what it reads. The first call is collective."""
    from hexloop.adapters.collectives.torch.tensors import host_group

    return Dispatcher(mesh.data.rank, mesh.data.size, host_group(float(args.ddp_timeout), mesh.ranks(*DATA)))


def _dispatches(args: TrainingArguments, ranks: Place) -> bool:
    """Return whether rank 0 reads for all."""
    return ranks.size > 1 and bool(_sharing_settings(args).dispatch_batches)


def _sharing_settings(args: TrainingArguments) -> AcceleratorConfig:
    config = args.accelerator_config
    return config if isinstance(config, AcceleratorConfig) else AcceleratorConfig()


def _data_seed(args: TrainingArguments) -> int:
    return args.seed if args.data_seed is None else args.data_seed


def _skip_progress(args: TrainingArguments) -> Progress:
    return SkipProgressBar() if shows_bars(args) else no_progress
