"""A storage that fails according to a plan, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from itertools import islice

from attrs import field, frozen
from attrs.validators import ge, in_, le

from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import Entry, Publication, Storage, StorageCapabilities, Stored

ANY = "any"
OPERATIONS = ("write", "read", "list", "move", "remove", "digest")


class Died(BaseException):
    """The process that used the storage died. Not an Exception, so no error handling stops it."""


class Effect(Enum):
    """What a fault does to an operation.

    FAIL: nothing is done; StorageError is raised.
    FULL: nothing is done; StorageFullError is raised.
    TEAR: the operation is done in part and reports success, like a disk that loses what it acknowledged.
    DIE: the operation is done in part and the process dies.
    LOSE: the operation is done and undone by the next power cut, like a disk that keeps acknowledged data in its cache.
    """

    FAIL = "fail"
    FULL = "full"
    TEAR = "tear"
    DIE = "die"
    LOSE = "lose"


@frozen
class Fault:
    """One planned fault.

    at: the operation it strikes, counted from 1.
    operation: count only operations of this name.
    times: how many operations in a row it strikes.
    done: the share of the operation that TEAR and DIE still complete: of a write's bytes (0 leaves an empty file), or
    of the files in a folder that is removed, or moved if moves are not atomic. Other operations are done if it is 1,
    and not otherwise.
    """

    at: int = field(validator=ge(1))
    effect: Effect
    operation: str = field(default=ANY, validator=in_((ANY, *OPERATIONS)))
    done: float = field(default=0.5, validator=[ge(0), le(1)])
    times: int = field(default=1, validator=ge(1))


class FaultyStorage:
    """Storage adapter that forwards to another storage until a fault strikes.

    After DIE, every operation raises Died: a dead process does nothing more. What it left is in `inner`. `operations`
    lists the operations so far as (name, path), so that a test can try a fault at each.
    losing: context in which the inner storage loses what it acknowledges, such as `MemoryStorage.losing`. Raises
    ValueError if the plan has LOSE and `losing` is missing.
    """

    def __init__(
        self,
        inner: Storage,
        faults: Iterable[Fault] = (),
        losing: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> None:
        self.inner = inner
        self._losing = losing or nullcontext
        self.operations: list[tuple[str, str]] = []
        self.dead = False
        self._faults = tuple(faults)
        if losing is None and any(fault.effect is Effect.LOSE for fault in self._faults):
            raise ValueError("A plan with Effect.LOSE requires losing=..., such as MemoryStorage.losing.")

    @property
    def capabilities(self) -> StorageCapabilities:
        """Those of the inner storage."""
        return self.inner.capabilities

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> Stored:
        """Write a new file; torn, it holds only the first bytes."""
        fault = self._begin("write", path)
        if fault is None:
            return self.inner.write(path, chunks)
        data = b"".join(chunks)
        if fault.effect is Effect.LOSE:
            with self._losing():
                return self.inner.write(path, [data])
        stored = self.inner.write(path, [data])
        kept = math.floor(len(data) * fault.done)
        if kept < len(data):
            self.inner.remove(path)
            self.inner.write(path, [data[:kept]])
        self._end(fault)
        return stored

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Return the file's bytes."""
        self._end(self._begin("read", path))
        return self.inner.read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder."""
        self._end(self._begin("list", folder))
        return self.inner.list(folder)

    def move(self, source: str, destination: str) -> None:
        """Rename a file or folder; torn, some files have the new name if moves are not atomic."""
        fault = self._begin("move", source)
        if fault is not None and fault.effect is Effect.LOSE:
            with self._losing():
                self.inner.move(source, destination)
        elif fault is None or fault.done == 1:
            self.inner.move(source, destination)
        elif self.capabilities.publication is not Publication.RENAME:
            for path in self._part_of(source, fault):
                self.inner.move(path, destination + path.removeprefix(source))
        self._end(fault)

    def remove(self, path: str) -> None:
        """Remove a file or folder; torn, some of its files are left."""
        fault = self._begin("remove", path)
        if fault is not None and fault.effect is Effect.LOSE:
            with self._losing():
                self.inner.remove(path)
        elif fault is None or fault.done == 1:
            self.inner.remove(path)
        else:
            for removed in self._part_of(path, fault):
                self.inner.remove(removed)
        self._end(fault)

    def digest(self, path: str) -> Stored:
        """Return the size and digest of a file."""
        self._end(self._begin("digest", path))
        return self.inner.digest(path)

    def _begin(self, operation: str, path: str) -> Fault | None:
        """Count the operation; return a fault that strikes in its middle, or raise one that strikes at once."""
        if self.dead:
            raise Died(f"Cannot {operation} {path}: the process has died.")
        self.operations.append((operation, path))
        count = {ANY: len(self.operations), operation: sum(name == operation for name, _ in self.operations)}
        for fault in self._faults:
            if fault.at <= count.get(fault.operation, 0) < fault.at + fault.times:
                if fault.effect is Effect.FAIL:
                    raise StorageError(f"Planned fault: this {operation} of {path} fails. Try again.")
                if fault.effect is Effect.FULL:
                    raise StorageFullError(
                        f"Planned fault: no space left for this {operation} of {path}. Free some space."
                    )
                return fault
        return None

    def _end(self, fault: Fault | None) -> None:
        if fault is not None and fault.effect is Effect.DIE:
            self.dead = True
            raise Died(f"Planned fault: the process dies in operation {len(self.operations)}.")

    def _part_of(self, folder: str, fault: Fault) -> Iterator[str]:
        files = _files_below(self.inner, folder)
        return islice(files, math.floor(len(files) * fault.done))


def _files_below(storage: Storage, folder: str) -> list[str]:
    files: list[str] = []
    for entry in storage.list(folder):
        path = f"{folder}/{entry.name}"
        files += _files_below(storage, path) if entry.is_folder else [path]
    return files
