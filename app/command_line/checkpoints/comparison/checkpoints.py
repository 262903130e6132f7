"""The differences of two checkpoints, in the order of what matters most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from attrs import define, field

from hexloop.app.command_line.checkpoints.comparison.contents import Contents
from hexloop.app.command_line.checkpoints.comparison.differences import FieldDiffers, FileDiffers, TensorDiffers
from hexloop.app.command_line.checkpoints.comparison.fields import MISSING, fields_of
from hexloop.app.command_line.checkpoints.comparison.tensors import compare_tensors
from hexloop.domain.checkpoints.names import MANIFEST
from hexloop.domain.checkpoints.selection import STATE
from hexloop.domain.errors import CheckpointError

Difference: TypeAlias = TensorDiffers | FieldDiffers | FileDiffers

NEVER_READ = ("trainer_state.json", "training_args.json")
"""Written for people and tools, and never read back."""

OF_A_RUN = {
    MANIFEST: ("run", "session", "ancestors", "parent"),
    STATE: ("run", "parent_checkpoint"),
}
"""Fields that tell one run, or its processes, from another."""

READINGS = ("runtime", "per_second")
MEMORY = ("_mem_cpu_", "_mem_gpu_")
"""Ends and parts of the names of what is read from the clock, and of the memory."""


@define
class Comparison:
    """What two checkpoints differ in. strict: compare what only tells two runs apart, too.

    compared, different: how many tensors, fields and other files were compared, and how many of them differ.
    """

    one: Contents
    other: Contents
    strict: bool = False
    compared: dict[str, int] = field(factory=lambda: dict.fromkeys(("tensors", "fields", "files"), 0), init=False)
    different: dict[str, int] = field(factory=lambda: dict.fromkeys(("tensors", "fields", "files"), 0), init=False)

    def differences(self, only_first: bool = False) -> Iterator[Difference]:
        """Each difference: tensors, JSON documents, other files, manifests. Raises CheckpointError and StorageError."""
        for compare in (self._tensors, self._documents, self._other_files, self._manifests):
            for difference in compare():
                yield difference
                if only_first:
                    return

    def _tensors(self) -> Iterator[Difference]:
        one, other = self.one.groups, self.other.groups
        for name in one | other:
            mine, theirs = one.get(name, []), other.get(name, [])
            equal = [self.one.files[path] for path in mine] == [self.other.files[path] for path in theirs]
            first = {part.name: part for part in self.one.parts(mine)}
            second = first if equal else {part.name: part for part in self.other.parts(theirs)}
            for tensor in first | second:
                self.compared["tensors"] += 1
                if equal:
                    continue
                difference = compare_tensors(name, tensor, first.get(tensor), second.get(tensor))
                if difference is not None:
                    self.different["tensors"] += 1
                    yield difference

    def _documents(self) -> Iterator[Difference]:
        left_out = () if self.strict else NEVER_READ
        for path in dict.fromkeys([*self.one.documents, *self.other.documents]):
            if path in left_out:
                continue
            try:
                values = _value(self.one, path), _value(self.other, path)
            except CheckpointError:  # not a document that hexloop wrote
                yield from self._bytes(path)
            else:
                yield from self._fields(path, *values)

    def _manifests(self) -> Iterator[Difference]:
        yield from self._fields(MANIFEST, self.one.facts, self.other.facts)

    def _fields(self, path: str, one: Any, other: Any) -> Iterator[Difference]:
        """The fields that differ between two documents; a document that is missing is one field."""
        for name, first, second in fields_of(one, other):
            if self.strict or not _tells_runs_apart(path, name):
                self.compared["fields"] += 1
                if not _same(first, second):
                    self.different["fields"] += 1
                    yield FieldDiffers(path, name, first, second)

    def _other_files(self) -> Iterator[Difference]:
        for path in sorted({*self.one.others, *self.other.others}):
            yield from self._bytes(path)

    def _bytes(self, path: str) -> Iterator[Difference]:
        one, other = self.one.files.get(path), self.other.files.get(path)
        self.compared["files"] += 1
        if one != other:
            self.different["files"] += 1
            yield FileDiffers(path, None if one is None else one.size, None if other is None else other.size)


def _value(contents: Contents, path: str) -> Any:
    return contents.document(path) if path in contents.documents else MISSING


def _tells_runs_apart(path: str, name: tuple[str | int, ...]) -> bool:
    if not name:
        return False
    last = str(name[-1])
    reading = last.endswith(READINGS) or any(part in last for part in MEMORY)
    return name[0] in OF_A_RUN.get(path, ()) or (path == STATE and reading)


def _same(one: object, other: object) -> bool:
    """Equal, of one kind (1 is not true), and what is not a number equals itself."""
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
