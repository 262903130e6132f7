"""Collectives over torch.distributed, on the host, whose errors name the missing ranks, and the choice of back end."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from hexloop.adapters.collectives import REDUCERS, PendingReduction, place_among
from hexloop.adapters.collectives.torch.mailbox import CAPACITY, Mailbox, PostedMessage, shared_mailbox
from hexloop.adapters.collectives.torch.peers import PeerMonitor
from hexloop.adapters.collectives.torch.world import set_timeout
from hexloop.domain.errors import CollectiveError
from hexloop.ports.collectives import Json, Reduction

OPERATIONS = {
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.MAXIMUM: dist.ReduceOp.MAX,
    Reduction.MINIMUM: dist.ReduceOp.MIN,
}

LEAVE_TIMEOUT = 5.0
"""Seconds that a process waits at its end for the others to reach theirs."""

UNFINISHED: set[Any] = set()
"""Operations that have not finished, or have failed.

The last owner of an operation frees its tensors, which takes the GIL. If that is a thread of gloo, because a peer has
exited, while the interpreter ends, Python ends the thread inside of a destructor, which aborts the process.
"""


class TorchCollectives:
    """Collectives adapter on the host, over a process group of its own, so that it overlaps with the training step.

    The default group of torch.distributed must exist. Construction is collective. Objects are sent as JSON.

    timeout: seconds after which a process stops waiting for the others.
    monitor: shared with the collectives of other threads.
    through_memory: reduce few numbers through shared memory if all processes are on one machine.
    connect_timeout: the timeout of the construction, in seconds; None for that of later operations.
    ranks: those of the default group that communicate, this one among them; by default all. They are numbered in
        ascending order. Construction is collective over them.
    """

    def __init__(
        self,
        timeout: float,
        monitor: PeerMonitor | None = None,
        through_memory: bool = True,
        connect_timeout: float | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._ranks = tuple(range(dist.get_world_size())) if ranks is None else tuple(sorted(ranks))
        self.rank = self._ranks.index(dist.get_rank())
        self.world_size = len(self._ranks)
        self._timeout = timeout
        self._failed = False
        apart: dict[str, Any] = {} if ranks is None else {"ranks": ranks, "use_local_synchronization": True}
        self._group: Any = dist.new_group(
            backend="gloo", timeout=timedelta(seconds=connect_timeout or timeout), **apart
        )
        self._monitor = monitor or PeerMonitor(self.rank, self.world_size, self._draw_name(), timeout)
        self._connect()
        self._mailbox: Mailbox | None = None
        if through_memory:
            self._mailbox = shared_mailbox(self.gather, self.rank, self.world_size, timeout, self._monitor.has_failure)
        if connect_timeout is not None:
            set_timeout(self._group, timeout)

    def among(self, ranks: Sequence[int]) -> TorchCollectives:
        """Return the collectives of some of the processes; see `Collectives.among`."""
        place_among(self.rank, ranks)
        return TorchCollectives(self._timeout, self._monitor, ranks=[self._ranks[rank] for rank in ranks])

    def apart(self) -> TorchCollectives:
        """Return the collectives of the same processes for another thread; see `Collectives.apart`."""
        ranks = None if len(self._ranks) == dist.get_world_size() else self._ranks
        return TorchCollectives(self._timeout, self._monitor, through_memory=False, ranks=ranks)

    def start_reduction(self, values: Sequence[float], reduction: Reduction) -> PendingReduction:
        """Start a reduction; see `Collectives.start_reduction`."""
        if self._mailbox is not None and len(values) <= CAPACITY:
            try:
                message = self._mailbox.post(values)
            except RuntimeError as error:
                raise self._monitor.explanation(_description(reduction, len(values)), error) from error
            return PendingReduction(partial(self._collect, self._mailbox, message, reduction))
        numbers, operation = torch.tensor(values, dtype=torch.float64), _description(reduction, len(values))
        with self._monitor.explaining(operation):
            work = dist.all_reduce(numbers, OPERATIONS[reduction], self._group, async_op=True)
        UNFINISHED.add(work)
        return PendingReduction(partial(self._wait, work, numbers, operation))

    def gather(self, value: Json) -> list[Json]:
        """Return every rank's value, by rank. Raises CollectiveError."""
        sent = _bytes_of(value)
        with self._monitor.explaining("a gather"):
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
            dist.all_gather(lengths, torch.tensor([len(sent)]), self._group)
            longest = max(int(length) for length in lengths)
            received = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world_size)]
            dist.all_gather(received, pad(sent, (0, longest - len(sent))), self._group)
        return [_value_of(each[: int(length)]) for each, length in zip(received, lengths, strict=True)]

    def broadcast(self, value: Json, source: int = 0) -> Json:
        """Return the value of rank `source`. Raises CollectiveError, or ValueError if there is no such rank."""
        if not 0 <= source < self.world_size:
            raise ValueError(f"source={source} is not a rank; ranks are 0 to {self.world_size - 1}.")
        sent = _bytes_of(value) if self.rank == source else torch.zeros(0, dtype=torch.uint8)
        with self._monitor.explaining(f"a broadcast from rank {source}"):
            length = torch.tensor([len(sent)])
            dist.broadcast(length, self._ranks[source], self._group)
            received = sent if self.rank == source else torch.zeros(int(length), dtype=torch.uint8)
            dist.broadcast(received, self._ranks[source], self._group)
        return _value_of(received)

    def barrier(self, name: str) -> None:
        """Wait for all ranks. Raises CollectiveError, naming those that never arrived."""
        with self._monitor.explaining(f"the barrier {name!r}"):
            dist.all_reduce(torch.zeros(1), group=self._group)

    def tell_failure(self, cause: str) -> None:
        """Report to the other ranks why this one ends; see `Collectives.tell_failure`.

        They raise it when the connections of this rank close, or after the timeout. Rank 0 waits a few seconds for all
        ranks to receive it, because it usually hosts the store.
        """
        self._failed = True
        self._monitor.report_failure(cause)

    def leave(self) -> bool:
        """Wait a few seconds for all ranks, then release the group; return whether all arrived.

        Never raises. A rank that failed leaves at once: the others wait for it in another operation.
        """
        all_arrived = False
        with suppress(Exception):
            if not self._failed:
                ending = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
                UNFINISHED.add(ending)
                all_arrived = ending.wait(timedelta(seconds=LEAVE_TIMEOUT))
                self._monitor.close()
        self._monitor.wait_until_silent()
        self._group = None
        if self._mailbox is not None:
            self._mailbox.close()
        return all_arrived

    def explain(self, error: BaseException) -> BaseException:
        """Return the cause of an error of torch after another process was lost; see `Collectives.explain`."""
        text = str(error).lower()
        lost = isinstance(error, dist.DistError) or any(name in text for name in ("gloo", "nccl", "processgroup"))
        if isinstance(error, CollectiveError) or not isinstance(error, RuntimeError) or not lost:
            return error
        return self._monitor.explanation("the other ranks in a training step", error)

    def _collect(self, mailbox: Mailbox, message: PostedMessage, reduction: Reduction) -> tuple[float, ...]:
        self._monitor.begin_wait("a reduction")
        try:
            rows = mailbox.collect(message)
        except RuntimeError as error:
            raise self._monitor.explanation(_description(reduction, len(message.values)), error) from error
        finally:
            self._monitor.end_wait()
        return tuple(map(REDUCERS[reduction], zip(*rows, strict=True)))

    def _wait(self, work: Any, numbers: Tensor, operation: str) -> tuple[float, ...]:
        with self._monitor.explaining(operation):
            work.wait()
        UNFINISHED.discard(work)
        return tuple(numbers.tolist())

    def _draw_name(self) -> str:
        """Draw a name, equal on all ranks and new each time, because a launcher's store outlives the ranks."""
        drawn = torch.frombuffer(bytearray(os.urandom(8)), dtype=torch.uint8)
        dist.broadcast(drawn, self._ranks[0], self._group)
        return bytes(drawn.tolist()).hex()

    def _connect(self) -> None:
        """Connect now: a connection that is created at its first use does not notice an earlier death of its peer."""
        self.barrier("connection")
        self.gather(None)
        self.broadcast(None)


def _description(reduction: Reduction, numbers: int) -> str:
    return f"the {reduction.value} of {numbers} numbers"


def _bytes_of(value: Json) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _value_of(data: Tensor) -> Json:
    received: Json = json.loads(data.numpy().tobytes())
    return received


# Back ends, and the end of a process

DEVICE_ONLY_BACKENDS = frozenset({"nccl", "xccl", "hccl", "cncl", "mccl"})
"""Back ends that carry only one kind of device's tensors. The others carry host tensors as well."""


def backend_of(kind: str, chosen: str | None, with_host: bool) -> str:
    """Return the back end for a kind of device: `chosen`, or else the usual one.

    with_host: host tensors are sent too; they use gloo if the back end of the device does not carry them.
    """
    backend = chosen or _usual_backend(kind)
    return f"cpu:gloo,{kind}:{backend}" if with_host and kind != "cpu" and backend in DEVICE_ONLY_BACKENDS else backend


def _usual_backend(kind: str) -> str:
    try:
        return str(dist.get_default_backend_for_device(kind))
    except ValueError:  # torch knows none
        return "gloo"


def is_built_in(backend: str) -> bool:
    """Return whether this build of torch has every back end that `backend` names."""
    return all(dist.is_backend_available(each.rpartition(":")[2]) for each in backend.split(","))


def leave_all(groups: list[TorchCollectives], backend: str) -> None:
    """Leave the groups together and in order: gloo may abort a process whose peers leave at another time.

    backend: that of the default group. NCCL waits for pending work before it leaves, which never ends without the
    peers; if it is not destroyed, it drops the work when the process exits. gloo waits as well when a group is freed,
    so after a failure no group is: the process ends at once, and its peers notice.
    """
    ends = [collectives.leave() for collectives in groups]
    groups.clear()
    if ends and all(ends):
        UNFINISHED.clear()
        with suppress(Exception):  # a peer that left earlier has closed the connection
            dist.destroy_process_group()
    elif "nccl" not in backend:
        for group in dist.distributed_c10d._world.pg_map:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
