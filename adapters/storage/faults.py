"""A storage that fails according to a plan, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum

from attrs import field, frozen
from attrs.validators import ge, in_, le

from hexloop.adapters.storage import files_below
from hexloop.domain.errors import StorageError, StorageFullError
from hexloop.ports.storage import Entry, Publication, Storage, StorageCapabilities, Stored

ANY = "any"
OPERATIONS = ("write", "sync", "read", "list", "move", "remove", "digest")


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

    Args:
        at: the operation it strikes, counted from 1.
        effect: what happens.
        operation: count only operations of this name.
        done: the share of the operation that TEAR and DIE still complete: of a write's bytes (0 leaves an empty file),
            of the files that are synced, or of those in a folder that is removed, or moved if moves are not atomic.
            Other operations are done if it is 1, and not otherwise.
        times: how many operations in a row it strikes.
        within: count only operations on paths that contain this.
    """

    at: int = field(validator=ge(1))
    effect: Effect
    operation: str = field(default=ANY, validator=in_((ANY, *OPERATIONS)))
    done: float = field(default=0.5, validator=[ge(0), le(1)])
    times: int = field(default=1, validator=ge(1))
    within: str = ""

    def counts(self, operation: str, path: str) -> bool:
        """Return whether the fault counts an operation.

        Args:
            operation: the name of an operation.
            path: the path that it is called with.
        """
        return self.operation in (ANY, operation) and self.within in path


class FaultyStorage:
    """Storage adapter that forwards to another storage until a fault strikes.

    After DIE, every operation raises Died: a dead process does nothing more. What it left is in `inner`. `operations`
    lists the operations so far as (name, path), so that a test can try a fault at each.

    Args:
        inner: the storage that operations are forwarded to.
        faults: what is planned.
        losing: context in which the inner storage loses what it acknowledges, such as `MemoryStorage.losing`.

    Raises:
        ValueError: if the plan has LOSE and `losing` is missing.

    Examples:
        >>> from hexloop.testing import Effect, Fault, FaultyStorage, MemoryStorage
        >>> storage = FaultyStorage(MemoryStorage(), [Fault(2, Effect.FULL, operation="write")])
        >>> storage.write("first", [b"text"]).size
        4
        >>> storage.write("second", [b"text"])
        Traceback (most recent call last):
            ...
        hexloop.domain.errors.StorageFullError: Planned fault: no space left for ...
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
        with self._operation("write", path) as share:
            if share == 1:
                return self.inner.write(path, chunks)
            data = b"".join(chunks)
            stored = self.inner.write(path, [data])
            kept = math.floor(len(data) * share)
            if kept < len(data):
                self.inner.remove(path)
                self.inner.write(path, [data[:kept]])
            return stored

    def sync(self, paths: Sequence[str]) -> None:
        """Make files durable; torn, the first of them are."""
        with self._operation("sync", ", ".join(paths)) as share:
            self.inner.sync(paths[: math.floor(len(paths) * share)])

    def read(self, path: str, start: int = 0) -> Iterator[memoryview]:
        """Return the file's bytes."""
        with self._operation("read", path):
            pass
        return self.inner.read(path, start)

    def list(self, folder: str) -> tuple[Entry, ...]:
        """Return the names in a folder."""
        with self._operation("list", folder):
            pass
        return self.inner.list(folder)

    def move(self, source: str, destination: str) -> None:
        """Rename a file or folder; torn, some files have the new name if moves are not atomic."""
        with self._operation("move", source) as share:
            if share == 1:
                self.inner.move(source, destination)
            elif self.capabilities.publication is not Publication.RENAME:
                for path in self._part_of(source, share):
                    self.inner.move(path, destination + path.removeprefix(source))

    def remove(self, path: str) -> None:
        """Remove a file or folder; torn, some of its files are left."""
        with self._operation("remove", path) as share:
            for removed in (path,) if share == 1 else self._part_of(path, share):
                self.inner.remove(removed)

    def digest(self, path: str) -> Stored:
        """Return the size and digest of a file."""
        with self._operation("digest", path):
            pass
        return self.inner.digest(path)

    @contextmanager
    def _operation(self, operation: str, path: str) -> Iterator[float]:
        """Count an operation and yield the share of it to complete: 1 unless a fault strikes in its middle.

        A fault that strikes at once is raised here; if the process dies, it dies at the end of this context.
        """
        if self.dead:
            raise Died(f"Cannot {operation} {path}: the process has died.")
        self.operations.append((operation, path))
        fault = next((each for each in self._faults if self._strikes(each, operation, path)), None)
        effect = None if fault is None else fault.effect
        if effect is Effect.FAIL:
            raise StorageError(f"Planned fault: this {operation} of {path} fails. Try again.")
        if effect is Effect.FULL:
            raise StorageFullError(f"Planned fault: no space left for this {operation} of {path}. Free some space.")
        with self._losing() if effect is Effect.LOSE else nullcontext():
            yield 1.0 if fault is None or effect is Effect.LOSE else fault.done
        if effect is Effect.DIE:
            self.dead = True
            raise Died(f"Planned fault: the process dies in operation {len(self.operations)}.")

    def _strikes(self, fault: Fault, operation: str, path: str) -> bool:
        """Return whether a fault strikes at the last operation."""
        if not fault.counts(operation, path):
            return False
        count = sum(fault.counts(*each) for each in self.operations)
        return fault.at <= count < fault.at + fault.times

    def _part_of(self, folder: str, share: float) -> tuple[str, ...]:
        files = tuple(files_below(self.inner, folder))
        return files[: math.floor(len(files) * share)]
