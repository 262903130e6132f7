"""What the workers of one attempt print: read from pipes, shown on the screen, and kept in files."""

from __future__ import annotations

import os
import selectors
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from attrs import Factory, define, field
from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from hexloop.app.command_line.launch.screen import Screen, Source

STREAMS = {1: "stdouts", 2: "stderrs"}
CHUNK = 2**16
PAUSE = 0.5
"""Seconds after which reports of errors that are kept are looked at again."""


@define
class Attempt:
    """The pipes of one start of all local workers, and the thread that reads them."""

    screen: Screen
    sources: dict[tuple[int, int], Source] = field(factory=dict)
    _readers: dict[int, tuple[Source, BinaryIO | None]] = field(factory=dict)
    _writers: list[int] = field(factory=list)
    _ended: Event = field(factory=Event)
    _wake: tuple[int, int] = Factory(os.pipe)
    _thread: Thread | None = None

    def pipe(self, rank: int, stream: int, source: Source, file: BinaryIO | None) -> str:
        """The path under which one stream of a worker is opened."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        self.sources[rank, stream] = source
        self._readers[reader] = source, file
        self._writers.append(writer)
        return f"/dev/fd/{writer}"

    def start(self) -> None:
        """Read from now on; the workers have opened their ends."""
        for writer in self._writers:
            os.close(writer)
        self._writers.clear()
        self._thread = Thread(target=self._read, name="output of workers", daemon=True)
        self._thread.start()

    def end(self, last: int | None) -> None:
        """Show all that was printed, once the workers have ended: what is kept of the rank `last` comes last.

        What another rank says in the very same words is not said again.
        """
        self._ended.set()
        os.write(self._wake[1], b"!")
        if self._thread is not None:
            self._thread.join()
        final = self.sources.get((last, 2)) if last is not None else None
        for source in self.sources.values():
            if final is not None and source is not final and source.kept == final.kept:
                source.kept = []
            if source is not final:
                source.release()
        if final is not None:
            final.release()
        for descriptor in (*self._readers, *self._writers, *self._wake):
            os.close(descriptor)
        self._readers.clear()
        self._writers.clear()

    def reported(self, rank: int) -> float | None:
        """When the rank began to report an error; None where it does not."""
        return self.sources[rank, 2].began

    def _read(self) -> None:
        with selectors.DefaultSelector() as selector:
            for reader in self._readers:
                selector.register(reader, selectors.EVENT_READ)
            selector.register(self._wake[0], selectors.EVENT_READ)
            while True:
                ended = self._ended.is_set()  # asked before, so that what was printed until then is read below
                ready = [key.fd for key, _ in selector.select(0 if ended else PAUSE) if key.fd in self._readers]
                for reader in sorted(ready, key=self._stream):  # a log before the bar that is drawn anew below it
                    if not self._take(reader):
                        selector.unregister(reader)
                for source, _ in self._readers.values():
                    source.release_what_is_old()
                if ended and not ready:
                    break
        for source, _ in self._readers.values():
            source.end()

    def _stream(self, reader: int) -> int:
        return self._readers[reader][0].stream

    def _take(self, reader: int) -> bool:
        """Take what the pipe holds; False at its end."""
        source, file = self._readers[reader]
        chunk = os.read(reader, CHUNK)
        source.take(chunk)
        if file is None:
            return bool(chunk)
        try:
            file.write(chunk)
        except OSError as error:  # whoever watches a run does not end it
            self._readers[reader] = source, None
            self.screen.say(f"{file.name} is not written any more: {error}")
        return bool(chunk)


class Output(LogsSpecs):
    """Says to torch's agent where workers print to, attempt by attempt."""

    def __init__(self, screen: Screen, log_folder: str | None) -> None:
        super().__init__(log_folder)
        self.screen = screen
        self.attempt: Attempt | None = None
        self._files: dict[int, BinaryIO] = {}

    @property
    def root_log_dir(self) -> str:
        """The folder of the files; empty where there are none."""
        return self._root_log_dir or ""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the pipes of the workers whose variables these are, by local rank."""
        self.attempt = Attempt(self.screen)
        paths: dict[int, dict[int, str]] = {stream: {} for stream in STREAMS}
        for local_rank, variables in envs.items():
            variables["TORCHELASTIC_ERROR_FILE"] = ""
            rank = int(variables["RANK"])
            for stream in STREAMS:
                source = Source(self.screen, stream, rank, _label(variables))
                paths[stream][local_rank] = self.attempt.pipe(rank, stream, source, self._file(rank))
        return LogsDest(paths[1], paths[2], error_files=dict.fromkeys(envs, os.devnull))

    def end(self, last: int | None = None) -> None:
        """Show all that the workers of the last attempt printed; see `Attempt.end`."""
        if self.attempt is not None:
            attempt, self.attempt = self.attempt, None
            attempt.end(last)

    def close(self) -> None:
        """Nothing more is printed."""
        self.end()
        for file in self._files.values():
            file.close()

    def _file(self, rank: int) -> BinaryIO | None:
        if not self._root_log_dir:
            return None
        if rank not in self._files:
            folder = Path(self._root_log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self._files[rank] = (folder / f"rank-{rank}.log").open("ab", buffering=0)
        return self._files[rank]


def _label(variables: Mapping[str, str]) -> bytes:
    """What stands before each line of a worker; nothing where there is only one."""
    world_size, rank = variables["WORLD_SIZE"], variables["RANK"]
    return f"[rank {rank:>{len(str(int(world_size) - 1))}}] ".encode() if world_size != "1" else b""
