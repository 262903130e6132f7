"""What a loader of somebody else's is: how it chooses rows, and whether each process gets its own already."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from hexloop.adapters.batches.torch.loader import is_iterable


def reads_by_index(loader: Any) -> bool:
    """Whether the loader is torch's own, and a batch sampler says which rows of its data make a batch."""
    return type(loader) is DataLoader and loader.batch_sampler is not None and not is_iterable(loader.dataset)


def is_shared_already(loader: Any) -> bool:
    """Whether each process's loader gives it its own batches: by a DistributedSampler, or as accelerate made it."""
    prepared = any(kind.__module__.startswith("accelerate.") for kind in type(loader).__mro__)
    return prepared or distributed_sampler(loader) is not None


def distributed_sampler(loader: Any) -> DistributedSampler[Any] | None:
    """The sampler by which the loader takes a part of the data, if it does."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
            return sampler
    return None


def whole_order(loader: Any) -> BatchSampler | None:
    """The batches of all rows, each once, of which a DistributedSampler gives this process some, and some twice.

    None where the loader does not put batches together as torch does by itself.
    """
    sampler = distributed_sampler(loader)
    if sampler is None or type(loader.batch_sampler) is not BatchSampler or not reads_by_index(loader):
        return None
    whole: DistributedSampler[Any] = DistributedSampler(sampler.dataset, 1, 0, sampler.shuffle, sampler.seed)
    whole.set_epoch(sampler.epoch)
    return BatchSampler(whole, loader.batch_sampler.batch_size, drop_last=False)
