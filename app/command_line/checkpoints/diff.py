"""`hexloop checkpoints diff`: compare two checkpoints, with at most one tensor of each in memory."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from attrs import asdict, frozen

from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.checkpoints import open_checkpoints
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.checkpoints.manifest import MANIFEST, Manifest
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.domain.evaluation import is_reading
from hexloop.domain.json_documents import finite_json
from hexloop.domain.run_folder import RUN_STATE, TRAINER_STATE
from hexloop.domain.state import READINGS
from hexloop.ports.state import Part
from hexloop.ports.storage import TRAINING_ARGUMENTS

if TYPE_CHECKING:
    from hexloop.app.assembly.torch.weights import Largest

NEVER_READ = (TRAINER_STATE, TRAINING_ARGUMENTS)
"""Files that are written for people and tools and never read back."""

IDENTITY = {MANIFEST: ("run", "session", "ancestors", "parent"), RUN_STATE: ("run", "parent_checkpoint", *READINGS)}
"""Fields that identify a run or its processes, or that are readings of the clock."""

MAX_VALUE_LENGTH = 60
"""How many characters of a value are printed."""

LONG_LIST = 16
"""Lists of at least this many numbers are compared as one field."""

FieldName: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value in a JSON document."""

MISSING = object()
"""A placeholder for a missing field."""


@frozen
class TensorDifference:
    """A tensor of `group` that differs, or that only one checkpoint has.

    kinds: dtype and shape in each; None if missing. elements: how many differ, and how many there are; None if they
    were not compared. largest: None if no element can be subtracted from the other, or if only the bits of equal values
    differ.
    """

    group: str
    name: str
    kinds: tuple[str | None, str | None]
    elements: tuple[int, int] | None = None
    largest: Largest | None = None

    def __str__(self) -> str:
        what, (one, other) = f"  {self.group}: tensor {self.name}", self.kinds
        if one is None or other is None:
            return f"{what} is only in the {'second' if one is None else 'first'}, {one or other}"
        if self.elements is None:
            return f"{what} is {one} in the first and {other} in the second"
        count = f"{what}, {one}: {self.elements[0]:,} of {self.elements[1]:,} elements differ"
        if self.largest is None:
            return f"{count}, only in their bits"
        return (
            f"{count}, by at most {self.largest.difference:.6g}, at {list(self.largest.index)} "
            f"({' and '.join(_numbers(*self.largest.values))})"
        )

    def document(self) -> dict[str, Any]:
        """Return the difference in JSON types."""
        return {"kind": "tensor", **finite_json(asdict(self))}


@frozen
class FieldDifference:
    """A field of a JSON document that differs; MISSING if only one document has it."""

    file: str
    name: FieldName
    one: Any
    other: Any

    def __str__(self) -> str:
        what = f"  {self.file}: {format_name(self.name)}" if self.name else f"  {self.file}"
        if MISSING in (self.one, self.other):
            where, value = ("second", self.other) if self.one is MISSING else ("first", self.one)
            return f"{what} is only in the {where}" + (f", {_shown(value)}" if self.name else "")
        one, other = self.one, self.other
        if isinstance(one, list) and isinstance(other, list):
            unequal = [index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]]
            first = unequal[0]
            return (
                f"{what}: {len(unequal):,} of {len(one):,} elements differ, first [{first}], {_shown(one[first])} and "
                f"{_shown(other[first])}"
            )
        return f"{what} is {_shown(one)} and {_shown(other)}{_distance(one, other)}"

    def document(self) -> dict[str, Any]:
        """Return the difference in JSON types, without a missing value."""
        values = {name: value for name, value in (("one", self.one), ("other", self.other)) if value is not MISSING}
        return {"kind": "field", "file": self.file, "name": format_name(self.name), **finite_json(values)}


def _distance(one: Any, other: Any) -> str:
    if not all(type(value) in (int, float) for value in (one, other)):
        return ""
    try:
        return f", {abs(one - other):.6g} apart"
    except OverflowError:  # a whole number beyond all floats
        return ""


@frozen
class FileDifference:
    """Any other file that differs, with its sizes; None if missing."""

    file: str
    one: int | None
    other: int | None

    def __str__(self) -> str:
        if self.one is None or self.other is None:
            return f"  {self.file} is only in the {'second' if self.one is None else 'first'}"
        return f"  {self.file} has different bytes: {self.one:,} in the first, {self.other:,} in the second"

    def document(self) -> dict[str, Any]:
        """Return the difference in JSON types."""
        return {"kind": "file", **asdict(self)}


Difference: TypeAlias = TensorDifference | FieldDifference | FileDifference


Contents: TypeAlias = tuple[CheckpointFiles, Manifest]
Compared: TypeAlias = tuple[str, Difference | None]
"""The kind of what was compared ("tensors", "fields" or "files"), and its difference, if there is one."""


def run(options: Namespace) -> ExitCode:
    """Print the differences. Return FAILED if there are any."""
    problems, contents = [], []
    for location in open_checkpoints([options.one, options.other]):
        try:
            checkpoint = verify(location.storage, location.name)
            contents.append((CheckpointFiles.of(checkpoint), checkpoint.manifest))
        except (CheckpointError, StorageError) as error:
            problems.append(f"You chose to compare {location.given}, but it cannot be read: {error}")
    if problems:
        raise ConfigurationError(problems)
    compared, different = (dict.fromkeys(("tensors", "fields", "files"), 0) for _ in range(2))
    differences = []
    try:
        for kind, difference in compare(contents[0], contents[1], options.strict):
            compared[kind] += 1
            if difference is not None:
                different[kind] += 1
                differences.append(difference)
                if not options.all:
                    break
    except (CheckpointError, StorageError) as error:
        raise ConfigurationError(f"You chose to compare {options.one} and {options.other}, but: {error}") from error
    if options.json:
        counts = {"compared": compared, "different": different} if options.all else {}
        documents = [each.document() for each in differences]
        document = {"checkpoints": [options.one, options.other], "differences": documents, **counts}
        print_document(document)
        return ExitCode.FAILED if differences else ExitCode.DONE
    both = f"{options.one} and {options.other}"
    if differences:
        print_lines(f"{both} differ{'' if options.all else ', first in'}:", *map(str, differences))
    else:
        print_lines(f"{both} are equal.")
    if options.all:
        for kind, count in compared.items():
            print_lines(f"{count:,} {kind} compared, {different[kind] or 'none'} different")
    return ExitCode.FAILED if differences else ExitCode.DONE


def compare(one: Contents, other: Contents, strict: bool) -> Iterator[Compared]:
    """Compare two verified checkpoints: tensors, JSON documents, other files, manifests.

    strict: also compare values that only identify a run. Raises CheckpointError and StorageError if a file cannot be
    read.
    """
    files = one[0], other[0]
    yield from _tensors(*files)
    documents = files[0].documents(), files[1].documents()
    for path in documents[0] | documents[1]:
        if strict or path not in NEVER_READ:
            yield from _fields(path, documents[0].get(path, MISSING), documents[1].get(path, MISSING), strict)
    for path in sorted({*files[0].other_files(), *files[1].other_files()}):
        yield _bytes(path, *files)
    yield from _fields(MANIFEST, _manifest_values(one[1]), _manifest_values(other[1]), strict)


def _tensors(one: CheckpointFiles, other: CheckpointFiles) -> Iterator[Compared]:
    groups = one.tensor_files(), other.tensor_files()
    for name in groups[0] | groups[1]:
        mine, theirs = groups[0].get(name, []), groups[1].get(name, [])
        equal = [one.files[path] for path in mine] == [other.files[path] for path in theirs]
        first = {part.name: part for path in mine for part in one.tensors(path)}
        second = first if equal else {part.name: part for path in theirs for part in other.tensors(path)}
        for tensor in first | second:
            yield "tensors", None if equal else compare_tensors(name, tensor, first.get(tensor), second.get(tensor))


def _fields(path: str, one: Any, other: Any, strict: bool) -> Iterator[Compared]:
    """Compare two documents field by field; a missing document counts as one field."""
    for name, first, second in fields_of(one, other):
        if strict or not _identifies_run(path, name):
            yield "fields", None if _same(first, second) else FieldDifference(path, name, first, second)


def _bytes(path: str, one: CheckpointFiles, other: CheckpointFiles) -> Compared:
    first, second = one.files.get(path), other.files.get(path)
    sizes = (None if each is None else each.size for each in (first, second))
    return "files", None if first == second else FileDifference(path, *sizes)


def _manifest_values(manifest: Manifest) -> dict[str, Any]:
    names = ("run", "session", "ancestors", "parent", "step", "world_size", "environment")
    return {name: getattr(manifest, name) for name in names}


def _identifies_run(path: str, name: FieldName) -> bool:
    if not name:
        return False
    return name[0] in IDENTITY.get(path, ()) or (path == RUN_STATE and is_reading(str(name[-1])))


def _same(one: object, other: object) -> bool:
    """Return whether both are equal and of the same type (1 is not True); NaN equals NaN."""
    return type(one) is type(other) and bool(one == other or (one != one and other != other))


def fields_of(one: Any, other: Any, name: FieldName = ()) -> Iterator[tuple[FieldName, Any, Any]]:
    """Yield every field that either JSON value has, with both values.

    A value that only one has is a single field, whatever it contains, and so are two long lists of numbers of equal
    length, such as the states of a random generator.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one | other:
            yield from fields_of(one.get(key, MISSING), other.get(key, MISSING), (*name, str(key)))
    elif isinstance(one, list) and isinstance(other, list) and not _are_long_lists(one, other):
        for index in range(max(len(one), len(other))):
            first, second = (value[index] if index < len(value) else MISSING for value in (one, other))
            yield from fields_of(first, second, (*name, index))
    else:
        yield name, one, other


def format_name(name: FieldName) -> str:
    """Return the name in Python syntax, such as history[3].loss."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in name).removeprefix(".")


def compare_tensors(group: str, name: str, one: Part | None, other: Part | None) -> TensorDifference | None:
    """Return the difference between two tensors, or None if they are bitwise equal. None stands for a missing one."""
    kinds = _kind(one), _kind(other)
    if one is None or other is None or kinds[0] != kinds[1]:
        return TensorDifference(group, name, kinds)
    first, second = one.read().cast("B"), other.read().cast("B")
    if first == second:
        return None
    from hexloop.app.assembly.torch.weights import largest_difference

    count, largest = largest_difference(first, second, one.dtype, one.shape)
    return TensorDifference(group, name, kinds, (count, math.prod(one.shape)), largest)


def _kind(part: Part | None) -> str | None:
    return None if part is None else f"{part.dtype} {list(part.shape)}"


def _are_long_lists(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) >= LONG_LIST and all(type(value) in (int, float) for value in [*one, *other])


def _numbers(*values: Any) -> tuple[str, ...]:
    """Format values with as few digits as distinguish them and every float32 from the next."""
    short = tuple(f"{value:.9g}" if isinstance(value, float) else repr(value) for value in values)
    return short if len(set(short)) == len(values) else tuple(map(repr, values))


def _shown(value: Any) -> str:
    text = json.dumps(finite_json(value))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[:MAX_VALUE_LENGTH]}..."
