"""The shares of a global batch, one per rank: collated where the rows are read, or sent by rank 0 to the others."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from attrs import define, field, frozen
from torch import Tensor

from hexloop.adapters.batches.torch import data_state
from hexloop.adapters.batches.torch.random_streams import seed_streams
from hexloop.adapters.batches.torch.structure import row_count, slice_rows
from hexloop.domain.errors import DataError
from hexloop.domain.order import ALL, Shard, rank_slice
from hexloop.ports.batches import Padding
from hexloop.ports.mesh import Place

Item = TypeVar("Item")

RANK_KEY_FACTOR = 0x9E3779B97F4A7C15
"""Makes the random streams of ranks that have read the same rows different. Odd, so that its multiples differ."""


@frozen
class Share:
    """What one rank computes of a batch of `samples` over all ranks; Padding if it has none of the samples.

    first_row: the first row of the batch, collated alone, with which ranks check that they have read the same data;
    None if it was not asked for.
    """

    batch: Any
    samples: int
    first_row: Any = None


Compare = Callable[[Any, "str | None"], None]
"""Called on all ranks with what each reads first, or why it could not; raises an error if these differ."""


def accept_rows(first: Any, failure: str | None) -> None:
    """Accept any first rows."""


def compared(read: Iterator[Item], first_row: Callable[[Item], Any], compare: Compare) -> Generator[Item, None, None]:
    """Yield what is read, after one call of `compare`, whatever the data are: also if nothing is, or reading fails."""
    try:
        first = next(read, None)
    except Exception as error:
        compare(None, f"{type(error).__name__}: {error}")
        raise
    compare(None if first is None else first_row(first), None)
    if first is not None:
        yield first
        yield from read


Shares = Generator[Share, None, None]
"""The shares of one rank, batch by batch."""

SharesOfRanks = Generator[tuple[Share, ...], None, None]
"""The shares of all ranks that this process reads for, batch by batch."""


@frozen
class SharingOptions:
    """How ranks share the batches of a loader.

    ranks: the place of this rank among those that read different samples. separate: each has a loader of its own, with
    as many rows and batches as the others, so that nothing is shared.
    splits: split each batch, instead of giving whole batches to the ranks in turn. seed: for the random numbers that
    reading uses. from_rank_zero: replaces the states of the loader's generators by those of rank 0.
    distribute: from the shares of all ranks, as rank 0 reads them, to those of this rank, if only rank 0 reads; None if
    each rank reads. Then all call `compare` once for each pass over data that each rank reads completely.
    batch_sampler: chooses the rows of the batches instead of the loader's own.
    """

    ranks: Place = field(factory=Place)
    separate: bool = False
    seed: int = 0
    splits: bool = False
    from_rank_zero: Callable[[list[str]], list[str]] = list
    distribute: Callable[[SharesOfRanks], Shares] | None = None
    compare: Compare = accept_rows
    batch_sampler: Iterable[list[Any]] | None = None

    @property
    def shares(self) -> bool:
        """Whether there are several ranks, which compute parts of what one loader returns."""
        return self.ranks.size > 1 and not self.separate

    @property
    def own(self) -> int:
        """The number of this rank's share among those of all."""
        return self.ranks.rank

    @property
    def loaders(self) -> int:
        """How many loaders of the same size are read at the same time."""
        return self.ranks.size if self.separate else 1

    @property
    def reads(self) -> bool:
        """Whether this rank reads."""
        return self.distribute is None or self.own == 0


ALONE = SharingOptions()
"""Nothing is shared: one process computes all batches."""


class CollatedShares(NamedTuple):
    """The collated batch of each rank, whether it counts, and the first row. (A tuple, so that torch pins memory.)

    samples: of the whole batch, as the `count` of `ShareCollate` counts them.
    """

    batches: list[Any]
    counted: list[bool]
    first_row: Any = None
    samples: int = 0

    def by_rank(self, samples: int) -> tuple[Share, ...]:
        """Return the shares of the ranks in a batch of `samples`. Raises DataError; see `as_padding`."""
        shares = zip(self.batches, self.counted, strict=True)
        return tuple(Share(batch if counts else as_padding(batch), samples, self.first_row) for batch, counts in shares)


@define
class ShareCollate:
    """Collates the rows of one global batch into a batch for each of some ranks.

    size: the rows of a whole global batch. A rank without rows gets the first row, which must not be counted.
    first_row: also collate the first row alone, the first time. count: returns the samples of some rows.
    """

    collate: Callable[[list[Any]], Any]
    size: int
    shards: Sequence[Shard] = (ALL,)
    first_row: bool = False
    count: Callable[[list[Any]], int] = len

    def __call__(self, rows: list[Any], key: int | None = None) -> CollatedShares:
        """Return the batches. `key`: the key of the rows' random streams; each rank collates with a different one."""
        batches, counted, first_row = [], [], None
        if self.first_row:
            self.first_row, first_row = False, self.collate(rows[:1])
        for shard in self.shards:
            mine = shard.of(range(len(rows)), self.size)
            if key is not None and shard.ranks.size > 1:
                seed_streams((key ^ (shard.ranks.rank + 1) * RANK_KEY_FACTOR) & 0xFFFFFFFFFFFFFFFF)
            batches.append(self.collate(rows[mine.start : mine.stop] or rows[:1]))
            counted.append(bool(mine))
        return CollatedShares(batches, counted, first_row, self.count(rows))


def as_padding(batch: Any) -> Padding:
    """Return the batch as Padding, which is not counted. Raises DataError if it is not a mapping."""
    if not isinstance(batch, Mapping):
        raise DataError(
            "The last batch of an epoch has fewer samples than there are processes, and the data_collator returns "
            f"a value of type {type(batch).__name__}, which cannot be marked as padding; let it return a dictionary, "
            "or set dataloader_drop_last=True."
        )
    return Padding(batch)


def split(batch: Any, ranks: int) -> tuple[Share, ...]:
    """Split a collated batch: its rows in order, distributed as evenly as possible."""
    rows = row_count(batch)
    slices = [rank_slice(range(rows), Place(number, ranks)) for number in range(ranks)]
    batches = [slice_rows(batch, mine or range(1), rows) for mine in slices]
    return CollatedShares(batches, [bool(mine) for mine in slices]).by_rank(rows)


class SampleCounts:
    """The number of samples over all ranks of each batch that was returned last.

    Counts are asked for in the order in which the batches were noted; earlier ones are forgotten.
    usual: the count of batches that were not noted.
    """

    def __init__(self, usual: int) -> None:
        self._usual = usual
        self._noted: deque[tuple[Any, int]] = deque()

    def note(self, batch: Any, samples: int) -> None:
        """Note the count of a batch that is about to be returned."""
        if samples != self._usual:
            self._noted.append((batch, samples))

    def of(self, batch: Any) -> int:
        """Return the number of samples of the whole batch."""
        for number, (noted, samples) in enumerate(self._noted):
            if noted is batch:
                for _ in range(number):
                    self._noted.popleft()
                return samples
        return self._usual


# Sent by rank 0, which reads for all ranks (dispatch_batches), as JSON and the bytes of tensors


Message = tuple[dict[str, Any], list[Tensor]]
"""A JSON document and the bytes of its tensors. An empty document: there are no more batches."""


@frozen
class Dispatcher:
    """Sends what rank 0 reads to the other ranks, over a group for CPU tensors. All ask for the same batches."""

    ranks: Place
    group: Any

    def distribute(self, parts: SharesOfRanks) -> Shares:
        """Yield this rank's share of each batch. Only rank 0 reads `parts`, which hold the shares of all ranks.

        Raises DataError if rank 0 could not read, or if a batch contains an object that cannot be sent.
        """
        return self._send(parts) if self.ranks.rank == 0 else self._receive()

    def _send(self, parts: SharesOfRanks) -> Shares:
        with closing(parts):
            while True:
                messages: list[Message] = [({}, [])] * (self.ranks.size - 1)
                try:
                    shares = next(parts, None)
                    if shares is not None:
                        messages = [_encode(share) for share in shares[1:]]
                except Exception as error:
                    failure = {"failure": f"{type(error).__name__}: {error}"}
                    self._send_all([(failure, [])] * (self.ranks.size - 1))
                    raise
                self._send_all(messages)
                if shares is None:
                    return
                yield shares[0]

    def _receive(self) -> Shares:
        while True:
            lengths = torch.zeros(2, dtype=torch.int64)
            dist.recv(lengths, group=self.group, group_src=0)
            document, data = (torch.empty(length, dtype=torch.uint8) for length in lengths.tolist())
            dist.recv(document, group=self.group, group_src=0)
            if len(data):
                dist.recv(data, group=self.group, group_src=0)
            content = json.loads(document.numpy().tobytes())
            if not content:
                return
            if "failure" in content:
                failure = content["failure"]
                raise DataError(f"Rank 0, which reads the data for all ranks (dispatch_batches), failed: {failure}")
            batch = _decode(content, data)
            yield Share(as_padding(batch) if content["padding"] else batch, content["samples"])

    def _send_all(self, messages: list[Message]) -> None:
        for rank, (content, tensors) in enumerate(messages, 1):
            document = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8)
            data = torch.cat(tensors) if tensors else data_state.NO_BYTES
            dist.send(torch.tensor([len(document), len(data)]), group=self.group, group_dst=rank)
            dist.send(document, group=self.group, group_dst=rank)
            if len(data):
                dist.send(data, group=self.group, group_dst=rank)


def _encode(share: Share) -> Message:
    try:
        state = data_state.encode_state(share.batch, share.batch, (Mapping,))
    except DataError as error:
        raise DataError(
            f"You chose dispatch_batches=True, but a batch of type {type(share.batch).__name__} cannot be sent to the "
            "other processes, because it contains other values than numbers, texts, lists, dictionaries and tensors; "
            "let the data_collator leave them out, or let every process read."
        ) from error
    described = {name: [data_state.NAMES[tensor.dtype], *tensor.shape] for name, tensor in state.tensors.items()}
    padding = isinstance(share.batch, Padding)
    content = {"samples": share.samples, "padding": padding, "document": state.document, "tensors": described}
    return content, [each.reshape(-1).view(torch.uint8) for each in state.tensors.values()]


def _decode(content: dict[str, Any], data: Tensor) -> Any:
    tensors, at = {}, 0
    for name, (dtype, *shape) in content["tensors"].items():
        tensors[name], at = data_state.tensor_from_bytes(data, at, dtype, shape)
    return data_state.decode_state(data_state.DataState(content["document"], tensors))
