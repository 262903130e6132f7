"""Processes that talk through torch.distributed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hexloop.adapters.collectives.torch.mailbox import CAPACITY, Letter, Mailbox, shared_mailbox
from hexloop.adapters.collectives.torch.peer_monitor import Witnesses
from hexloop.domain.errors import CollectiveError
from hexloop.ports.collectives import Json, Pending, Reduction

OPERATIONS = {
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.MAXIMUM: dist.ReduceOp.MAX,
    Reduction.MINIMUM: dist.ReduceOp.MIN,
}

OF_COLUMN: dict[Reduction, Callable[[Iterable[float]], float]] = {
    Reduction.SUM: sum,
    Reduction.MAXIMUM: max,
    Reduction.MINIMUM: min,
}

LEAVING = 5.0
"""Seconds for which a process waits at its end for the others to come to theirs."""


class TorchCollectives:
    """Answers the Collectives port on the host, over a group of its own, so that it runs beside the training step.

    The default group of torch.distributed must be there already. Making one is collective. Objects travel as JSON.
    timeout: seconds after which a process gives up waiting for the others.
    through_memory: processes of one machine reduce a few numbers through memory that they share, not connections.
    """

    def __init__(self, timeout: float, witnesses: Witnesses | None = None, through_memory: bool = True) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._timeout = timeout
        self._failed = False
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._witnesses = witnesses or Witnesses(self.rank, self.world_size, self._name())
        self._shake_hands()
        self._mailbox = self._share_memory() if through_memory else None

    def apart(self) -> TorchCollectives:
        """The same processes, for another thread; see `Collectives.apart`."""
        return TorchCollectives(self._timeout, self._witnesses, through_memory=False)

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> Pending:
        """Begin to reduce; see `Collectives.start_reduction`."""
        if self._mailbox is not None and len(values) <= CAPACITY:
            try:
                letter = self._mailbox.post(values)
            except RuntimeError as error:
                raise self._witnesses.explained(_name_of(reduction, len(values)), error) from error
            return PostedPending(self._mailbox, letter, reduction, self._witnesses)
        numbers, what = torch.tensor(values, dtype=torch.float64), _name_of(reduction, len(values))
        with self._witnesses.watching(what):
            work = dist.all_reduce(numbers, OPERATIONS[reduction], self._group, async_op=True)
        return TorchPending(work, numbers, self._witnesses, what)

    def gather(self, value: Json) -> list[Json]:
        """Every rank's value, by rank. Raises CollectiveError."""
        said = _bytes_of(value)
        with self._witnesses.watching("a gathering"):
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
            dist.all_gather(lengths, torch.tensor([len(said)]), self._group)
            longest = max(int(length) for length in lengths)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(said)] = said
            heard = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
            dist.all_gather(heard, padded, self._group)
        return [_value_of(each[: int(length)]) for each, length in zip(heard, lengths, strict=True)]

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """The value of rank `source`. Raises CollectiveError, and ValueError where there is no such rank."""
        if not 0 <= source < self.world_size:
            raise ValueError(f"You chose to hear from rank {source}, but the ranks end at {self.world_size - 1}.")
        said = _bytes_of(value) if self.rank == source else torch.zeros(0, dtype=torch.uint8)
        with self._witnesses.watching(f"a broadcast of rank {source}"):
            length = torch.tensor([len(said)])
            dist.broadcast(length, source, self._group)
            heard = said if self.rank == source else torch.zeros(int(length), dtype=torch.uint8)
            dist.broadcast(heard, source, self._group)
        return _value_of(heard)

    def barrier(self, name: str) -> None:
        """Wait until every rank is here. Raises CollectiveError, naming those that never came."""
        with self._witnesses.watching(f"the barrier {name!r}"):
            dist.all_reduce(torch.zeros(1), group=self._group)

    def tell_failure(self, cause: str) -> None:
        """Let the other ranks know why this one ends; see `Collectives.tell_failure`.

        They say it when this rank's connections close, or after the time-out. Rank 0 waits until all have heard, for
        some seconds at most, as it mostly holds the store where they met.
        """
        self._failed = True
        self._witnesses.tell(cause)

    def leave(self) -> bool:
        """Wait, for a few seconds at most, until all are here, and let go of the group; gives whether all were here.

        Never fails. A rank that has failed leaves at once: the others wait for it in vain somewhere else.
        """
        together = False
        with suppress(Exception):
            if not self._failed:
                ending = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
                together = ending.wait(timedelta(seconds=LEAVING))
                self._witnesses.dismiss()
        self._group = None
        if self._mailbox is not None:
            self._mailbox.close()
        return together

    def explain(self, error: BaseException) -> BaseException:
        """The errors of torch's engines whose processes lost another, told; see `Collectives.explain`."""
        text = str(error).lower()
        lost = isinstance(error, dist.DistError) or any(name in text for name in ("gloo", "nccl", "processgroup"))
        if isinstance(error, CollectiveError) or not isinstance(error, RuntimeError) or not lost:
            return error
        return self._witnesses.explained("the others in a training step", error)

    def _name(self) -> str:
        """The same on all ranks, and another each time: a launcher's store outlives those who meet there."""
        drawn = torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8)
        dist.broadcast(drawn, 0, self._group)
        return bytes(drawn.tolist()).hex()

    def _share_memory(self) -> Mailbox | None:
        failed = self._witnesses.has_heard
        return shared_mailbox(self.gather, self.rank, self.world_size, self._timeout, failed)

    def _shake_hands(self) -> None:
        """Connect now, as connections that are made at their first use do not notice a death before it."""
        self.barrier("the first meeting")
        self.gather(None)
        self.broadcast(None)


class PostedPending:
    """Answers the Pending port with what lies in a mailbox."""

    def __init__(self, mailbox: Mailbox, letter: Letter, reduction: Reduction, witnesses: Witnesses) -> None:
        self._mailbox = mailbox
        self._letter = letter
        self._reduction = reduction
        self._witnesses = witnesses

    def result(self) -> tuple[float, ...]:
        """The reduced numbers; the same each time."""
        try:
            rows = self._mailbox.collect(self._letter)
        except RuntimeError as error:
            raise self._witnesses.explained(_name_of(self._reduction, len(self._letter.values)), error) from error
        return tuple(map(OF_COLUMN[self._reduction], zip(*rows, strict=True)))


class TorchPending:
    """Answers the Pending port with torch's work."""

    def __init__(self, work: Any, numbers: Tensor, witnesses: Witnesses, what: str) -> None:
        self._work = work
        self._numbers = numbers
        self._witnesses = witnesses
        self._what = what

    def result(self) -> tuple[float, ...]:
        """The reduced numbers; the same each time."""
        if self._work is not None:
            with self._witnesses.watching(self._what):
                self._work.wait()
            self._work = None
        return tuple(self._numbers.tolist())


def _name_of(reduction: Reduction, numbers: int) -> str:
    return f"the {reduction.value} of {numbers} numbers"


def _bytes_of(value: Json) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _value_of(data: Tensor) -> Json:
    heard: Json = json.loads(data.numpy().tobytes())
    return heard


OF_DEVICES = frozenset({"nccl", "xccl", "hccl", "cncl", "mccl"})
"""What carries the tensors of one kind of device alone. Others carry the host's as well."""


def backend_of(kind: str, chosen: str | None, with_host: bool) -> str:
    """How tensors of a kind of device travel: as is `chosen`, else as fits the device.

    with_host: tensors of the host travel, too; where the device's way carries none of them, they have gloo beside it.
    """
    way = chosen or {"cuda": "nccl", "xpu": "xccl"}.get(kind, "gloo")
    return f"cpu:gloo,{kind}:{way}" if with_host and kind != "cpu" and way in OF_DEVICES else way


def is_built_in(backend: str) -> bool:
    """Whether this torch has all that `backend` names."""
    return all(dist.is_backend_available(each.rpartition(":")[2]) for each in backend.split(","))


def part(joined: list[TorchCollectives], backend: str) -> None:
    """Leave together and in order: gloo's threads may abort a process whose partners go at another time.

    backend: of the default group. NCCL's waits for the work in flight before it goes, and without the others that never
    ends; left alone, it gives that work up when the process ends.
    """
    ends = [collectives.leave() for collectives in joined]
    joined.clear()
    if (ends and all(ends)) or "nccl" not in backend:
        with suppress(Exception):  # whoever left before has closed the connection
            dist.destroy_process_group()
