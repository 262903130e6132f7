"""`hexloop checkpoints diff`: compare two checkpoints, with at most one tensor of each in memory."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, TypeAlias

from attrs import define, field

from hexloop.app.command_line.checkpoints.differences import (
    MISSING,
    FieldDifference,
    FileDifference,
    TensorDifference,
    compare_tensors,
    fields_of,
)
from hexloop.app.command_line.checkpoints.reading import CheckpointLocation, open_checkpoints
from hexloop.app.command_line.errors import ExitCode
from hexloop.app.wiring.checkpoint_files import CheckpointFiles
from hexloop.domain.checkpoints.manifest import MANIFEST, Manifest
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.checkpoints.survey import STATE
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError

Difference: TypeAlias = TensorDifference | FieldDifference | FileDifference

NEVER_READ = ("trainer_state.json", "training_args.json")
"""Files that are written for people and tools and never read back."""

IDENTITY = {
    MANIFEST: ("run", "session", "ancestors", "parent"),
    STATE: ("run", "parent_checkpoint"),
}
"""Fields that identify a run or its processes."""

CLOCK = ("runtime", "per_second")
MEMORY = ("_mem_cpu_", "_mem_gpu_")
"""Suffixes and substrings of the names of time and memory readings."""


@define
class CheckpointComparison:
    """The comparison of two verified checkpoints. strict: also compare values that only identify a run.

    compared, different: how many tensors, fields and other files were compared, and how many of them differ.
    """

    one: tuple[CheckpointFiles, Manifest]
    other: tuple[CheckpointFiles, Manifest]
    strict: bool = False
    compared: dict[str, int] = field(factory=lambda: dict.fromkeys(("tensors", "fields", "files"), 0), init=False)
    different: dict[str, int] = field(factory=lambda: dict.fromkeys(("tensors", "fields", "files"), 0), init=False)

    def differences(self, only_first: bool = False) -> Iterator[Difference]:
        """Yield each difference: tensors, JSON documents, other files, manifests.

        Raises CheckpointError and StorageError if a file cannot be read.
        """
        for compare in (self._tensors, self._documents, self._other_files, self._manifests):
            for difference in compare():
                yield difference
                if only_first:
                    return

    def _tensors(self) -> Iterator[Difference]:
        one, other = self.one[0], self.other[0]
        groups = one.tensor_files(), other.tensor_files()
        for name in groups[0] | groups[1]:
            mine, theirs = groups[0].get(name, []), groups[1].get(name, [])
            equal = [one.files[path] for path in mine] == [other.files[path] for path in theirs]
            first = {part.name: part for path in mine for part in one.tensors(path)}
            second = first if equal else {part.name: part for path in theirs for part in other.tensors(path)}
            for tensor in first | second:
                self.compared["tensors"] += 1
                if equal:
                    continue
                difference = compare_tensors(name, tensor, first.get(tensor), second.get(tensor))
                if difference is not None:
                    self.different["tensors"] += 1
                    yield difference

    def _documents(self) -> Iterator[Difference]:
        skipped = () if self.strict else NEVER_READ
        one, other = self.one[0], self.other[0]
        for path in dict.fromkeys([*one.document_files(), *other.document_files()]):
            if path in skipped:
                continue
            try:
                values = [files.json(path) if path in files.files else MISSING for files in (one, other)]
            except CheckpointError:  # not written by hexloop
                yield from self._bytes(path)
            else:
                yield from self._fields(path, *values)

    def _other_files(self) -> Iterator[Difference]:
        for path in sorted({*self.one[0].other_files(), *self.other[0].other_files()}):
            yield from self._bytes(path)

    def _manifests(self) -> Iterator[Difference]:
        yield from self._fields(MANIFEST, _manifest_values(self.one[1]), _manifest_values(self.other[1]))

    def _fields(self, path: str, one: Any, other: Any) -> Iterator[Difference]:
        """Compare two documents field by field; a missing document counts as one field."""
        for name, first, second in fields_of(one, other):
            if self.strict or not _identifies_run(path, name):
                self.compared["fields"] += 1
                if not _same(first, second):
                    self.different["fields"] += 1
                    yield FieldDifference(path, name, first, second)

    def _bytes(self, path: str) -> Iterator[Difference]:
        one, other = self.one[0].files.get(path), self.other[0].files.get(path)
        self.compared["files"] += 1
        if one != other:
            self.different["files"] += 1
            yield FileDifference(path, None if one is None else one.size, None if other is None else other.size)


def run(options: Namespace) -> ExitCode:
    """Print the differences. Return FAILED if there are any."""
    problems, contents = [], []
    for location in open_checkpoints([options.one, options.other]):
        try:
            contents.append(_verified(location))
        except (CheckpointError, StorageError) as error:
            problems.append(f"You chose to compare {location.given}, but it cannot be read: {error}")
    if problems:
        raise ConfigurationError(problems)
    comparison = CheckpointComparison(contents[0], contents[1], options.strict)
    try:
        differences = list(comparison.differences(only_first=not options.all))
    except (CheckpointError, StorageError) as error:
        raise ConfigurationError(f"You chose to compare {options.one} and {options.other}, but: {error}") from error
    if options.json:
        print(
            json.dumps(_document(comparison, [each.document() for each in differences], options), indent=2, default=str)
        )
    else:
        print("\n".join(_lines(comparison, [str(each) for each in differences], options)))
    return ExitCode.FAILED if differences else ExitCode.DONE


def _verified(location: CheckpointLocation) -> tuple[CheckpointFiles, Manifest]:
    manifest = verify(location.storage, location.name).manifest
    return CheckpointFiles(location.storage, location.name, manifest.files), manifest


def _manifest_values(manifest: Manifest) -> dict[str, Any]:
    names = ("run", "session", "ancestors", "parent", "step", "world_size", "environment")
    return {name: getattr(manifest, name) for name in names}


def _identifies_run(path: str, name: tuple[str | int, ...]) -> bool:
    if not name:
        return False
    last = str(name[-1])
    reading = last.endswith(CLOCK) or any(part in last for part in MEMORY)
    return name[0] in IDENTITY.get(path, ()) or (path == STATE and reading)


def _same(one: object, other: object) -> bool:
    """Return whether both are equal and of the same type (1 is not True); NaN equals NaN."""
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def _document(
    comparison: CheckpointComparison, differences: list[dict[str, Any]], options: Namespace
) -> dict[str, Any]:
    counts = {"compared": comparison.compared, "different": comparison.different} if options.all else {}
    return {"checkpoints": [options.one, options.other], "differences": differences, **counts}


def _lines(comparison: CheckpointComparison, differences: list[str], options: Namespace) -> list[str]:
    both = f"{options.one} and {options.other}"
    lines = (
        [f"{both} differ{'' if options.all else ', first in'}:", *differences]
        if differences
        else [f"{both} are equal."]
    )
    if options.all:
        for kind, count in comparison.compared.items():
            lines.append(f"{count:,} {kind} compared, {comparison.different[kind] or 'none'} different")
    return lines
