"""A few numbers exchanged between the processes of one machine through shared memory.

Sending is a write to that memory, receiving a read of that of the others. Connections would wake threads on both sides,
which costs a training step more than the exchange is worth.
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
"""Maximum number of numbers in a message."""

UNREAD = 8
"""Messages of a process that can be in memory before all have read them; then it waits for the slowest reader."""

LIVENESS_INTERVAL = 0.1
"""Seconds between two checks that a process that is waited for is alive."""

SPIN_SECONDS = 0.0002
"""Seconds of waiting without sleeping, as the shortest sleep takes half as long; the processor is yielded meanwhile."""

MAXIMUM_SLEEP = 0.001

_PAGE = 4096
_CHECKSUM = struct.Struct("=I")
_MESSAGE_BYTES = _PAGE // 2 // UNREAD
"""Bytes of a message: its number, its values and a checksum. The messages of a process take half of its page."""


@define(eq=False)
class PostedMessage:
    """What a process has posted and, once read, what all have posted with it, by rank.

    offset: its offset in the page of each process.
    layout: its number, its values, and the checksum of both.
    """

    number: int
    values: tuple[float, ...]
    offset: int
    layout: struct.Struct
    rows: list[tuple[float, ...]] | None = None


class Mailbox:
    """Shared memory of the processes of one machine; each writes to its own page and reads all of them.

    A message carries its number and a checksum, so that a reader that sees a partial message retries: this needs no
    lock and no order of writes. Each process holds a file lock of its own, which is released when it exits.
    """

    def __init__(
        self, file: int, rank: int, world_size: int, timeout: float, failed: Callable[[], bool] = bool
    ) -> None:
        """Map the memory and take the lock of this rank.

        file: a descriptor, which this object closes.
        timeout: in seconds.
        failed: returns whether another process has reported a failure.
        """
        import fcntl

        self._file, self._rank, self._world_size = file, rank, world_size
        self._timeout, self._failed = timeout, failed
        self._pages = [_PAGE * (each + 1) for each in range(world_size)]
        self._own_page = self._pages[rank]
        self._own_counter = _counter(self._own_page)
        self._read_by_all = 0
        self._memory = mmap.mmap(file, _PAGE * (world_size + 1))
        self._read = memoryview(self._memory).cast("Q")
        self._open: deque[PostedMessage] = deque()
        self._posted = 0
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank)

    def post(self, values: Sequence[float]) -> PostedMessage:
        """Post as many numbers as every other process does, at most `CAPACITY`. Raises RuntimeError like `collect`."""
        number = self._posted
        offset = _MESSAGE_BYTES * (number % UNREAD)
        message = PostedMessage(number, tuple(map(float, values)), offset, _layout(len(values)))
        if number - UNREAD >= self._read_by_all:
            self._make_room(number - UNREAD)
        payload = message.layout.pack(number, *values, 0)[: -_CHECKSUM.size]
        start = self._own_page + message.offset
        self._memory[start : start + message.layout.size] = payload + _CHECKSUM.pack(zlib.crc32(payload))
        self._posted += 1
        self._open.append(message)
        return message

    def collect(self, message: PostedMessage) -> list[tuple[float, ...]]:
        """Return what all have posted, by rank. Raises RuntimeError if one of them exited, failed, or timed out."""
        while message.rows is None:
            oldest = self._open[0]
            rows = [oldest.values if page == self._own_page else self._posted_by(page, oldest) for page in self._pages]
            oldest.rows = [self._wait_for(rank, oldest) if row is None else row for rank, row in enumerate(rows)]
            self._open.popleft()
            self._read[self._own_counter] = oldest.number + 1
        return message.rows

    def close(self) -> None:
        """Release the memory. To processes that still wait for this one, it has exited."""
        with suppress(OSError, BufferError):
            self._read.release()
            self._memory.close()
            os.close(self._file)

    def _make_room(self, number: int) -> None:
        """Wait until all have read message `number`, whose memory is needed."""
        if self._open and self._open[0].number <= number:
            self.collect(self._open[0])
        for rank in range(self._world_size):
            self._until(partial(self._has_read, rank, number), rank)
        self._read_by_all = min(self._read[_counter(page)] for page in self._pages)

    def _has_read(self, rank: int, number: int) -> bool | None:
        return self._read[_counter(self._pages[rank])] > number or None

    def _wait_for(self, rank: int, message: PostedMessage) -> tuple[float, ...]:
        return self._until(partial(self._posted_by, self._pages[rank], message), rank)

    def _posted_by(self, page: int, message: PostedMessage) -> tuple[float, ...] | None:
        """Return what a process has posted for this message; None if it has not, or not completely."""
        start, layout = page + message.offset, message.layout
        payload = self._memory[start : start + layout.size]
        number, *values, checksum = layout.unpack(payload)
        if number != message.number or checksum != zlib.crc32(payload[: -_CHECKSUM.size]):
            return None
        return tuple(values)

    def _until(self, look: Callable[[], Found | None], rank: int) -> Found:
        """Return what `look` finds. Sleeps grow with the wait, so that the awaited process gets the processor."""
        if (found := look()) is not None:
            return found
        start = checked = time.monotonic()
        while (found := look()) is None:
            now = time.monotonic()
            if now - checked > LIVENESS_INTERVAL:
                checked, problem = now, self._problem(rank, now - start)
                if problem and (found := look()) is None:
                    raise RuntimeError(problem)
                continue
            if now - start < SPIN_SECONDS:
                os.sched_yield()
            else:
                time.sleep(min((now - start) / 16, MAXIMUM_SLEEP))
        return found

    def _problem(self, rank: int, waited: float) -> str | None:
        if self._failed():
            return "another process failed"
        if self._has_exited(rank):
            return f"the process of rank {rank} has exited"
        return f"no message from rank {rank} for {waited:.0f} s" if waited > self._timeout else None

    def _has_exited(self, rank: int) -> bool:
        """Return whether the lock of a process, which it holds as long as it lives, is free."""
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
    """Return a mailbox that all processes share; None on all if they are on several machines or lack such memory.

    gather: returns every rank's value, on every rank. The memory has no name: it is freed with the last process.
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
    """Create the memory; return it, its path for the others, and a token to recognize it by."""
    if not hasattr(os, "memfd_create"):
        return None, "", ""
    token = secrets.token_hex(16)
    try:
        file = os.memfd_create("hexloop")
    except OSError:  # not permitted by the system
        return None, "", ""
    os.truncate(file, _PAGE * (world_size + 1))
    os.pwrite(file, token.encode(), 0)
    return file, f"/proc/{os.getpid()}/fd/{file}", token


def _open(path: str, token: str) -> int | None:
    """Open the offered memory; None if the path is missing or another file on this machine."""
    if not token:
        return None
    with suppress(OSError):
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.pread(file, len(token), 0) == token.encode():
            return file
        os.close(file)
    return None


def _counter(page: int) -> int:
    """Return the index, in 8-byte words, of the process's count of read messages: in the other half of its page."""
    return (page + _PAGE // 2) // 8


@lru_cache(CAPACITY + 1)
def _layout(length: int) -> struct.Struct:
    return struct.Struct(f"=Q{length}dI")
