"""Loaders as transformers makes them: torch's DataLoader, prepared by accelerate, with the same random draws.

Everything that decides an order or a seed is done by torch, accelerate and transformers themselves, so that it is what
the installed versions of them do.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from hexloop.adapters.batches.torch.collate import Collate, collate_columns
from hexloop.adapters.batches.torch.loader import ShieldedLoader, fitted, length_of
from hexloop.adapters.batches.torch.order import rebalances
from hexloop.adapters.batches.torch.workers import ShieldedIterator
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.installation import how_to_install
from hexloop.ports.mesh import Place

IMPORTED = ("accelerate", "torch._dynamo", "datasets", "torchdata.stateful_dataloader")
"""What the preparation of a run imports, the last two by accelerate if they are installed."""


def import_before_seeding() -> None:
    """Import what a run would import later, because some packages draw random numbers when they are imported.

    transformers has imported them before it seeds the streams.
    """
    for name in IMPORTED:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)


@frozen
class AccelerateSettings:
    """How accelerate prepares a loader. The names are those of its `DataLoaderConfiguration`.

    device: where it puts batches. ranks: this process's place among those that read different samples.
    mixed_precision: that of the run, as accelerate names it; accelerate keeps it in its global state.
    """

    device: str
    ranks: Place = field(factory=Place)
    mixed_precision: str = "no"
    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool = False
    data_seed: int | None = None

    def prepare(self, loader: DataLoader[Any]) -> Any:
        """Return the loader of this process. Initializes accelerate's global state if nothing has."""
        from accelerate import Accelerator, PartialState
        from accelerate.data_loader import prepare_data_loader
        from accelerate.state import AcceleratorState

        on_cpu = self.device == "cpu"
        PartialState(cpu=on_cpu)
        if self.ranks.size > 1 and not AcceleratorState._shared_state:  # by which it synchronizes generators
            Accelerator(cpu=on_cpu, mixed_precision=self.mixed_precision)
        prepared = prepare_data_loader(
            loader,
            torch.device(self.device),
            num_processes=self.ranks.size,
            process_index=self.ranks.rank,
            split_batches=self.split_batches,
            put_on_device=True,
            rng_types=["generator"],
            dispatch_batches=self.dispatch_batches,
            even_batches=self.even_batches,
            use_seedable_sampler=self.use_seedable_sampler,
            data_seed=self.data_seed,
            non_blocking=self.non_blocking,
        )
        return shielded(prepared)


@frozen
class ReproducingFactory:
    """Makes the loaders of one process.

    collate: puts samples together to a batch. columns: those that the model takes; None if it takes any.
    torch_options: keywords of torch's DataLoader, apart from data, order and `collate_fn`.
    seed: of the order of evaluation data that are grouped by length. sampling: "random", "sequential",
    "group_by_length" or "batch_rebalance". train_batch_size: of one process. accumulation: micro-batches of an
    optimizer step. eval_group_size: samples of a group of similar lengths in evaluation. length_column: the column with
    the length of a sample. main_input: the column whose length is the sample's if there is no such column.
    """

    collate: Collate
    columns: frozenset[str] | None
    torch_options: Mapping[str, Any]
    accelerate: AccelerateSettings
    seed: int
    drop_last: bool
    sampling: str
    train_batch_size: int
    accumulation: int
    eval_group_size: int
    length_column: str
    main_input: str | None

    def loader(
        self, dataset: Any, batch_size: int, sampler_for: Callable[[Any], Any] | None, trains: bool = False
    ) -> DataLoader[Any]:
        """Return a loader in the order of the sampler that `sampler_for` makes, in the dataset's own if there is none.

        trains: the workers are seeded again after torch has seeded them, as transformers does in training.
        """
        dataset, collate = self.fitted(dataset)
        options: dict[str, Any] = {**self.torch_options, "batch_size": batch_size, "collate_fn": collate}
        if not isinstance(dataset, IterableDataset):
            sampler = None if sampler_for is None else sampler_for(dataset)
            if rebalances(sampler):
                del options["batch_size"]
                options["batch_sampler"] = sampler
            else:
                options |= {"sampler": sampler, "drop_last": self.drop_last}
            if trains:
                workers = self.torch_options["num_workers"]
                options["worker_init_fn"] = partial(seed_worker, workers=workers, rank=self.accelerate.ranks.rank)
        prepared: DataLoader[Any] = self.accelerate.prepare(DataLoader(dataset, **options))
        wrapper = prepared.batch_sampler
        if rebalances(getattr(wrapper, "batch_sampler", None)):  # its batches are those of this process already
            wrapper.num_processes, wrapper.process_index = 1, 0  # type: ignore[union-attr]
        return prepared

    def training_sampler(self, dataset: Any) -> Sampler[Any] | None:
        """Return the sampler of the training data; None if they have no length."""
        if dataset is None or length_of(dataset) is None:
            return None
        if self.sampling == "group_by_length":
            return self._grouped(dataset, self.train_batch_size * self.accumulation, None)
        if self.sampling == "batch_rebalance":
            return self._rebalanced(dataset)
        return SequentialSampler(dataset) if self.sampling == "sequential" else RandomSampler(dataset)

    def evaluation_sampler(self, dataset: Any) -> Sampler[int] | None:
        """Return the sampler of evaluation data; None if they have no length, or several processes share them."""
        if dataset is None or length_of(dataset) is None:
            return None
        if self.sampling == "group_by_length":
            return self._grouped(dataset, self.eval_group_size, torch.Generator().manual_seed(self.seed))
        return SequentialSampler(dataset) if self.accelerate.ranks.size == 1 else None

    def _grouped(self, dataset: Any, size: int, generator: torch.Generator | None) -> Sampler[int]:
        """Return transformers' own sampler by length."""
        lengths = self._lengths(dataset)
        sampler: Sampler[int] = self._from_transformers("LengthGroupedSampler")(
            size, dataset=dataset, lengths=lengths, model_input_name=self.main_input, generator=generator
        )
        return sampler

    def _rebalanced(self, dataset: Any) -> Sampler[list[int]]:
        """Return transformers' own sampler of the batches of this process."""
        lengths, ranks = self._lengths(dataset), self.accelerate.ranks
        if lengths is None:
            name = self.main_input or "input_ids"
            # Reading a sample may draw random numbers, so the first one is read as often as transformers reads it.
            if not isinstance(dataset[0], Mapping) or name not in dataset[0]:
                raise ConfigurationError(
                    "train_sampling_strategy='batch_rebalance' needs the length of each sample, but a sample is "
                    f"not a mapping with {name!r}, and there is no column {self.length_column!r}; add one, or set "
                    "length_column_name."
                )
            lengths = [len(sample[name]) for sample in dataset]
        sampler: Sampler[list[int]] = self._from_transformers("BatchRebalanceSampler")(
            lengths=lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths,
            effective_batch_size=self.train_batch_size * self.accumulation * ranks.size,
            dp_size=ranks.size,
            grad_accum=self.accumulation,
            rank=ranks.rank,
            drop_last=self.drop_last,
        )
        return sampler

    def _lengths(self, dataset: Any) -> Any:
        """Return the column with the lengths of the samples; None if there is none."""
        found = _is_table(dataset) and self.length_column in dataset.column_names
        return dataset[self.length_column] if found else None

    def _from_transformers(self, sampler: str) -> Any:
        try:
            return getattr(importlib.import_module("transformers.trainer_pt_utils"), sampler)
        except (ImportError, AttributeError) as error:
            raise ConfigurationError(
                f"train_sampling_strategy={self.sampling!r} with reproduce='transformers' uses the {sampler} of "
                f"transformers, which is not installed or too old; {how_to_install('transformers', 'transformers')}."
            ) from error

    def fitted(self, dataset: Any) -> tuple[Any, Collate]:
        """Return the dataset and the collate function without the columns that the model does not take."""
        if self.columns is None or _is_table(dataset):
            return fitted(dataset, self.collate, self.columns)
        return dataset, partial(collate_columns, self.collate, self.columns)


def seed_worker(worker: int, workers: int, rank: int) -> None:
    """Seed the streams of a worker from the seed that torch gave it; called in the worker before its first sample."""
    seed = (workers * rank + torch.initial_seed() % 2**32) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def rows_to_keep() -> int | None:
    """Return how many rows of the current batch of all processes accelerate keeps for metrics; None for all."""
    from accelerate.state import GradientState

    state = GradientState()
    return state.remainder if state.end_of_dataloader and state.remainder > 0 else None


def shielded(loader: Any) -> Any:
    """Return a loader of accelerate's, which from now on starts workers that ignore the signals that stop a run."""
    if type(loader.base_dataloader) is DataLoader:
        loader.base_dataloader.__class__ = ShieldedLoader
    return loader


def stop_shielded_workers(loader: Any) -> None:
    """End the persistent workers of a loader that `shielded` returned. No-op for any other loader."""
    base = getattr(loader, "base_dataloader", None)
    if type(base) is ShieldedLoader:
        kept, base._iterator = base._iterator, None
        if isinstance(kept, ShieldedIterator):
            kept._shutdown_workers()


def _is_table(dataset: Any) -> bool:
    """Return whether the dataset is a `datasets.Dataset`."""
    module = sys.modules.get("datasets")
    return module is not None and isinstance(dataset, module.Dataset)
