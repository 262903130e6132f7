"""The random streams of Python, numpy and torch while data are read: seeded per sample, saved, restored, compared."""

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
from torch.utils.data import Dataset, Subset, TensorDataset

from hexloop.domain.order.permutation import sample_key, sample_keys
from hexloop.domain.random_states import refuse_invalid_numpy_state, refuse_invalid_python_state

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
    found: dict[int, torch.Generator] = {}
    for holder in loader_and_samplers(loader):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and generator is not torch.default_generator:
            found[id(generator)] = generator
    return list(found.values())


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
    """Return 16 hexadecimal digits (xxh3-64) of the random streams of Python, numpy, torch's CPU and `device`.

    The streams are those in a checkpoint, but they are not converted to a document: this takes microseconds, and is
    done with every log.
    """
    digest = xxhash.xxh3_64()
    _, words, gauss = random.getstate()
    digest.update(array("Q", words))
    digest.update(repr(gauss).encode())
    state: Any = np.random.get_state(legacy=True)
    digest.update(state[1].data)
    digest.update(repr(state[2:]).encode())
    digest.update(torch.get_rng_state().numpy().data)
    if device.startswith("cuda"):
        digest.update(torch.cuda.get_rng_state(device).numpy().data)
    elif device == "mps":
        digest.update(torch.mps.get_rng_state().numpy().data)
    return digest.hexdigest()
