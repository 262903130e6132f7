"""The random streams of Python, numpy and torch while samples are read: seeded, kept, restored and compared."""

from __future__ import annotations

import base64
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import xxhash

from hexloop.domain.order import sample_key
from hexloop.domain.random_states import refuse_invalid_numpy_state, refuse_invalid_python_state


def seed_streams(key: int) -> None:
    """Seed the three streams from a 64-bit key. (torch.manual_seed seeds all devices and is 20 times as slow.)"""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


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


Streams = tuple[Any, Any, torch.Tensor]
"""The states of the streams of Python, numpy and torch's CPU generator, as these return them."""


def streams() -> Streams:
    """Return the present states."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_streams(states: Streams) -> None:
    """Set the three streams."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def as_document(states: Streams) -> list[Any]:
    """Return the states as arrays and numbers, which a checkpoint can hold."""
    (version, words, gauss), numpys, torchs = states
    return [[version, np.array(words, dtype=np.uint32), gauss], list(numpys), torchs]


def from_document(document: list[Any]) -> Streams:
    """Return the states that a document describes."""
    (version, words, gauss), numpys, torchs = document
    return (version, tuple(words.tolist()), gauss), tuple(numpys), torchs


def are_equal(one: Streams, other: Streams) -> bool:
    """Return whether two states are the same."""
    return (
        torch.equal(one[2], other[2])
        and one[0] == other[0]
        and one[1][2:] == other[1][2:]
        and bool((one[1][1] == other[1][1]).all())
    )


def refuse_invalid_rng_states(states: Any) -> None:
    """Raise ValueError for what `as_document` cannot have returned; restoring it could corrupt memory."""
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
    """Return 16 hexadecimal digits (xxh3-64) of the streams of Python, numpy, torch's CPU and `device`, quickly.

    Without that of a device whose kind has no module of torch, such as one of XLA.
    """
    digest = xxhash.xxh3_64()
    _, words, gauss = random.getstate()
    digest.update(array("Q", words))
    digest.update(repr(gauss).encode())
    state: Any = np.random.get_state(legacy=True)
    digest.update(state[1].data)
    digest.update(repr(state[2:]).encode())
    digest.update(torch.get_rng_state().numpy().data)
    kind = device.partition(":")[0]
    read = None if kind == "cpu" else getattr(getattr(torch, kind, None), "get_rng_state", None)
    if read is not None:
        digest.update((read(device) if kind != device else read()).numpy().data)
    return digest.hexdigest()
