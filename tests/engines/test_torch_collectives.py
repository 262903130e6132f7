"""The Collectives contract for processes that communicate through torch.distributed."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import pytest
import torch.distributed as dist

from hexloop.adapters.collectives.torch import TorchCollectives, leave_all, peers
from hexloop.adapters.collectives.torch.mailbox import CAPACITY
from hexloop.app.testing.contracts.processes import CollectivesContract
from hexloop.domain.errors import CollectiveError
from hexloop.ports.collectives import Collectives, Reduction
from tests.engines.processes import PATIENCE, QUIET, free_port, in_processes

Result = TypeVar("Result")

TIMEOUT = 20.0


def agreeing(size: int, function: Callable[[Collectives], Result], through_memory: bool = True) -> list[Result]:
    """Return the function's result in each of `size` processes. Raises the error of any process."""
    outcomes = in_processes(size, lambda _rank: function(TorchCollectives(TIMEOUT, through_memory=through_memory)))
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]


class TestTwoProcesses(CollectivesContract):
    """A world of two real processes."""

    world_size = 2
    through_memory = True

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        """Run in forked processes."""
        return agreeing(self.world_size, function, self.through_memory)

    def test_arrays_larger_than_a_message_are_reduced(self) -> None:
        """An array that is too long for a message is sent over connections, in order."""
        lengths = (1, CAPACITY, CAPACITY + 1, 2)

        def reduce(rank: Collectives) -> list[tuple[float, ...]]:
            pending = [rank.start_reduction([rank.rank + 1.0] * length, Reduction.SUM) for length in lengths]
            return [each.result() for each in pending]

        total = sum(range(self.world_size + 1))
        assert self.run(reduce) == [[(total,) * length for length in lengths]] * self.world_size


class TestTwoProcessesWithoutSharedMemory(TestTwoProcesses):
    """Two real processes, as on two machines."""

    through_memory = False


@pytest.mark.matrix
class TestFourProcesses(TestTwoProcesses):
    """Four real processes."""

    world_size = 4


@pytest.mark.matrix
class TestFourProcessesWithoutSharedMemory(TestTwoProcessesWithoutSharedMemory):
    """Four real processes, as on four machines."""

    world_size = 4


def errors_of(size: int, function: Callable[[Collectives], object], timeout: float = TIMEOUT) -> dict[int, str]:
    """Return the CollectiveError of each process, by rank."""
    outcomes = in_processes(size, lambda _rank: function(TorchCollectives(timeout)))
    return {rank: str(each) for rank, each in enumerate(outcomes) if isinstance(each, CollectiveError)}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (lambda ranks: ranks.barrier("all are here"), "the barrier 'all are here'"),
        pytest.param(
            lambda ranks: ranks.start_reduction([1.0], Reduction.SUM).result(),
            "the sum of 1 numbers",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_a_stuck_rank_is_named(operation: Callable[[Collectives], object], name: str) -> None:
    """Waiting ranks report within the timeout which rank is stuck, and of which ranks they know nothing."""

    def get_stuck(ranks: Collectives) -> None:
        if ranks.rank == 1:
            time.sleep(14)
        else:
            operation(ranks)

    errors = errors_of(3, get_stuck, timeout=8)
    assert errors.keys() == {0, 2}
    assert all(f"{name}, but rank 1 never arrived" in error for error in errors.values())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("through_memory", [True, False])
def test_a_dead_rank_is_named_at_once(through_memory: bool) -> None:
    """The death of a process is noticed long before the timeout."""

    def reduce(ranks: Collectives) -> None:
        for _ in range(3):
            ranks.start_reduction([1.0], Reduction.SUM).result()

    def die(ranks: Collectives) -> float:
        if ranks.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(CollectiveError, match="rank 1 never arrived") as caught:
            reduce(ranks)
        assert caught.value.missing == (1,)
        return time.monotonic() - began

    first, second, third = in_processes(3, lambda _rank: die(TorchCollectives(60, through_memory=through_memory)))
    assert isinstance(second, ChildProcessError)
    assert isinstance(first, float), first
    assert isinstance(third, float), third
    assert max(first, third) < 30


@pytest.mark.one_in(2)
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    "operation",
    [lambda ranks: ranks.gather("here"), lambda ranks: ranks.start_reduction([1.0], Reduction.SUM).result()],
)
def test_the_cause_of_a_failure_reaches_waiting_ranks(failing: int, operation: Callable[[Collectives], object]) -> None:
    """A rank that fails reports its error, and the other ranks raise an error with its message.

    Also if it hosts the store of the rendezvous, and if the others wait elsewhere, or not yet, when it fails.
    """

    def fail(ranks: Collectives) -> None:
        beside = ranks.apart()
        if ranks.rank == failing:
            ranks.tell_failure("ValueError: no such label")
            raise ValueError("no such label")
        if ranks.rank == 2:
            time.sleep(1)
            beside.barrier("beside")
        operation(ranks)

    errors = errors_of(3, fail, timeout=10)
    assert errors.keys() == {0, 1, 2} - {failing}
    assert all(f"rank {failing} failed: ValueError: no such label" in error for error in errors.values())


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("fails", [False, True])
def test_no_rank_waits_at_exit_for_collectives_that_others_never_join(backend: str, fails: bool) -> None:
    """A group waits for the work in flight when it is destroyed, so after a failure no rank destroys it."""

    def end(ranks: TorchCollectives) -> bool:
        if fails and ranks.rank == 1:
            ranks.tell_failure("ValueError: no such label")
        leave_all([ranks], backend)
        return dist.is_initialized()

    assert in_processes(2, lambda _rank: end(TorchCollectives(TIMEOUT))) == [fails, fails]


PEER_CLOSES_AT_EXIT = """
import atexit
import os
import signal
import sys
import time

import torch.distributed as dist

from hexloop.adapters.collectives.torch import TorchCollectives
from hexloop.ports.collectives import Reduction

rank, pause = int(sys.argv[1]), float(sys.argv[2])


def close(*_):
    for descriptor in range(3, 1000):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                os.close(descriptor)
        except OSError:
            pass


def exit_with_the_peer():
    os.kill(peer, signal.SIGUSR1)
    ends_at = time.monotonic() + pause
    while time.monotonic() < ends_at:
        pass


signal.signal(signal.SIGUSR1, close)
dist.init_process_group("gloo", rank=rank, world_size=2)
collectives = TorchCollectives(20)
peer = collectives.gather(os.getpid())[1]
if rank == 1:
    time.sleep(60)
atexit.register(exit_with_the_peer)
collectives.start_reduction([1.0] * 100, Reduction.SUM)
time.sleep(0.3)
"""
"""Rank 0 leaves the interpreter just as the connections to its peer close, with a reduction in flight."""


@pytest.mark.matrix
def test_the_interpreter_ends_while_a_peer_closes_its_connections(tmp_path: Path) -> None:
    """The thread of gloo that notices it does not free the operation in flight, which would abort the process."""
    script = tmp_path / "script.py"
    script.write_text(PEER_CLOSES_AT_EXIT)
    codes = []
    for number in range(8):
        environment = {**os.environ, **QUIET, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        first, second = (
            subprocess.Popen([sys.executable, script, rank, str(number % 3 / 1000)], env=environment)
            for rank in ("0", "1")
        )
        try:
            codes.append(first.wait(PATIENCE))
        finally:
            second.kill()
            second.wait()
    assert codes == [0] * 8


def waits(ranks: Collectives, operation: Callable[[Collectives], object]) -> list[str]:
    """Let rank 1 be late, and return the warnings of this rank."""
    caught = Caught()
    logging.getLogger("hexloop").addHandler(caught)
    try:
        for late in (1.5, 0.0):
            time.sleep(late * ranks.rank)
            operation(ranks)
    finally:
        logging.getLogger("hexloop").removeHandler(caught)
        leave_all([cast(TorchCollectives, ranks)], "gloo")
    return caught.messages


class Caught(logging.Handler):
    """Keeps the messages that are logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.messages.append(record.getMessage())


@pytest.mark.one_in(100)
@pytest.mark.parametrize("through_memory", [True, False])
@pytest.mark.parametrize("name", ["a gather", "a broadcast from rank 1", "the barrier 'here'", "a reduction"])
def test_a_long_wait_is_logged_once(name: str, through_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waits says so while it does: the others may never come, as when their data are longer."""
    monkeypatch.setattr(peers, "WARN_AFTER", 0.4)  # forked processes have it, too
    operations: dict[str, Callable[[Collectives], object]] = {
        "a gather": lambda ranks: ranks.gather(1),
        "a broadcast from rank 1": lambda ranks: ranks.broadcast(1, 1),
        "the barrier 'here'": lambda ranks: ranks.barrier("here"),
        "a reduction": lambda ranks: ranks.start_reduction([1.0], Reduction.SUM).result(),
    }
    waiting, late = agreeing(2, lambda ranks: waits(ranks, operations[name]), through_memory)
    (message,) = waiting
    expected = name if through_memory or name != "a reduction" else "the sum of 1 numbers"
    assert re.match(rf"Rank 0 has waited for {expected} for \d s, and fails after 20 s \(ddp_timeout\)\.", message)
    assert late == []
