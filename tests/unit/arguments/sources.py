"""Objects from dictionaries, files and command lines, each in one call."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from hexloop.app.arguments.documents import Document, from_document, read_json, read_yaml
from hexloop.app.arguments.options import unknown_options
from hexloop.app.arguments.parser import add_arguments, override

T = TypeVar("T")


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    return from_document(cls, Document(values))


def from_json_file(cls: type[T], path: Path) -> T:
    return from_document(cls, read_json(path))


def from_yaml_file(cls: type[T], path: Path) -> T:
    return from_document(cls, read_yaml(path))


def parse(cls: type[Any], options: Sequence[str]) -> Any:
    """Return an object of the dataclass `cls` from options alone."""
    parser = ArgumentParser(allow_abbrev=False)
    add_arguments(parser, cls)
    chosen, others = parser.parse_known_args(options)
    document = Document({})
    document.problems += unknown_options(others, [field.name for field in fields(cls)])
    override(document, cls, chosen)
    return from_document(cls, document)
