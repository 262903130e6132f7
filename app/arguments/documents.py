"""Documents: values from JSON and YAML files with the line of each, and objects of any class built from them.

Objects of attrs classes and dataclasses, among them `TrainingArguments`, are built with every problem reported at once.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import attrs
import yaml
from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError, IterableValidationError
from cattrs.errors import AttributeValidationNote

from hexloop.app.arguments.base import Arguments
from hexloop.app.arguments.conversion import Hook
from hexloop.app.arguments.conversion import converter as value_converter
from hexloop.app.arguments.declaration import annotations_of, declarations
from hexloop.app.arguments.yaml_text import BoundedLoader, CoreSchemaLoader, InvalidYAMLError, compose, construct
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.regular_files import read_file
from hexloop.domain.wording import Problem, RefusalError, did_you_mean, enumeration, problem, shown

T = TypeVar("T")

KeyPath: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead from the top of a document to a value in it."""


@attrs.frozen
class SourceLocation:
    """Where a value comes from: a file and a line in it, or an option of the command line."""

    source: str
    line: int | None = None


@attrs.define
class Document:
    """Values as they were read, the location of each, and the problems found while reading."""

    values: Any
    locations: dict[KeyPath, SourceLocation] = attrs.Factory(dict)
    problems: list[str] = attrs.Factory(list)

    def at(self, path: KeyPath) -> Any:
        """Return the value at the end of `path`, or None if there is none."""
        value = self.values
        for key in path:
            inside = key in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(key, int)
            if not inside:
                return None
            value = value[key]
        return value

    def put(self, path: KeyPath, value: object, location: SourceLocation) -> None:
        """Set the value at the end of `path`, creating missing mappings on the way.

        If something other than a mapping is in the way, it stays, and the class that is built from it refuses it.
        """
        *way, last = path
        inner = self.values
        for key in way:
            if isinstance(inner, dict) and inner.get(key) is None:
                inner[key] = {}
            inner = inner[key] if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner[last] = value
            self.locations = {known: old for known, old in self.locations.items() if known[: len(path)] != path}
            self.locations[path] = location

    def located(self, paths: Iterable[KeyPath], sentence: str) -> str:
        """Return `sentence` about the values at `paths`, prefixed with their locations."""
        lines: dict[str, list[int]] = {}
        for location in filter(None, map(self._location, paths)):
            known = lines.setdefault(location.source, [])
            if location.line is not None and location.line not in known:
                known.append(location.line)
        where = [
            f"{source}, line{'s' * (len(known) > 1)} {enumeration(sorted(known))}" if known else source
            for source, known in lines.items()
        ]
        return f"{enumeration(where)}: {sentence}" if where else sentence

    def _location(self, path: KeyPath) -> SourceLocation | None:
        starts = (path[:end] for end in range(len(path), -1, -1))
        return next((self.locations[start] for start in starts if start in self.locations), None)


def from_document(cls: type[T], document: Document) -> T:
    """Return an object of `cls` built from a document. Raises `ConfigurationError` with every problem's location."""
    try:
        made = converter.structure(document.values, cls)
    except Exception as error:
        found = [document.located(paths, sentence) for paths, sentence in _problems_in(error, (), document)]
        raise ConfigurationError([*document.problems, *found]) from error
    if document.problems:
        raise ConfigurationError(document.problems)
    return made


def _problems_in(error: Exception, path: KeyPath, document: Document) -> Iterator[tuple[list[KeyPath], str]]:
    """Yield the problems in `error`, raised for the value at `path`: the paths each is about, and the sentence."""
    if isinstance(error, ConfigurationError):
        for each in error.problems:
            yield [(*path, name) for name in getattr(each, "names", ())] or [path], str(each)
    elif isinstance(error, ClassValidationError | IterableValidationError):
        inside, others = error.group_exceptions()
        for inner, note in inside:
            key = note.name if isinstance(note, AttributeValidationNote) else note.index
            yield from _problems_in(inner, (*path, key), document)
        for other in others:
            yield from _problems_in(other, path, document)
    elif isinstance(error, ForbiddenExtraKeysError):
        for name in sorted(error.extra_fields):
            known = [field.name for field in (attrs.fields if attrs.has(error.cl) else dataclasses.fields)(error.cl)]
            remedy = did_you_mean(name, known, f"choose among {', '.join(known)}")
            value = document.at((*path, name))
            yield [(*path, name)], problem({name: value}, RefusalError("there is no such key", remedy))
    elif isinstance(error, KeyError) and path and path[-1] not in (document.at(path[:-1]) or {}):
        yield [path], f"{_dotted(path)} is missing; give it a value."
    elif isinstance(error, RefusalError):
        yield [path], problem({_dotted(path): document.at(path)}, error)
    else:
        yield [path], f"You chose {_dotted(path)}={shown(document.at(path))}, but its class refuses it: {error}"


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path)) or "the document"


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise RefusalError("it takes a mapping", "give one")
    return value


def _class_hook(kind: Any, converter: Converter) -> Hook:
    """Convert a mapping to an attrs class or dataclass."""
    inner: Callable[[Any, Any], Any] = converter.gen_structure_attrs_fromdict(kind)

    def hook(value: object, _: Any) -> Any:
        return value if isinstance(value, kind) else inner(_mapping(value), kind)

    return hook


def _arguments_hook(kind: Any, converter: Converter) -> Hook:
    """Convert a mapping to a class of arguments, which converts its arguments itself, but not plain fields."""
    kinds = annotations_of(kind)
    plain = {name: kinds.get(name, Any) for name in kind.__dataclass_fields__ if name not in declarations(kind)}
    required = {field.name for field in dataclasses.fields(kind) if _is_required(field)}

    def hook(value: object, _: Any) -> Any:
        if isinstance(value, kind):
            return value
        given, errors = {}, []
        for name, inner in _mapping(value).items():
            try:
                given[str(name)] = converter.structure(inner, plain[name]) if name in plain else inner
            except Exception as error:
                errors.append(_noted(error, kind, name))
        try:
            made = kind(**given)
        except ConfigurationError as error:
            errors.append(error)
        except TypeError:  # a required field is missing, or was refused above
            errors += [_noted(KeyError(name), kind, name) for name in required - _mapping(value).keys()]
            if not errors:
                raise
        if errors:
            raise ClassValidationError(f"While structuring {kind.__name__}", errors, kind)
        return made

    return hook


def _noted(error: Exception, kind: type, name: str) -> Exception:
    """Add cattrs's note that `error` is about the attribute `name`."""
    error.add_note(AttributeValidationNote(f"{kind.__name__}.{name}", name, Any))
    return error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and (attrs.has(kind) or dataclasses.is_dataclass(kind))


converter = value_converter.copy()
converter.register_structure_hook_factory(_is_class, _class_hook)
converter.register_structure_hook_factory(
    lambda kind: isinstance(kind, type) and issubclass(kind, Arguments), _arguments_hook
)


def read_yaml(path: str | Path, older_schema: bool = False) -> Document:
    """Read a YAML file. Raises `ConfigurationError` if it cannot be read or is not valid YAML.

    older_schema: values are those of YAML 1.1, in which `no` is false, instead of those of the core schema.
    """
    return _parse_yaml(_text_of(path), str(path), BoundedLoader if older_schema else CoreSchemaLoader)


def read_json(path: str | Path) -> Document:
    """Read a JSON file. Raises `ConfigurationError` if it cannot be read or is not valid JSON."""
    text = _text_of(path)
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{path}, line {error.lineno}: Invalid JSON ({error.msg}); fix it.") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigurationError(f"{path}: Invalid JSON ({reason}); fix it.") from None
    # Except for tabs, JSON is YAML: the YAML reader finds the lines and duplicate keys.
    document = _parse_yaml(text.replace("\t", " "), str(path))
    document.values = values
    return document


def _text_of(path: str | Path) -> str:
    try:
        return read_file(path, "recipe_bytes").decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        kind = type(error) if isinstance(error, OSError) else None
        sentence = f"The file {str(path)!r} cannot be read ({reason}); name a readable file."
        raise ConfigurationError(Problem(sentence, (), kind)) from error


def _parse_yaml(text: str, source: str, loader: type[BoundedLoader] = CoreSchemaLoader) -> Document:
    """Parse YAML text, which `source` names in messages. Raises `ConfigurationError` if it is invalid."""
    try:
        reader, node = compose(text, loader)
        if node is None:
            return Document({})
        lines, problems = _lines_of(node, source)
        values = construct(reader, node)
    except InvalidYAMLError as error:
        raise ConfigurationError(f"{source}{error.where}: Invalid YAML ({error.reason}); fix it.") from None
    return Document(values, {path: SourceLocation(source, line) for path, line in lines.items()}, problems)


def _lines_of(top: yaml.Node, source: str) -> tuple[dict[KeyPath, int], list[str]]:
    """Return the line of each key and item below `top`, and a problem for each duplicate key."""
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
    if any(node is outer for outer in above):  # an alias of a collection that contains it
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
