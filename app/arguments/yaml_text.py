"""YAML text from outside, read within limits: its nesting, and its values with aliases expanded.

An alias stands for a whole collection, so a few lines of aliases of aliases expand without bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import yaml

from hexloop.domain.json_documents import keyed
from hexloop.domain.limits import limits
from hexloop.domain.redaction import printable


class InvalidYAMLError(ValueError):
    """Text that is not YAML, or beyond the limits. where: ", line N", or "" if that is unknown."""

    def __init__(self, reason: str, mark: Any) -> None:
        self.reason = reason
        self.where = "" if mark is None else f", line {mark.line + 1}"
        super().__init__(reason)


def compose(text: str, loader: type[BoundedLoader]) -> tuple[BoundedLoader, yaml.Node | None]:
    """Return a loader of the text and its node graph, None if it is empty. Raises InvalidYAMLError."""
    with _converting_errors():
        reader = loader(text)
        return reader, reader.get_single_node()


def construct(reader: BoundedLoader, node: yaml.Node) -> Any:
    """Return the values of a node graph, which merges change. Raises InvalidYAMLError."""
    with _converting_errors():
        return reader.construct_document(node)


@contextmanager
def _converting_errors() -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        raise InvalidYAMLError(printable(str(error.problem or error.context)), error.problem_mark) from None
    except yaml.YAMLError as error:
        raise InvalidYAMLError(printable(str(error).partition("\n")[0]), None) from None


class BoundedLoader(yaml.SafeLoader):
    """PyYAML's safe loader, of YAML 1.1, within the limits `recipe_depth` and `recipe_values`.

    Raises yaml.MarkedYAMLError for text beyond them, and for every value that its type does not allow.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._sizes: dict[int, int] = {}
        self._inside: list[int] = [0]

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node, counting it with what it contains; an alias counts like what it stands for."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        is_alias = self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > limits().recipe_depth:
            self._refuse(
                f"it is nested in more than {limits().recipe_depth} levels; recipe_depth raises this limit", mark
            )
        self._inside.append(1)
        node = super().compose_node(parent, index)
        self._depth -= 1
        size = self._inside.pop()
        if is_alias:
            if id(node) not in self._sizes:
                self._refuse("an alias stands for a collection that contains it", mark)
            size = self._sizes[id(node)]
        self._sizes[id(node)] = size
        self._inside[-1] += size
        if self._inside[-1] > (most := limits().recipe_values):
            self._refuse(
                f"with its aliases expanded it has more than {most} values; recipe_values raises this limit", mark
            )
        return node

    def _refuse(self, reason: str, mark: Any) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, reason, mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raises ConstructorError for one whose keys have equal hashes; see `keyed`."""
        try:
            keyed([(self.construct_object(key, deep=True), None) for key, _ in node.value if key.tag != MERGE])
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None
        except TypeError:
            pass  # a list as a key, which is refused with its place below
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Construct the value of a node. Raises ConstructorError, with its place, for one that its type refuses."""
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
            value = str(node.value)[:40] if isinstance(node, yaml.ScalarNode) else "a collection"
            raise yaml.constructor.ConstructorError(
                None, None, f"{value!r} is not a value of {node.tag.rpartition(':')[2]}: {error}", node.start_mark
            ) from error


MERGE = "tag:yaml.org,2002:merge"
"""The tag of the key that merges another mapping."""


class CoreSchemaLoader(BoundedLoader):
    """The loader with the core schema of YAML 1.2 (section 10.3) instead of the types of YAML 1.1.

    `no` is text, `1e-4` a number, `010` ten.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the class attribute that PyYAML reads


_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.")),
    ("merge", r"<<", ["<"]),
)


def _yaml_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0 if text[:2] in ("0o", "0x") else 10)


def _yaml_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)).lower().replace(".inf", "inf").replace(".nan", "nan"))


for _name, _pattern, _first in _CORE_SCHEMA:
    CoreSchemaLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(f"^(?:{_pattern})$"), _first)
CoreSchemaLoader.add_constructor("tag:yaml.org,2002:int", _yaml_int)
CoreSchemaLoader.add_constructor("tag:yaml.org,2002:float", _yaml_float)
