"""A process's share of a batch that several processes compute between them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from enum import IntEnum
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from attrs import define, frozen
from torch import Tensor

from hexloop.adapters.batches.torch.data_state import NAMES, DataState, decode_state, encode_state, tensor_from_bytes
from hexloop.adapters.batches.torch.random_streams import seed_streams
from hexloop.domain.errors import DataError
from hexloop.domain.order.slices import ALL, Shard
from hexloop.ports.batches import Padding

RANK_KEY_FACTOR = 0x9E3779B97F4A7C15
"""Tells the random streams of the processes apart that have read the same rows. Odd, so that no multiple repeats."""


@frozen
class Share:
    """What a process computes of a batch of `samples` over all processes; Padding where none of them is its own.

    witness: what the first of these rows makes by itself, whoever's it is; None where nobody has asked.
    """

    batch: Any
    samples: int
    witness: Any = None


class CollatedShares(NamedTuple):
    """A batch for each process, whether it counts, and the witness. A tuple, through which torch pins memory."""

    batches: list[Any]
    counted: list[bool]
    witness: Any


@define
class ShareCollate:
    """Makes of the rows of one global batch a batch for each of some processes.

    size: the rows of a whole global batch. A process without rows gets the first one, which is not to be counted.
    testifies: the first time there is a witness.
    """

    collate: Callable[[list[Any]], Any]
    size: int
    shards: Sequence[Shard] = (ALL,)
    testifies: bool = False

    def __call__(self, rows: list[Any], key: int | None = None) -> CollatedShares:
        """The batches.

        key: of the rows' random streams; a collate function that draws then draws otherwise in each process.
        """
        batches, counted, witness = [], [], None
        if self.testifies:
            self.testifies, witness = False, self.collate(rows[:1])
        for shard in self.shards:
            mine = shard.of(range(len(rows)), self.size)
            if key is not None and shard.world_size > 1:
                seed_streams((key ^ (shard.rank + 1) * RANK_KEY_FACTOR) & 0xFFFFFFFFFFFFFFFF)
            batches.append(self.collate(rows[mine.start : mine.stop] or rows[:1]))
            counted.append(bool(mine))
        return CollatedShares(batches, counted, witness)


def shares_of(batches: Sequence[Any], counted: Sequence[bool], samples: int, witness: Any = None) -> tuple[Share, ...]:
    """The shares of a batch of so many samples, by process. Raises DataError; see `as_padding`."""
    return tuple(
        Share(batch if counts else as_padding(batch), samples, witness)
        for batch, counts in zip(batches, counted, strict=True)
    )


def as_padding(batch: Any) -> Padding:
    """The batch, not to be counted. Raises DataError where that could not be told."""
    if not isinstance(batch, Mapping):
        raise DataError(
            "The last batch of an epoch has fewer samples than there are processes, and the data_collator returns "
            f"a value of type {type(batch).__name__}, which cannot be told from one that counts; let it return a "
            "dictionary, or set dataloader_drop_last=True."
        )
    return Padding(batch)


class SampleCounts:
    """How many samples over all processes each of the batches stands for that were handed out last.

    They are asked for in the order in which they were handed out; those before it are forgotten.
    usual: what a batch stands for that was never noted.
    """

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._noted: deque[tuple[Any, int]] = deque()

    def note(self, batch: Any, samples: int) -> None:
        """A batch is handed out."""
        if samples != self._usual:
            self._noted.append((batch, samples))

    def of(self, batch: Any) -> int:
        """The samples of the whole batch."""
        for number, (noted, samples) in enumerate(self._noted):
            if noted is batch:
                for _ in range(number):
                    self._noted.popleft()
                return samples
        return self._usual


Parts = Generator[tuple[Share, ...], None, None]


class Message(IntEnum):
    """What the first process says."""

    BATCH = 0
    PADDING = 1
    END = 2
    FAILURE = 3


@frozen
class Dispatcher:
    """Hands out what rank 0 reads, over a group of torch.distributed that carries tensors of the host.

    All processes have to ask for the same batches in the same order.
    """

    rank: int
    world_size: int
    group: Any

    def hand_out(self, parts: Parts) -> Generator[Share, None, None]:
        """This process's share of each batch. Only rank 0 reads `parts`, which are of all processes.

        Raises DataError where rank 0 could not read, and where a batch holds what cannot be sent.
        """
        return self._give(parts) if self.rank == 0 else self._take()

    def _give(self, parts: Parts) -> Generator[Share, None, None]:
        with closing(parts):
            while True:
                try:
                    shares = next(parts, None)
                    messages = [] if shares is None else [_encoded(share) for share in shares[1:]]
                except Exception as error:
                    failure = _bytes_of({"failure": f"{type(error).__name__}: {error}"})
                    self._send_all([(Message.FAILURE, 0, failure, [])] * (self.world_size - 1))
                    raise
                if shares is None:
                    self._send_all([(Message.END, 0, _bytes_of(None), [])] * (self.world_size - 1))
                    return
                self._send_all(messages)
                yield shares[0]

    def _take(self) -> Generator[Share, None, None]:
        while True:
            header = torch.zeros(4, dtype=torch.int64)
            dist.recv(header, 0, self.group)
            kind, samples, length, size = header.tolist()
            document, data = torch.empty(length, dtype=torch.uint8), torch.empty(size, dtype=torch.uint8)
            dist.recv(document, 0, self.group)
            if size:
                dist.recv(data, 0, self.group)
            said = json.loads(document.numpy().tobytes())
            if kind == Message.END:
                return
            if kind == Message.FAILURE:
                raise DataError(f"Rank 0, which reads the data for all (dispatch_batches), failed: {said['failure']}")
            batch = _decoded(said, data)
            yield Share(as_padding(batch) if kind == Message.PADDING else batch, samples)

    def _send_all(self, messages: list[tuple[Message, int, Tensor, list[Tensor]]]) -> None:
        for rank, (kind, samples, document, tensors) in enumerate(messages, 1):
            data = torch.cat(tensors) if tensors else torch.empty(0, dtype=torch.uint8)
            dist.send(torch.tensor([kind, samples, len(document), len(data)]), rank, self.group)
            dist.send(document, rank, self.group)
            if len(data):
                dist.send(data, rank, self.group)


def _encoded(share: Share) -> tuple[Message, int, Tensor, list[Tensor]]:
    try:
        state = encode_state(share.batch, _plain(share.batch))
    except DataError as error:
        raise DataError(
            f"You chose dispatch_batches=True, but a batch of type {type(share.batch).__name__} cannot be sent to the "
            "other processes, as it holds more than numbers, texts, lists, dictionaries and tensors; let the "
            "data_collator leave the rest out, or let every process read."
        ) from error
    described = {name: [NAMES[tensor.dtype], *tensor.shape] for name, tensor in state.tensors.items()}
    document = _bytes_of({"document": state.document, "tensors": described})
    kind = Message.PADDING if isinstance(share.batch, Padding) else Message.BATCH
    return kind, share.samples, document, [each.reshape(-1).view(torch.uint8) for each in state.tensors.values()]


def _decoded(said: dict[str, Any], data: Tensor) -> Any:
    tensors, at = {}, 0
    for name, (dtype, *shape) in said["tensors"].items():
        tensors[name], at = tensor_from_bytes(data, at, dtype, shape)
    return decode_state(DataState(said["document"], tensors))


def _plain(value: Any) -> Any:
    """Mappings of any kind as dictionaries, so that they can be told from objects."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _bytes_of(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
