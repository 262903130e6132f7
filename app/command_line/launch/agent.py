"""torch's elastic agent, which starts the workers of one machine, watches them, and starts them again together.

Added to it: who failed first, and how, in one line; signals that reach the workers and leave them time to save; ends
after which nothing is to be restarted (a run that was stopped, a wrong configuration); no process that is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import frozen
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.app.command_line.launch.output import Output
from hexloop.app.command_line.launch.plan import Plan, words_of
from hexloop.app.command_line.launch.rendezvous import InOrder, meeting
from hexloop.app.command_line.launch.screen import Screen
from hexloop.app.command_line.launch.signals import ENDING, Signals

WORKER = Path(__file__).with_name("worker.py")
INTERVAL = 0.1
"""Seconds between two looks at the workers."""

AFTER_FAILURE = 10.0
"""Seconds that the others have when one failed: most wait for it in a collective operation and cannot save any more."""

AT_ONCE = 5.0
"""Seconds after a second signal, by which hexloop's runs stop at once."""

SUDDEN = {-getattr(signal, name) for name in ("SIGKILL", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")}
"""How nobody ends because another rank did."""


@frozen
class Ended:
    """How a worker ended. code: negative for a signal."""

    rank: int
    process: int
    code: int

    @property
    def exit_code(self) -> int:
        """As a shell would give it."""
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self) -> str:
        if self.code >= 0:
            return f"rank {self.rank} (process {self.process}) failed with exit code {self.code}"
        name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
        return f"rank {self.rank} (process {self.process}) was killed by {name}"


class Agent(LocalElasticAgent):
    """Runs what `plan` says on this machine. `failure` is the worker that failed first in the last attempt."""

    def __init__(self, plan: Plan, screen: Screen, signals: Signals) -> None:
        self.plan, self.screen, self.signals = plan, screen, signals
        self.output = Output(screen, plan.log_folder)
        self.failure: Ended | None = None
        self.handler = meeting(plan)
        spec = WorkerSpec(
            role="hexloop",
            local_world_size=plan.processes,
            rdzv_handler=self.handler,
            entrypoint=sys.executable,
            max_restarts=plan.restarts,
            monitor_interval=INTERVAL,
            local_addr=plan.address,
        )
        super().__init__(spec, self.output, shutdown_timeout=int(plan.grace))
        self._stopped_since: float | None = None
        self._killed: list[int] = []

    def close(self) -> None:
        """Leave the rendezvous, and show what has not been shown.

        The other machines go on after a signal to this one, where there may be fewer of them.
        """
        self.output.close()
        fewer_go_on = self.plan.nodes[0] < self.plan.nodes[1]
        if self.signals.ending is not None and fewer_go_on and isinstance(self.handler, InOrder):
            self.handler.leave()
        else:
            self.handler.shutdown()

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Meet the other machines, and agree with them on whether workers start anew or go on."""
        with self.signals.raising():
            super()._rendezvous(worker_group)
        store = worker_group.store
        assert isinstance(store, PrefixStore)
        if worker_group.group_rank == 0:
            store.set("attempt", str(store.underlying_store.add("hexloop/attempts", 1) - 1))
        again = int(store.get("attempt")) > 0
        command = [sys.executable, *self.plan.command(again)]
        worker_group.spec.args = tuple(words_of(["-I", "-S", str(WORKER), str(os.getpid()), *command]))

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
            self.failure = self._first(failed)
            self._end_workers(signal.SIGTERM, min(self.plan.grace, AFTER_FAILURE))
        elif self.signals.ending is not None and len(ended) < self.plan.processes:
            self._end_for_signal(self.signals.ending)
        elif self._are_stopping(ended):
            return RunResult(state=WorkerState.HEALTHY)
        else:
            self._pass_on()
        result: RunResult = super()._monitor_workers(worker_group)
        if result.is_failed():
            self._conclude()
        elif result.state == WorkerState.SUCCEEDED:
            self.output.end()
        return result

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self.failure is None:
            self.screen.say("machines join or leave; all workers are started again")
        super()._restart_workers(worker_group)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """End the workers that are still there, as machines join or leave."""
        self._end_workers(signal.SIGTERM, self.plan.grace)
        self.output.end(self.failure.rank if self.failure is not None else None)
        super()._stop_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Wait for the workers of other machines to end, unless somebody wants this one to."""
        if self.signals.ending is not None:
            return
        with self.signals.raising():
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    def _are_stopping(self, ended: list[Ended]) -> bool:
        """Whether some have stopped and saved, as nobody failed, and the others may be about to.

        After the grace period they are ended.
        """
        if not any(each.code == ExitCode.STOPPED for each in ended) or len(ended) == self.plan.processes:
            return False
        now = time.monotonic()
        self._stopped_since = now if self._stopped_since is None else self._stopped_since
        if now - self._stopped_since < self.plan.grace:
            self._pass_on()
            return True
        self._end_workers(signal.SIGTERM, min(self.plan.grace, AFTER_FAILURE))
        return False

    def _conclude(self) -> None:
        """All workers of an attempt have ended, and not all of them well: say so, and whether they start again."""
        if self.failure is None:
            failed = [each for each in self._ended() if each.code != ExitCode.DONE]
            self.failure = self._first([each for each in failed if each.code != ExitCode.STOPPED] or failed)
        self.output.end(self.failure.rank)
        code, ending = self.failure.code, self.signals.ending
        if ending is not None:
            self._remaining_restarts = 0
            if code not in (ExitCode.STOPPED, -ending, 128 + ending) and self.failure.rank not in self._killed:
                self.screen.say(str(self.failure))
        elif code == ExitCode.STOPPED:  # which it has told itself
            self._remaining_restarts = 0
        elif code == ExitCode.USAGE:
            self._remaining_restarts = 0
            self.screen.say(f"{self.failure}: its configuration is wrong, so nothing is restarted")
        elif self._remaining_restarts > 0:
            number = self.plan.restarts - self._remaining_restarts + 1
            self.screen.say(f"{self.failure}; all workers are started again (restart {number} of {self.plan.restarts})")
        elif self.plan.restarts:
            self.screen.say(f"{self.failure}, and no restart is left of {self.plan.restarts}")
        else:
            self.screen.say(str(self.failure))

    def _first(self, failed: list[Ended]) -> Ended:
        """Which of those that were found ended at the same time made the others fail."""
        now = time.monotonic()

        def order(each: Ended) -> tuple[bool, float]:
            reported = self.output.attempt.reported(each.rank) if self.output.attempt is not None else None
            return each.code not in SUDDEN, now if reported is None else reported

        return min(failed, key=order)

    def _processes(self) -> dict[int, subprocess.Popen[bytes]]:
        """The local workers by their rank."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {self._worker_group.workers[local].global_rank: handler.proc for local, handler in handlers.items()}

    def _ended(self) -> list[Ended]:
        """The workers that have ended."""
        return [
            Ended(rank, process.pid, code)
            for rank, process in self._processes().items()
            if (code := process.poll()) is not None
        ]

    def _pass_on(self) -> list[signal.Signals]:
        """Pass on to the workers what signals came; to them alone, as their loaders' processes are theirs to end."""
        signals = self.signals.take()
        for number in signals:
            for process in self._processes().values():
                process.send_signal(number)
        return signals

    def _end_for_signal(self, ending: signal.Signals) -> None:
        self.screen.say(
            f"{ending.name}: the workers have {self.plan.grace:g} s to save and end; a second signal stops them at once"
        )
        self._end_workers(None, self.plan.grace)

    def _end_workers(self, number: signal.Signals | None, grace: float) -> None:
        """Send the workers a signal, wait for them to end, then kill them and whatever is left of their groups."""
        processes = self._processes()
        if number is not None:
            for process in processes.values():
                process.send_signal(number)
        deadline = time.monotonic() + grace
        while living := [rank for rank, process in processes.items() if process.poll() is None]:
            if set(self._pass_on()) & set(ENDING) and self.signals.count > 1:
                deadline = min(deadline, time.monotonic() + AT_ONCE)
            if time.monotonic() >= deadline:
                self._killed = living
                names = ", ".join(map(str, living))
                self.screen.say(f"killed after {grace:g} s in which they did not end: rank {names}")
                break
            time.sleep(INTERVAL / 4)
        for process in processes.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):  # of one that the kernel does not let go of
                process.wait(AT_ONCE)
