"""The order in which samples are read, and the random streams of Python, numpy and torch while they are read."""

from __future__ import annotations

import base64
import random
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from attrs import frozen
from numpy.typing import NDArray
from torch.utils.data import Dataset, RandomSampler, Sampler, Subset, TensorDataset

from hexloop.domain.order import (
    ALL,
    FIRST_FACTOR,
    FIRST_SHIFT,
    SECOND_FACTOR,
    SECOND_SHIFT,
    FeistelNetwork,
    KeyedPermutation,
    Order,
    Shard,
    global_batches,
    sample_key,
    sample_keys,
)
from hexloop.domain.random_states import refuse_invalid_numpy_state, refuse_invalid_python_state

Words = NDArray[np.uint64]

CHUNK = 8192
"""Positions permuted at once: few enough for the CPU cache, enough to amortize the cost of a numpy call."""

BLOCK = 4096
"""About how many indices the batch sampler computes at once, so that no step waits long for them."""


@frozen
class VectorisedPermutation(KeyedPermutation):
    """The domain's keyed permutation, bit-identical, in blocks that cost tens of nanoseconds per sample."""

    def block(self, start: int, stop: int) -> list[int]:
        """Return the indices at positions `start` to `stop` - 1. Raises IndexError if one is outside the epoch."""
        found: list[int] = self.indices(start, stop).tolist()
        return found

    def indices(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the indices at positions `start` to `stop` - 1, as an array. Raises IndexError outside the epoch."""
        found = np.empty(max(0, stop - start), dtype=np.int64)
        if found.size and not 0 <= start < stop <= self.length:
            raise IndexError(f"Positions {start} to {stop - 1} are not all inside an epoch of {self.length} samples.")
        if isinstance(self.bijection, FeistelNetwork):
            for offset in range(0, found.size, CHUNK):
                chunk = found[offset : offset + CHUNK]
                chunk[:] = self._walk(self.bijection, start + offset, chunk.size)
        else:
            found[:] = self.bijection[start:stop]
        return found

    def _walk(self, network: FeistelNetwork, start: int, count: int) -> Words:
        """Apply the network until every cell is inside the epoch (cycle walking)."""
        cells = _scramble(network, np.arange(count, dtype=np.uint64) + np.uint64(start))
        outside = np.flatnonzero(cells >= self.length)
        while outside.size:
            cells[outside] = _scramble(network, cells[outside])
            outside = outside[cells[outside] >= self.length]
        return cells


def _scramble(network: FeistelNetwork, cells: Words) -> Words:
    rows, columns = network.rows, network.columns
    row = cells // columns
    column = cells - row * columns
    scratch = np.empty_like(cells)
    for row_key, column_key in zip(network.round_keys[::2], network.round_keys[1::2], strict=True):
        _add(row, _round_values(column, row_key, rows, scratch), rows, scratch)
        _add(column, _round_values(row, column_key, columns, scratch), columns, scratch)
    row *= columns
    row += column
    return row


def _round_values(half: Words, key: int, bound: int, scratch: Words) -> Words:
    word = half + key
    word ^= np.right_shift(word, FIRST_SHIFT, out=scratch)
    word *= FIRST_FACTOR
    word ^= np.right_shift(word, SECOND_SHIFT, out=scratch)
    word *= SECOND_FACTOR
    word >>= 32
    word *= bound
    word >>= 32
    return word


def _add(half: Words, value: Words, bound: int, scratch: Words) -> None:
    """Add modulo `bound` in place: subtracting the bound from a smaller sum wraps around to a very large word."""
    half += value
    np.subtract(half, bound, out=scratch)
    np.minimum(half, scratch, out=half)


class OrderedBatchSampler(Sampler[list[Any]]):
    """Batches of indices in the order that `make_order(epoch)` returns, from the position set by `seek`.

    batch_size: samples of a batch over all ranks, of which this rank reads its `shard`. If the shard is empty, it reads
    the first sample of the batch, which must not be counted.
    keyed_by: the seed of the samples' random streams; then the batches hold KeyedIndex for a KeyedDataset.
    left_out: by epoch, the position and the number of samples that a run leaves out. The keys of later samples are
    those that they have in data without them.
    """

    has_one_size = True
    """Whether all batches but the last of an epoch have `batch_size` samples over all ranks."""

    def __init__(
        self,
        make_order: Callable[[int], Order],
        batch_size: int,
        drop_last: bool = False,
        keyed_by: int | None = None,
        shard: Shard = ALL,
    ) -> None:
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.shard = shard
        self._make_order = make_order
        self._keyed_by = keyed_by
        self.left_out: dict[int, list[tuple[int, int]]] = {}
        self.seek(0, 0)

    def seek(self, epoch: int, position: int, empty_batches: int = 0) -> None:
        """Start the next iteration at `position`, in samples; empty batches before it advance the workers' turn."""
        self._epoch = epoch
        self._position = position
        self._empty_batches = empty_batches
        self._order = self._make_order(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the beginning of `epoch`."""
        self.seek(epoch, 0)

    @property
    def is_keyed(self) -> bool:
        """Whether the batches hold KeyedIndex."""
        return self._keyed_by is not None

    def indices_at(self, epoch: int, position: int, count: int) -> list[int]:
        """Return the indices of the samples of all ranks from `position` on, as many as the epoch has."""
        order = self._make_order(epoch)
        return order.block(position, min(position + count, len(order)))

    @property
    def sampler(self) -> IndexSampler:
        """The indices of all ranks in the order of the epoch."""
        sampler = IndexSampler(self._make_order)
        sampler.set_epoch(self._epoch)
        return sampler

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return global_batches(self.batch_size, len(self._order), self.drop_last)

    def __iter__(self) -> Iterator[list[Any]]:
        order, size, start = self._order, self.batch_size, self._position
        for _ in range(self._empty_batches):
            yield []
        left = global_batches(size, len(order), self.drop_last, start)
        stop = min(start + left * size, len(order))
        block = size * max(1, BLOCK // size)
        for first in range(start, stop, block):
            yield from self._batches_of(order.block(first, min(first + block, stop)), first)

    def _batches_of(self, block: list[int], first: int) -> list[list[Any]]:
        """Return this rank's part of each batch of a block that starts at position `first`."""
        size, batches = self.batch_size, []
        for offset in range(0, len(block), size):
            mine = self.shard.of(range(offset, min(offset + size, len(block))), size) or range(offset, offset + 1)
            indices: list[Any] = block[mine.start : mine.stop]
            if self._keyed_by is not None:
                start = first + mine.start
                before = sum(samples for position, samples in self.left_out.get(self._epoch, ()) if position < start)
                indices = keyed_indices(indices, self._keyed_by, self._epoch, start - before)
            batches.append(indices)
        return batches


class IndexSampler(Sampler[int]):
    """The indices of the epoch set by `set_epoch`, in the order `make_order(epoch)`, for samplers that users build."""

    def __init__(self, make_order: Callable[[int], Order]) -> None:
        self._make_order = make_order
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Return the indices of this epoch from now on."""
        self._order = self._make_order(epoch)

    def __len__(self) -> int:
        """Return the number of indices in an epoch."""
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order.block(0, len(self._order)))


class RandomIndexSampler(IndexSampler, RandomSampler):
    """An IndexSampler of random order, which code that asks for torch's RandomSampler recognizes.

    Its attributes are those with which torch samples `dataset` without replacement.
    """

    def __init__(self, dataset: Any, make_order: Callable[[int], Order]) -> None:
        self.data_source, self.replacement, self._num_samples, self.generator = dataset, False, None, None
        super().__init__(make_order)


# Streams keyed by position: random augmentation depends on neither the worker nor the rank that reads a sample


class KeyedIndex(NamedTuple):
    """The index of a sample, and the key of its random streams. (A tuple, because one is made for every sample.)"""

    sample: int
    key: int


class KeyedDataset(Dataset[Any]):
    """`dataset`, with the streams of Python, numpy and torch seeded by a sample's key before the sample is read.

    A batch is collated with the streams as its last sample left them. If reading a sample uses no random numbers, the
    keys have no other effect.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, of: KeyedIndex) -> Any:
        sample, key = of
        seed_streams(key)
        return self.dataset[sample]

    def __getitems__(self, batch: Sequence[KeyedIndex]) -> Sequence[Any]:
        """Return the samples of a batch; in one call if the dataset supports that and runs no user code."""
        if not batch or not only_stored(self.dataset):  # checked for each batch: a transform may be set in between
            return [self[index] for index in batch]
        seed_streams(batch[-1].key)
        samples = [index.sample for index in batch]
        fetch = getattr(self.dataset, "__getitems__", None)
        found: Sequence[Any] = fetch(samples) if fetch else [self.dataset[sample] for sample in samples]
        return found


def only_stored(dataset: Any) -> bool:
    """Return whether reading a sample runs no user code, which might use random numbers."""
    if type(dataset) is Subset:
        return only_stored(dataset.dataset)
    if (tables := sys.modules.get("datasets")) is not None and type(dataset) is tables.Dataset:
        return bool(dataset.format["type"] != "custom")
    return type(dataset) in (list, tuple, TensorDataset)


def seed_streams(key: int) -> None:
    """Seed the three streams from a 64-bit key. (torch.manual_seed seeds all devices and is 20 times as slow.)"""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


def keyed_indices(indices: list[int], seed: int, epoch: int, start: int) -> list[KeyedIndex]:
    """Return the samples at the positions from `start` on, each with the key of its position."""
    return list(map(KeyedIndex, indices, sample_keys(seed, epoch, count(start))))


def keyed_reading(
    start: Callable[[], Iterator[Any]], seed: int, epoch: int, rows: int, count: Callable[[Any], int]
) -> Iterator[Any]:
    """Yield batches, each read with streams keyed by its epoch and first row, the same on all ranks."""

    def keyed(read: Callable[[], Any]) -> Any:
        with preserved_rng_states():
            seed_streams(sample_key(seed, epoch, rows))
            return read()

    end = object()
    batches = keyed(start)
    while (batch := keyed(lambda: next(batches, end))) is not end:
        rows += count(batch)
        yield batch


# Saving and restoring


def rng_states() -> list[Any]:
    """Return the states of the streams of Python, numpy and torch's CPU generator, as arrays and numbers."""
    version, words, gauss = random.getstate()
    return [[version, np.array(words, dtype=np.uint32), gauss], list(np.random.get_state()), torch.get_rng_state()]


def restore_rng_states(states: list[Any]) -> None:
    """Set the three streams to the states that `rng_states` returned."""
    (version, words, gauss), numpy_state, torch_state = states
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(tuple(numpy_state))
    torch.set_rng_state(torch_state)


def refuse_invalid_rng_states(states: Any) -> None:
    """Raise ValueError for what `rng_states` cannot have returned; restoring it could corrupt memory."""
    try:
        (version, words, gauss), (kind, keys, position, has_gauss, cached), torch_state = states
        refuse_invalid_python_state(version, words.tolist(), gauss)
        refuse_invalid_numpy_state(kind, keys.tolist(), position, has_gauss, cached)
        torch.Generator().set_state(torch_state)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"The saved random states of the data are invalid: {error!r}.") from error


def refuse_invalid_generator_states(states: Sequence[Any], generators: Sequence[torch.Generator]) -> None:
    """Raise ValueError unless there is a state for each generator, which are not changed."""
    if len(states) != len(generators):
        raise ValueError(f"there are {len(states)} states of generators of the data loader, not {len(generators)}")
    for state, generator in zip(states, generators, strict=True):
        try:
            torch.Generator(generator.device).set_state(state)
        except (TypeError, RuntimeError) as error:
            raise ValueError(f"a state of a generator of the data loader is invalid: {error!r}") from error


@contextmanager
def preserved_rng_states() -> Iterator[None]:
    """Restore the streams of Python, numpy and torch's CPU generator on exit."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def loader_and_samplers(loader: Any) -> list[Any]:
    """Return the loader, its sampler, its batch sampler and the sampler of that; None for each that there is not."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    return [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]


def loader_generators(loader: Any) -> list[torch.Generator]:
    """Return the generators of a loader and its samplers, each once, in an order that is the same on every rank."""
    found = (getattr(holder, "generator", None) for holder in loader_and_samplers(loader))
    own = [each for each in found if isinstance(each, torch.Generator) and each is not torch.default_generator]
    return list(dict.fromkeys(own))


def encode_rng_state(state: torch.Tensor) -> str:
    """Return the state of a torch generator as text."""
    return base64.b64encode(state.numpy().tobytes()).decode()


def decode_rng_state(text: str, generator: torch.Generator) -> torch.Tensor:
    """Return the encoded state. Raises ValueError if it is not a state of such a generator, which is not changed."""
    try:
        state = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).clone()
        torch.Generator(generator.device).set_state(state)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"The saved random states of the data loader are invalid: {error!r}.") from error
    return state


def random_fingerprint(device: str) -> str:
    """Return 16 hexadecimal digits (xxh3-64) of the streams of Python, numpy, torch's CPU and `device`, quickly."""
    digest = xxhash.xxh3_64()
    _, words, gauss = random.getstate()
    digest.update(array("Q", words))
    digest.update(repr(gauss).encode())
    state: Any = np.random.get_state(legacy=True)
    digest.update(state[1].data)
    digest.update(repr(state[2:]).encode())
    digest.update(torch.get_rng_state().numpy().data)
    kind = device.partition(":")[0]
    if kind != "cpu":
        module = torch.get_device_module(kind)
        state = module.get_rng_state(device) if kind != device else module.get_rng_state()
        digest.update(state.numpy().data)
    return digest.hexdigest()
