"""torch's elastic agent, which starts the workers of one machine, monitors them, and restarts them together.

This agent additionally reports in one line which worker failed first and how, forwards signals to the workers and
gives them time to save, does not restart after exits for which that is useless (a stopped run, an invalid
configuration), and leaves no process behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import define, field, frozen
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.launch.output import Screen, WorkerOutput
from hexloop.app.command_line.launch.plan import LaunchPlan, escaped
from hexloop.app.command_line.launch.rendezvous import OrderedRendezvous, rendezvous_handler

WORKER = Path(__file__).with_name("worker.py")
INTERVAL = 0.1
"""Seconds between checks of the workers."""

AFTER_FAILURE = 10.0
"""Seconds that the others have after one failed: most wait for it in a collective operation and cannot save."""

AFTER_SECOND_SIGNAL = 5.0
"""Seconds that workers have after a second signal, at which hexloop's runs stop immediately."""

SUDDEN = {-getattr(signal, name) for name in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")}
"""Exit codes of workers that did not fail because of another rank."""


@frozen
class WorkerExit:
    """The exit of a worker. code: negative for a signal."""

    rank: int
    process: int
    code: int

    @property
    def exit_code(self) -> int:
        """The exit code as a shell returns it."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        if self.code >= 0:
            return f"rank {self.rank} (process {self.process}) failed with exit code {self.code}"
        name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
        return f"rank {self.rank} (process {self.process}) was killed by {name}"


class Agent(LocalElasticAgent):
    """The agent of this machine. `failure` is the worker that failed first in the last attempt."""

    def __init__(self, plan: LaunchPlan, screen: Screen, signals: ReceivedSignals) -> None:
        self.plan, self.screen, self.signals = plan, screen, signals
        self.output = WorkerOutput(screen, plan.log_folder)
        self.failure: WorkerExit | None = None
        self.handler = rendezvous_handler(plan)
        spec = WorkerSpec(
            role="hexloop",
            local_world_size=plan.processes,
            rdzv_handler=self.handler,
            entrypoint=sys.executable,
            max_restarts=plan.restarts,
            monitor_interval=INTERVAL,
            local_addr=plan.address,
        )
        super().__init__(spec, self.output)
        self._stopped_since: float | None = None
        self._killed: list[int] = []

    def close(self) -> None:
        """Leave the rendezvous, and print all remaining output.

        After a signal to this machine, the others continue if the number of machines may vary.
        """
        self.output.close()
        others_continue = self.plan.nodes[0] < self.plan.nodes[1]
        if self.signals.ending is not None and others_continue and isinstance(self.handler, OrderedRendezvous):
            self.handler.leave()
        else:
            self.handler.shutdown()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Join the other machines, and agree with them on whether workers start or resume."""
        with self.signals.raising():
            super()._rendezvous(worker_group)
        store = worker_group.store
        assert isinstance(store, PrefixStore)
        if worker_group.group_rank == 0:
            store.set("attempt", str(store.underlying_store.add("hexloop/attempts", 1) - 1))
        again = int(store.get("attempt")) > 0
        command = [sys.executable, *self.plan.command(again)]
        worker_group.spec.args = tuple(escaped(["-I", "-S", str(WORKER), str(os.getpid()), *command]))

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.failure, self._stopped_since, self._killed = None, None, []
        started: dict[int, Any] = super()._start_workers(worker_group)
        assert self.output.attempt is not None
        self.output.attempt.start()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ended = self._ended()
        failed = [each for each in ended if each.code not in (ExitCode.DONE, ExitCode.STOPPED)]
        if failed:
            self.failure = self._first_failure(failed)
            self._end_workers(signal.SIGTERM, min(self.plan.grace, AFTER_FAILURE))
        elif self.signals.ending is not None and len(ended) < self.plan.processes:
            self.screen.report(
                f"{self.signals.ending.name}: the workers have {self.plan.grace:g} s to save and exit; a second signal "
                "stops them immediately"
            )
            self._end_workers(None, self.plan.grace)
        elif self._are_stopping(ended):
            return RunResult(state=WorkerState.HEALTHY)
        else:
            self._forward_signals()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._conclude()
        elif result.state == WorkerState.SUCCEEDED:
            self.output.end()
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self.failure is None:
            self.screen.report("machines join or leave; restarting all workers")
        super()._restart_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End the workers that are still running, as machines join or leave."""
        self._end_workers(signal.SIGTERM, self.plan.grace)
        self.output.end(self.failure.rank if self.failure is not None else None)
        super()._stop_workers(worker_group)

    def _shutdown(self, *args: Any, **kwargs: Any) -> None:
        """End the workers that are still running within the grace period, which older versions of torch do not take."""
        if len(self._ended()) < len(self._processes()):
            self._end_workers(signal.SIGTERM, self.plan.grace)
        super()._shutdown(*args, **kwargs)

    def _exit_barrier(self) -> None:
        """Wait for the workers of other machines to exit, unless a signal ends the launch."""
        if self.signals.ending is not None:
            return
        with self.signals.raising():
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    def _are_stopping(self, ended: list[WorkerExit]) -> bool:
        """Return whether some workers have stopped and saved, without a failure, and the others may be about to.

        The others are ended after the grace period.
        """
        if not any(each.code == ExitCode.STOPPED for each in ended) or len(ended) == self.plan.processes:
            return False
        now = time.monotonic()
        self._stopped_since = now if self._stopped_since is None else self._stopped_since
        if now - self._stopped_since < self.plan.grace:
            self._forward_signals()
            return True
        self._end_workers(signal.SIGTERM, min(self.plan.grace, AFTER_FAILURE))
        return False

    def _conclude(self) -> None:
        """Report the failure of an attempt after all workers have exited, and decide whether they are restarted."""
        if self.failure is None:
            failed = [each for each in self._ended() if each.code != ExitCode.DONE]
            self.failure = self._first_failure([each for each in failed if each.code != ExitCode.STOPPED] or failed)
        self.output.end(self.failure.rank)
        code, ending = self.failure.code, self.signals.ending
        if ending is not None:
            self._remaining_restarts = 0
            if code not in (ExitCode.STOPPED, -ending, 128 + ending) and self.failure.rank not in self._killed:
                self.screen.report(str(self.failure))
        elif code == ExitCode.STOPPED:  # the worker has reported it
            self._remaining_restarts = 0
        elif code == ExitCode.USAGE:
            self._remaining_restarts = 0
            self.screen.report(f"{self.failure}: its configuration is invalid; workers are not restarted")
        elif self._remaining_restarts > 0:
            number = self.plan.restarts - self._remaining_restarts + 1
            self.screen.report(f"{self.failure}; restarting all workers (restart {number} of {self.plan.restarts})")
        elif self.plan.restarts:
            self.screen.report(f"{self.failure}; all {self.plan.restarts} restarts are used up")
        else:
            self.screen.report(str(self.failure))

    def _first_failure(self, failed: list[WorkerExit]) -> WorkerExit:
        """Return the worker that made the others fail, of those that were found to have exited at the same time."""
        now = time.monotonic()

        def order(each: WorkerExit) -> tuple[bool, float]:
            reported = self.output.attempt.reported(each.rank) if self.output.attempt is not None else None
            return each.code not in SUDDEN, now if reported is None else reported

        return min(failed, key=order)

    def _processes(self) -> dict[int, subprocess.Popen[bytes]]:
        """Return the local workers by rank."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {self._worker_group.workers[local].global_rank: handler.proc for local, handler in handlers.items()}

    def _ended(self) -> list[WorkerExit]:
        """Return the workers that have exited."""
        return [
            WorkerExit(rank, process.pid, code)
            for rank, process in self._processes().items()
            if (code := process.poll()) is not None
        ]

    def _forward_signals(self) -> list[signal.Signals]:
        """Forward signals to the workers, but not to the processes of their data loaders, and return the signals."""
        signals, self.signals.waiting = self.signals.waiting, []
        for number in signals:
            for process in self._processes().values():
                process.send_signal(number)
        return signals

    def _end_workers(self, number: signal.Signals | None, grace: float) -> None:
        """Send the workers a signal, wait for them to exit, then kill the rest and their process groups."""
        processes = self._processes()
        if number is not None:
            for process in processes.values():
                process.send_signal(number)
        deadline = time.monotonic() + grace
        while alive := [rank for rank, process in processes.items() if process.poll() is None]:
            if set(self._forward_signals()) & set(ENDING) and self.signals.count > 1:
                deadline = min(deadline, time.monotonic() + AFTER_SECOND_SIGNAL)
            if time.monotonic() >= deadline:
                self._killed = alive
                names = ", ".join(map(str, alive))
                self.screen.report(f"killed because they did not exit within {grace:g} s: rank {names}")
                break
            time.sleep(INTERVAL / 4)
        for process in processes.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):  # the kernel may not release a process
                process.wait(AFTER_SECOND_SIGNAL)


ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name))
"""The signals that end a launch, after the grace period at the latest."""

FORWARDED = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""Other signals that are forwarded, as workers may handle them."""


@define
class ReceivedSignals:
    """The signals received so far.

    ending: the first one that ends the launch. count: the number of such signals. waiting: signals not yet forwarded.
    """

    ending: signal.Signals | None = None
    count: int = 0
    waiting: list[signal.Signals] = field(factory=list)
    _raising: bool = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Install the signal handlers, and restore the previous ones afterwards. Only for the main thread."""
        before: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._handle) for number in (*ENDING, *FORWARDED)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise SignalException for a signal that ends the launch, while waiting for other machines without workers."""
        if self.ending is not None:
            raise SignalException(self.ending.name, self.ending)
        self._raising = True
        try:
            yield
        finally:
            self._raising = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        received = signal.Signals(number)
        self.waiting.append(received)
        if received in ENDING:
            self.count += 1
            self.ending = self.ending or received
            if self._raising:
                raise SignalException(received.name, received)
