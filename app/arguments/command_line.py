"""Arguments as options of a command line: `--learning_rate 1e-4`, `--bf16`, `--no_bf16`, `--bf16 false`.

Options stay text until they are put into a document, where they are converted, checked and reported like what came out
of a file. A truth value may follow its option; lists are several words, mappings are JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from hexloop.app.arguments.documents import Document, KeyPath, Place
from hexloop.app.arguments.introspection import annotations_of
from hexloop.app.arguments.names import unknown_argument
from hexloop.app.arguments.old_names import OLD_NAMES
from hexloop.app.arguments.structure import from_document
from hexloop.app.arguments.training import TrainingArguments
from hexloop.app.arguments.translation import is_old
from hexloop.domain.wording import enumeration

T = TypeVar("T")

METAVARS = {int: "N", float: "X", str: "TEXT", dict: "JSON"}


def parse(cls: type[T], options: Sequence[str] | None = None, *, document: Document | None = None) -> T:
    """An instance of the dataclass `cls` out of the command line, on top of a document if there is one.

    Raises `ConfigurationError` with every problem there is, a misspelt option among them.
    """
    usage, description = "%(prog)s [--argument value ...]", (cls.__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(usage=usage, description=description, allow_abbrev=False)
    add_arguments(parser, cls)
    chosen, others = parser.parse_known_args(options)
    document = Document({}) if document is None else document
    document.problems += unknown_options(cls, others)
    override(document, cls, chosen)
    return from_document(cls, document)


def add_arguments(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """Add an option for each field of the dataclass `cls`, under a heading for each class that declares some."""
    for owner, fields in _fields_by_owner(cls):
        group = parser.add_argument_group(_heading(owner))
        for field in fields:
            _add_option(group, field, annotations_of(cls).get(field.name, str))
    _add_old_options(parser, cls)


def _add_old_options(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """Add, unseen, the options that earlier releases had."""
    for name in old_names_of(cls):
        shape: dict[str, Any] = {"help": argparse.SUPPRESS}
        if OLD_NAMES[name].kind is bool:
            shape |= {"nargs": "?", "const": "true"}
        _add_spellings(parser, name, name, shape)


def old_names_of(cls: type[Any]) -> list[str]:
    """The names of earlier releases that `cls` takes for others, if it is a class of training arguments."""
    return [name for name in OLD_NAMES if issubclass(cls, TrainingArguments) and is_old(cls, name)]


def override(document: Document, cls: type[Any], chosen: argparse.Namespace, at: KeyPath = ()) -> None:
    """Put the options that were given into `document`, into the mapping at the end of the path `at`."""
    for name in [*(field.name for field in dataclasses.fields(cls)), *old_names_of(cls)]:
        if hasattr(chosen, name):
            document.put((*at, name), getattr(chosen, name), Place(f"--{name}"))


def unknown_options(cls: type[Any], others: Sequence[str]) -> list[str]:
    """A problem for each of the words that argparse knew nothing to do with."""
    known = [field.name for field in dataclasses.fields(cls)]
    words, problems = list(others), []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            problems.append(f"You gave {word!r}, but no option takes it; remove it.")
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        problems.append(f"--{name}: {unknown_argument(name, value, known)}")
    return problems


def _fields_by_owner(cls: type[Any]) -> Iterator[tuple[type, list[dataclasses.Field[Any]]]]:
    left = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for owner in reversed(cls.__mro__):
        fields = [left.pop(name) for name in inspect.get_annotations(owner) if name in left]
        if fields:
            yield owner, fields


def _heading(owner: type) -> str:
    text = owner.__doc__ or ""
    generated = text.startswith(f"{owner.__name__}(")  # by dataclass, where there is none
    return owner.__name__ if generated or not text else text.split("\n")[0].rstrip(".")


def _add_option(group: argparse._ArgumentGroup, field: dataclasses.Field[Any], kind: Any) -> None:
    """Add `--name`, and unseen its spelling with dashes and, for a truth value, its opposite `--no_name`."""
    members = [member for member in get_args(kind) if member is not NoneType] if _is_union(kind) else [kind]
    origins = [get_origin(member) or member for member in members]
    shape: dict[str, Any] = {"metavar": METAVARS.get(origins[0], "NAME")}
    if list in origins:
        shape = {"metavar": "NAME", "nargs": "*"}
    elif bool in origins:
        shape = {"metavar": "true|false" if origins[0] is bool else "TEXT", "nargs": "?", "const": "true"}
        opposite = {"action": "store_const", "const": "false", "help": argparse.SUPPRESS}
        _add_spellings(group, f"no_{field.name}", field.name, opposite)
    elif "const" in field.metadata:
        shape |= {"nargs": "?", "const": field.metadata["const"]}
    _add_spellings(group, field.name, field.name, {"help": _help(field, origins[0]), **shape})


def _add_spellings(group: argparse._ActionsContainer, name: str, destination: str, shape: dict[str, Any]) -> None:
    group.add_argument(f"--{name}", dest=destination, default=argparse.SUPPRESS, **shape)
    if "_" in name:
        unseen = {**shape, "help": argparse.SUPPRESS}
        group.add_argument(f"--{name.replace('_', '-')}", dest=destination, default=argparse.SUPPRESS, **unseen)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _help(field: dataclasses.Field[Any], kind: Any) -> str:
    text = str(field.metadata.get("help", ""))
    if isinstance(kind, type) and issubclass(kind, Enum) and len(kind) <= 12 and "(" not in text:
        text += f": {enumeration((str(member.value) for member in kind), 'or')}"
    default = field.default.value if isinstance(field.default, Enum) else field.default
    if default not in (None, dataclasses.MISSING):
        text += f" (default: {str(default).lower() if isinstance(default, bool) else default})"
    return text.strip().replace("%", "%%")
