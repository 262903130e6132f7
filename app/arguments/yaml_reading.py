"""YAML with lines. Plain words are read as YAML 1.2 reads them: `no` is a word, `1e-4` a number, `010` ten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from hexloop.app.arguments.documents import Document, KeyPath, Place
from hexloop.domain.errors import ConfigurationError


class CoreSchemaLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the core schema of YAML 1.2 (section 10.3) instead of the types of YAML 1.1."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the class attribute that PyYAML reads


CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
)


def _whole(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


def _fraction(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))


for _name, _pattern, _first in CORE_SCHEMA:
    CoreSchemaLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first)
CoreSchemaLoader.add_constructor("tag:yaml.org,2002:int", _whole)
CoreSchemaLoader.add_constructor("tag:yaml.org,2002:float", _fraction)


def compose(text: str, source: str) -> Document:
    """The document in `text`, which `source` names in messages.

    A key that occurs twice in one mapping is one of the document's problems. Raises `ConfigurationError` where `text`
    is no YAML.
    """
    try:
        return _composed(text, source)
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        reason = error.problem if isinstance(error, yaml.MarkedYAMLError) else error
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError([f"{source}{line}: This is no YAML ({reason}); mend it."]) from None


def _composed(text: str, source: str) -> Document:
    loader = CoreSchemaLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document({})
        lines, problems = _lines(node, source)
        values = loader.construct_document(node)
    finally:
        loader.dispose()
    return Document(values, {path: Place(source, line) for path, line in lines.items()}, problems)


def _lines(top: yaml.Node, source: str) -> tuple[dict[KeyPath, int], list[str]]:
    """The line of each key and item below `top`, and the keys that occur twice."""
    lines: dict[KeyPath, int] = {}
    problems = []
    for path, line in _walk(top, (), ()):
        if path in lines:
            problems.append(
                f"{source}, lines {lines[path]} and {line}: You gave {path[-1]!r} twice, "
                "but only one of its values can count; remove the other."
            )
        lines[path] = line
    return lines, problems


def _walk(node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...]) -> Iterator[tuple[KeyPath, int]]:
    if any(node is outer for outer in above):  # an alias of a collection that it is part of
        return
    if isinstance(node, yaml.MappingNode):
        children: list[tuple[str | int, yaml.Node, yaml.Node]] = [
            (str(key.value), key, value) for key, value in node.value
        ]
    elif isinstance(node, yaml.SequenceNode):
        children = [(index, item, item) for index, item in enumerate(node.value)]
    else:
        return
    for name, marked, child in children:
        yield (*path, name), marked.start_mark.line + 1
        yield from _walk(child, (*path, name), (*above, node))
