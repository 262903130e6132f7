"""Each process's batches of a loader, hexloop's or the user's, and the counters of their tokens and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, TypeAlias, cast

from hexloop.adapters.batches.torch.batches import LoaderBatches, TorchBatches, too_many_ranks
from hexloop.adapters.batches.torch.data_state import no_progress
from hexloop.adapters.batches.torch.external import ExternalBatches, SampledBatches
from hexloop.adapters.batches.torch.loader import (
    OrderedLoader,
    PreparedLoader,
    ResumableLoader,
    is_sharded_already,
    reads_by_index,
    unsharded_batches,
)
from hexloop.adapters.batches.torch.replay import ReplayedBatches
from hexloop.adapters.batches.torch.reproduction import stop_shielded_workers
from hexloop.adapters.batches.torch.shares import ALONE, Compare, Dispatcher, SharingOptions
from hexloop.adapters.batches.torch.structure import Transfer, batch_fingerprint
from hexloop.adapters.trainable.torch import counters
from hexloop.adapters.trainable.torch.counters import OperationCounter, OperationMeter, TokenCounter, Total
from hexloop.adapters.trainable.torch.names import is_compiled, unwrapped
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.framework import RunCounters
from hexloop.app.assembly.learner import RunLearner
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.buckets import refuse_unpadded
from hexloop.app.assembly.torch.data import skip_progress
from hexloop.app.assembly.torch.transfer import Inspect
from hexloop.domain.errors import CollectiveError, ConfigurationError, DataError
from hexloop.domain.run import Run
from hexloop.ports.batches import Batches, Padding
from hexloop.ports.mesh import DATA, Mesh


def training_data(parts: TrainerParts, loader: Any, transfer: Transfer, inspect: Inspect) -> Batches[Any]:
    """Return this process's batches of a training loader, hexloop's or the user's.

    transfer: moves a batch to the device. inspect: checks the first one.
    Raises ConfigurationError if there are fewer samples than processes, if an overridden step would see padding because
    the last batch of an epoch is known to have fewer, or if the loader does not pad as `compile_buckets` requires.
    """
    ranks = parts.adapters.mesh.data
    if not parts.rules.own_order:
        evaluation_loader = parts.hooks.get_eval_dataloader

        def kept_loader(name: str) -> Any:
            return evaluation_loader(None if name == "eval" else name)

        own, kept = SharingOptions(ranks, separate=True), (parts.kept_loaders, kept_loader)
        return ReplayedBatches(loader, transfer, inspect, skip_progress(parts.args), own, kept)
    if parts.args.compile_buckets is not None:
        refuse_unpadded(parts.args.compile_buckets, loader)
    overridden = ranks.size > 1 and parts.hooks.takes_steps
    batches = _batches(parts, loader, _without_padding(transfer) if overridden else transfer, inspect)
    samples = batches.samples_per_epoch() if ranks.size > 1 else None
    if samples is not None and 0 < samples < ranks.size:
        raise ConfigurationError(too_many_ranks(ranks.size, samples))
    if overridden and batches.pads:
        raise ConfigurationError(PADDING_IN_OVERRIDDEN_STEP)
    return batches


def evaluation_batches(parts: TrainerParts, loader: Any) -> Iterable[Any]:
    """Return this process's batches of an evaluation loader: over all processes each row once, in order.

    With `reproduce` they are the loader's own, as in transformers, in which the last one may repeat rows.
    """
    if not parts.rules.own_order:
        return cast(Iterable[Any], parts.kept_loaders.reading(loader))
    if parts.adapters.mesh.data.size == 1:
        return cast(Iterable[Any], loader)
    return _batches_of_shares(_batches(parts, loader, whole=unsharded_batches(loader)))


def _batches_of_shares(shared: TorchBatches) -> Iterator[Any]:
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


def stop_workers(loader: Any) -> None:
    """Stop the persistent workers of one of hexloop's loaders; the user stops those of other loaders."""
    if isinstance(loader, ResumableLoader):
        loader.stop_workers()
    else:
        stop_shielded_workers(loader)


# Sharing of batches among processes

PADDING_IN_OVERRIDDEN_STEP = (
    "The last batch of an epoch has fewer samples than there are processes, and the results of a process without "
    "samples must not count, which an overridden training_step cannot know; set dataloader_drop_last=True, or override "
    "compute_loss instead."
)


def _batches(
    parts: TrainerParts,
    loader: Any,
    transfer: Transfer = lambda batch: batch,
    inspect: Inspect | None = None,
    whole: Iterable[list[Any]] | None = None,
) -> TorchBatches:
    """Return this process's batches of a loader. whole: batches to share instead of the loader's own.

    inspect: checks the first batch in training; None in evaluation.
    """
    ranks, check = parts.adapters.mesh.data, inspect or (lambda _batch: None)
    sharing = ALONE if ranks.size == 1 else None
    if isinstance(loader, ResumableLoader):
        at_least = ranks.size if loader.num_workers < 2 else 1  # the last batch of one of several workers is smaller
        return LoaderBatches(loader, transfer, check, sharing or _sharing(parts, loader), at_least)
    progress = no_progress if inspect is None else skip_progress(parts.args)
    if is_sharded_already(loader) and whole is None:
        return ExternalBatches(loader, transfer, check, progress, SharingOptions(ranks, separate=True))
    sharing = sharing or _sharing(parts, loader, whole)
    sampled = sharing.shares and sharing.distribute is None and reads_by_index(loader)
    kind = SampledBatches if sampled else ExternalBatches
    return kind(loader, transfer, check, progress, sharing)


def _without_padding(transfer: Transfer) -> Transfer:
    def transfer_or_raise(batch: Any) -> Any:
        if isinstance(batch, Padding):
            raise DataError(PADDING_IN_OVERRIDDEN_STEP)
        return transfer(batch)

    return transfer_or_raise


def _sharing(parts: TrainerParts, loader: Any, batch_sampler: Iterable[list[Any]] | None = None) -> SharingOptions:
    args, collectives, mesh = parts.args, parts.adapters.data_collectives, parts.adapters.mesh
    ranks, has_own_order = mesh.data, isinstance(loader, OrderedLoader)

    def from_rank_zero(states: list[str]) -> list[str]:
        return cast(list[str], collectives.broadcast(states))

    return SharingOptions(
        ranks,
        seed=parts.data_seed,
        splits=parts.splits_batches,
        from_rank_zero=from_rank_zero,
        distribute=_dispatcher(args, mesh).distribute if parts.dispatches_batches and not has_own_order else None,
        compare=_comparison(parts),
        batch_sampler=batch_sampler,
    )


def _dispatcher(args: TrainingArguments, mesh: Mesh) -> Dispatcher:
    """Return how rank 0 distributes what it reads. The first call is collective."""
    from hexloop.adapters.collectives.torch.tensors import host_group

    return Dispatcher(mesh.data, host_group(float(args.ddp_timeout), mesh.ranks(*DATA)))


def _comparison(parts: TrainerParts) -> Compare:
    """Return a check that all processes start with the same rows, for data that each of them reads completely."""
    collectives = parts.adapters.data_collectives

    def compare(first_row: Any, failure: str | None) -> None:
        own = None if first_row is None else str(batch_fingerprint(first_row))
        found = cast("list[tuple[str | None, str | None]]", collectives.gather([own, failure]))
        failed = [number for number, (_, cause) in enumerate(found) if cause is not None]
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


# What is counted of the batches

Counter: TypeAlias = TokenCounter | OperationCounter | OperationMeter


def make_counters(
    parts: TrainerParts, run: Run[Any, Any], learner: RunLearner, total: Total, data_total: Total
) -> RunCounters:
    """Return the counters that the arguments and hooks require; without an operation counter, measure operations.

    total, data_total: sum a number over all processes, and over those that read different samples.
    """
    counting, each_batch, pending = parts.args.include_num_input_tokens_seen, list[Any](), list[Counter]()
    hooks, tokens = parts.hooks, None
    if counting != "no":
        padding = getattr(parts.processing_class, "pad_token_id", None)
        tokens = TokenCounter(run, parts.main_input_name, counting == "non_padding", padding, data_total)
        pending.append(tokens)
    track = hooks.track_num_input_tokens.override
    if track is not None:
        _track_after_each_step(learner.learner, track)
    operations = hooks.floating_point_ops.override or counters.operations_in(parts.unwrapped_model)
    if operations is not None:
        each_batch.append(OperationCounter(run, operations, total))
        pending.append(each_batch[0])
    elif not (parts.args.torch_compile or is_compiled(parts.model)) and parts.rules.measures_operations:
        meter = OperationMeter(run, total)
        meter.measure(learner.learner)
        pending.append(meter)
    if tokens is not None and track is None:
        each_batch.append(tokens)
    return RunCounters(each_batch, pending, tokens)


def _track_after_each_step(learner: Any, track: Callable[[Any], Any]) -> None:
    """Call `track` with each micro-batch after its forward and backward pass, except one that has no samples."""
    micro_step = learner.micro_step

    def tracked_step(batch: Any, window_items: Any, last_of_window: bool) -> Any:
        loss = micro_step(batch, window_items, last_of_window)
        if not isinstance(batch, Padding):
            track(batch)
        return loss

    learner.micro_step = tracked_step


def floating_point_operations(model: Any, inputs: Any) -> float:
    """Return the operations of forward and backward on a batch: the model's own figure, an estimate, or measured."""
    estimate = counters.operations_in(unwrapped(model))
    return counters.measured_operations(model, inputs) if estimate is None else estimate(inputs)
