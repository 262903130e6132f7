"""The processes that train the trials of a search, and the messages between them and the one that proposes.

Each worker runs one trial after another. It is started with the command of the search, finds the number of a socket in
an environment variable, and exchanges lines of JSON through it::

    {"kind": "trial", "number": 3, "name": "run-3", "parameters": {...}, "resume_from": null, ...}
    {"kind": "reported", "step": 40, "values": [0.6], "diverged": false, "asks": true}      answered with
    {"kind": "continues", "goes_on": true}
    {"kind": "ended", "state": "complete", "reason": null, "seconds": 3.2}

A state of null means that the trial was stopped, and can be resumed. What a trial prints is in a file in its folder.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import define, field

from hexloop.domain.json_documents import finite_json, read_json

CHANNEL = "HEXLOOP_SEARCH_CHANNEL"
"""The environment variable with the number of the socket of a worker."""

LONGEST_MESSAGE = 16 << 20
"""Bytes of a message."""

AFTER_END = 10.0
"""Seconds that a process has to exit when its search ends, and that the kernel has to remove one that was killed."""


@define
class Channel:
    """Sends and receives messages, one on a line, through a socket."""

    connection: socket.socket
    _received: bytearray = field(factory=bytearray, init=False)

    def send(self, **message: Any) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        self.connection.sendall(json.dumps(finite_json(message), allow_nan=False).encode() + b"\n")

    def receive(self) -> Mapping[str, Any] | None:
        """Wait for the next message and return it; None if the other end is gone."""
        while (message := self._next()) is None:
            if not self.read():
                return None
        return message

    def read(self) -> bool:
        """Read what has arrived, waiting if nothing has; return False at the end. Raises OSError."""
        try:
            data = self.connection.recv(1 << 16)
        except ConnectionError:
            return False
        self._received += data
        if len(self._received) > LONGEST_MESSAGE:
            raise OSError("A message of a process of the search is too long.")
        return bool(data)

    def waiting(self) -> Iterator[Mapping[str, Any]]:
        """Yield the messages that were read completely."""
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> Mapping[str, Any] | None:
        line, newline, rest = bytes(self._received).partition(b"\n")
        if not newline:
            return None
        self._received = bytearray(rest)
        message: Mapping[str, Any] = read_json(line)
        return message


@define(eq=False)
class Worker:
    """A process that trains trials. number: of the worker, from 0. trial: the number of the one that it trains now."""

    number: int
    process: subprocess.Popen[bytes]
    channel: Channel
    trial: int | None = None

    def answer(self, **message: Any) -> None:
        """Send a message. That the worker has died is found out by `WorkerPool.messages`."""
        with suppress(OSError):
            self.channel.send(**message)

    @property
    def ending(self) -> str:
        """How the process ended, in words; waits for it to end."""
        try:
            code = self.process.wait(AFTER_END)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        if code >= 0:
            return f"its process exited with code {code}"
        known = -code in set(signal.Signals)
        name = signal.Signals(-code).name if known else f"signal {-code}"
        hint = ", as happens when memory runs out" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{hint}"


@define
class WorkerPool:
    """The workers of a search, which are started when they are needed.

    command: of a worker. environments: the variables that each one has besides those of this process. output: the file
    for what a worker prints before its first trial.
    """

    command: Sequence[str]
    environments: Sequence[Mapping[str, str]]
    output: str
    _workers: dict[int, Worker] = field(factory=dict, init=False)
    _selector: selectors.BaseSelector = field(factory=selectors.DefaultSelector, init=False)

    def idle(self) -> Worker | None:
        """Return a worker without a trial, started if needed; None if all have one."""
        for number in range(len(self.environments)):
            worker = self._workers.get(number) or self._start(number)
            if worker.trial is None:
                return worker
        return None

    def busy(self) -> list[Worker]:
        """Return the workers that train a trial."""
        return [each for each in self._workers.values() if each.trial is not None]

    def give(self, worker: Worker, number: int, **described: Any) -> None:
        """Let a worker train a trial."""
        worker.trial = number
        worker.answer(kind="trial", number=number, **described)

    def messages(self, seconds: float | None) -> Iterator[tuple[Worker, Mapping[str, Any] | None]]:
        """Wait up to some seconds, and yield what has arrived; None stands for the end of a worker."""
        if not self._workers:
            return
        for key, _ in self._selector.select(seconds):
            worker: Worker = key.data
            is_alive = worker.channel.read()
            for message in worker.channel.waiting():
                yield worker, message
            if not is_alive:
                self._forget(worker)
                yield worker, None

    def signal(self, number: int) -> None:
        """Send a signal to all workers."""
        for each in self._workers.values():
            with suppress(ProcessLookupError):
                each.process.send_signal(number)

    def close(self) -> None:
        """End the workers: at once those that train, and when they have read it those that do not."""
        ending = list(self._workers.values())
        for each in ending:
            if each.trial is not None:
                each.process.kill()
            self._forget(each)
        for each in ending:
            try:
                each.process.wait(AFTER_END)
            except subprocess.TimeoutExpired:
                each.process.kill()
                with suppress(subprocess.TimeoutExpired):  # the kernel may not release a process
                    each.process.wait(AFTER_END)
        self._selector.close()

    def _start(self, number: int) -> Worker:
        own, theirs = socket.socketpair()
        try:
            environment = {**os.environ, **self.environments[number], CHANNEL: f"{theirs.fileno()}:{os.getpid()}"}
            with open(self.output, "ab") as output:
                process = subprocess.Popen(
                    self.command,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on
                )
        finally:
            theirs.close()
        worker = self._workers[number] = Worker(number, process, Channel(own))
        self._selector.register(own, selectors.EVENT_READ, worker)
        return worker

    def _forget(self, worker: Worker) -> None:
        self._workers.pop(worker.number, None)
        self._selector.unregister(worker.channel.connection)
        worker.channel.connection.close()


def values_in(message: Any) -> tuple[float, ...]:
    """Return the objectives in a message, in which NaN and infinity are texts."""
    return tuple(float(each) for each in message)


def command_of_worker(argv: Sequence[str]) -> list[str]:
    """Return the command of a worker: that of the search, whose arguments are `argv`."""
    return [sys.executable, "-u", "-P", "-m", "hexloop", *argv]
