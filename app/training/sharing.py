"""How the processes of a run share the batches of a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, cast

from hexloop.adapters.batches.torch.batches import Distribute, ShardedBatches, length_of, local_share, too_many_ranks
from hexloop.adapters.batches.torch.external import is_sharded_already, reads_by_index, unsharded_batches
from hexloop.adapters.batches.torch.external_shares import (
    ExternalShares,
    PresplitBatches,
    SampledShares,
    SharingOptions,
)
from hexloop.adapters.batches.torch.loader import OrderedLoader
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.app.training.fingerprints import batch_fingerprint
from hexloop.app.training.loaders import batches_of, dispatches, splits
from hexloop.app.training.passing_bar import passing_bar
from hexloop.app.training.worlds import dispatcher_of
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError, DataError
from hexloop.ports.batches import Batches, Padding

Shared = ShardedBatches | ExternalShares | PresplitBatches


def _as_it_is(batch: Any) -> Any:
    return batch


def _uninspected(batch: Any) -> None:
    """Any batch will do."""


def training_batches(
    parts: TrainerParts, loader: Any, transfer: Callable[[Any], Any], inspect: Callable[[Any], None]
) -> Batches[Any]:
    """The batches of this process of a training loader, whoever made it."""
    progress = passing_bar(parts.args)
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
