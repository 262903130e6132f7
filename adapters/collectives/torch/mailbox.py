"""A few numbers between the processes of one machine, through memory that they share.

A message is a write into that memory and a look at the others'. Over connections it wakes threads on both sides, which
costs a step more than what it says is worth.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import TypeVar

from attrs import define

from hexloop.ports.collectives import Json

Found = TypeVar("Found")

CAPACITY = 30
"""Numbers that a message has room for."""

UNREAD = 8
"""Messages of a process that may lie there until all have read them; then it waits for the slowest."""

GLANCE = 0.1
"""Seconds between two looks at whether a process that keeps one waiting still lives."""

AWAKE = 0.0002
"""Seconds for which one waits without a nap, of which the shortest takes half as long; others go first all the same."""

LONGEST_NAP = 0.001

_PAGE = 4096
_CHECKSUM = struct.Struct("=I")
_ROOM = _PAGE // 2 // UNREAD
"""Bytes for a message: its number, what it says and a checksum. A process's messages fill half of its page."""


@define(eq=False)
class Letter:
    """What a process has said, and, once they were read, what all have said with it, by rank.

    place: where it lies in each process's page. layout: its number, what it says, and the checksum of both.
    """

    number: int
    values: tuple[float, ...]
    place: int
    layout: struct.Struct
    rows: list[tuple[float, ...]] | None = None


class Mailbox:
    """The memory of the processes of one machine; each writes into a page of its own, and reads all of them.

    A message carries its number and a checksum, so that whoever reads one that is half written looks again: this
    needs no lock and no order of writes. Each process holds a lock of its own on the file, which ends with it.
    """

    def __init__(
        self, file: int, rank: int, world_size: int, timeout: float, failed: Callable[[], bool] = bool
    ) -> None:
        """file: a descriptor, which this object closes. timeout: seconds. failed: whether another told its failure."""
        import fcntl

        self._file, self._rank, self._world_size = file, rank, world_size
        self._timeout, self._failed = timeout, failed
        self._pages = [_PAGE * (each + 1) for each in range(world_size)]
        self._own_page = self._pages[rank]
        self._own_counter = _counter(self._own_page)
        self._read_by_all = 0
        self._memory = mmap.mmap(file, _PAGE * (world_size + 1))
        self._read = memoryview(self._memory).cast("Q")
        self._open: deque[Letter] = deque()
        self._posted = 0
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    def post(self, values: Sequence[float]) -> Letter:
        """Say as many numbers as every other process does, at most `CAPACITY`. Raises RuntimeError as `collect`."""
        number = self._posted
        letter = Letter(number, tuple(map(float, values)), _ROOM * (number % UNREAD), _layout(len(values)))
        if number - UNREAD >= self._read_by_all:
            self._make_room(number - UNREAD)
        said = letter.layout.pack(number, *values, 0)[: -_CHECKSUM.size]
        start = self._own_page + letter.place
        self._memory[start : start + letter.layout.size] = said + _CHECKSUM.pack(zlib.crc32(said))
        self._posted += 1
        self._open.append(letter)
        return letter

    def collect(self, letter: Letter) -> list[tuple[float, ...]]:
        """What all have said, by rank. Raises RuntimeError where one of them is gone, has failed, or takes too long."""
        while letter.rows is None:
            oldest = self._open[0]
            rows = [oldest.values if page == self._own_page else self._said(page, oldest) for page in self._pages]
            oldest.rows = [self._wait_for(rank, oldest) if row is None else row for rank, row in enumerate(rows)]
            self._open.popleft()
            self._read[self._own_counter] = oldest.number + 1
        return letter.rows

    def close(self) -> None:
        """Let go of the memory. To those who still wait for this process it is gone."""
        with suppress(OSError, BufferError):
            self._read.release()
            self._memory.close()
            os.close(self._file)

    def _make_room(self, number: int) -> None:
        """Wait until all have read what was said under `number`, whose place is needed."""
        if self._open and self._open[0].number <= number:
            self.collect(self._open[0])
        for rank in range(self._world_size):
            self._until(partial(self._has_read, rank, number), rank)
        self._read_by_all = min(self._read[_counter(page)] for page in self._pages)

    def _has_read(self, rank: int, number: int) -> bool | None:
        return self._read[_counter(self._pages[rank])] > number or None

    def _wait_for(self, rank: int, letter: Letter) -> tuple[float, ...]:
        return self._until(partial(self._said, self._pages[rank], letter), rank)

    def _said(self, page: int, letter: Letter) -> tuple[float, ...] | None:
        """What a process has said under the letter's number; None where it has not, or is about to."""
        start, layout = page + letter.place, letter.layout
        said = self._memory[start : start + layout.size]
        number, *values, checksum = layout.unpack(said)
        if number != letter.number or checksum != zlib.crc32(said[: -_CHECKSUM.size]):
            return None
        return tuple(values)

    def _until(self, look: Callable[[], Found | None], rank: int) -> Found:
        """What `look` finds. Naps grow with the wait, so that whoever is waited for has the processor."""
        if (found := look()) is not None:
            return found
        began = glanced = time.monotonic()
        while (found := look()) is None:
            now = time.monotonic()
            if now - glanced > GLANCE:
                glanced, trouble = now, self._trouble(rank, now - began)
                if trouble and (found := look()) is None:
                    raise RuntimeError(trouble)
                continue
            if now - began < AWAKE:
                os.sched_yield()
            else:
                time.sleep(min((now - began) / 16, LONGEST_NAP))
        return found

    def _trouble(self, rank: int, waited: float) -> str | None:
        if self._failed():
            return "another process failed"
        if self._is_gone(rank):
            return f"the process of rank {rank} is gone"
        return f"nothing was heard of rank {rank} for {waited:.0f} s" if waited > self._timeout else None

    def _is_gone(self, rank: int) -> bool:
        """Whether the lock that the process held as long as it lived is free."""
        import fcntl

        if rank == self._rank:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank)
        return True


def shared_mailbox(
    gather: Callable[[Json], list[Json]], rank: int, world_size: int, timeout: float, failed: Callable[[], bool]
) -> Mailbox | None:
    """One that all processes have; None on all where they do not share a machine, or it has no such memory.

    gather: every rank's value, on every rank. The memory has no name: it is gone with the last process.
    """
    file, path, token = _offer(world_size) if rank == 0 else (None, "", "")
    path, token = map(str, gather([path, token])[0])  # type: ignore[arg-type]
    opened = file if rank == 0 else _open(path, token)
    mailbox = None
    if opened is not None:
        with suppress(OSError, ImportError):
            mailbox = Mailbox(opened, rank, world_size, timeout, failed)
    if all(gather(mailbox is not None)):
        return mailbox
    if mailbox is not None:
        mailbox.close()
    return None


def _offer(world_size: int) -> tuple[int | None, str, str]:
    """New memory, where the others find it, and by what they know it."""
    if not hasattr(os, "memfd_create"):
        return None, "", ""
    token = secrets.token_hex(16)
    try:
        file = os.memfd_create("hexloop")
    except OSError:  # the system allows none
        return None, "", ""
    os.truncate(file, _PAGE * (world_size + 1))
    os.pwrite(file, token.encode(), 0)
    return file, f"/proc/{os.getpid()}/fd/{file}", token


def _open(path: str, token: str) -> int | None:
    """The memory that was offered; None where there is another file under its name on this machine, or none."""
    if not token:
        return None
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.pread(file, len(token), 0) == token.encode():
            return file
        os.close(file)
    return None


def _counter(page: int) -> int:
    """Where a process says how many messages it has read, in words of 8 bytes: in the other half of its page."""
    return (page + _PAGE // 2) // 8


@lru_cache(CAPACITY + 1)
def _layout(length: int) -> struct.Struct:
    return struct.Struct(f"=Q{length}dI")
