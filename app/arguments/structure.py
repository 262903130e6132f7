"""Any attrs class or dataclass, among them `TrainingArguments`, out of plain values, with every problem at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError, IterableValidationError
from cattrs.errors import AttributeValidationNote

from hexloop.app.arguments.conversion import Hook
from hexloop.app.arguments.conversion import converter as plain_converter
from hexloop.app.arguments.documents import Document, KeyPath
from hexloop.app.arguments.group import Arguments
from hexloop.app.arguments.introspection import annotations_of, declarations
from hexloop.app.arguments.reading import read_json, read_yaml
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import RefusalError, did_you_mean, problem, shown

T = TypeVar("T")


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance of `cls` out of values by name. Raises `ConfigurationError` with every problem there is."""
    return from_document(cls, Document(values))


def from_json_file(cls: type[T], path: str | Path) -> T:
    """An instance of `cls` out of a JSON file. Raises `ConfigurationError` with every problem and its line."""
    return from_document(cls, read_json(path))


def from_yaml_file(cls: type[T], path: str | Path) -> T:
    """An instance of `cls` out of a YAML file. Raises `ConfigurationError` with every problem and its line."""
    return from_document(cls, read_yaml(path))


def from_document(cls: type[T], document: Document) -> T:
    """An instance of `cls` out of a document. Raises `ConfigurationError` with every problem and its place."""
    try:
        made = converter.structure(document.values, cls)
    except Exception as error:
        told = [document.located(paths, sentence) for paths, sentence in _told(error, (), document)]
        raise ConfigurationError([*document.problems, *told]) from error
    if document.problems:
        raise ConfigurationError(document.problems)
    return made


def _told(error: Exception, path: KeyPath, document: Document) -> Iterator[tuple[list[KeyPath], str]]:
    """The problems in `error`, which came of the value at `path`: which values each is about, and the sentence."""
    if isinstance(error, ConfigurationError):
        for each in error.problems:
            yield [(*path, name) for name in getattr(each, "names", ())] or [path], str(each)
    elif isinstance(error, ClassValidationError | IterableValidationError):
        inside, others = error.group_exceptions()
        for inner, note in inside:
            key = note.name if isinstance(note, AttributeValidationNote) else note.index
            yield from _told(inner, (*path, key), document)
        for other in others:
            yield from _told(other, path, document)
    elif isinstance(error, ForbiddenExtraKeysError):
        for name in sorted(error.extra_fields):
            value = document.at((*path, name))
            yield [(*path, name)], problem({name: value}, _unknown_key(name, _field_names(error.cl)))
    elif isinstance(error, KeyError) and path and path[-1] not in (document.at(path[:-1]) or {}):
        yield [path], f"{_dotted(path)} is missing; give it a value."
    elif isinstance(error, RefusalError):
        yield [path], problem({_dotted(path): document.at(path)}, error)
    else:
        yield [path], f"You chose {_dotted(path)}={shown(document.at(path))}, but its class refuses it: {error}"


def _unknown_key(name: str, known: list[str]) -> RefusalError:
    return RefusalError("there is no such key", did_you_mean(name, known, f"choose among {', '.join(known)}"))


def _field_names(cls: type[Any]) -> list[str]:
    return [field.name for field in (attrs.fields(cls) if attrs.has(cls) else dataclasses.fields(cls))]


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path)) or "the document"


def _mapping(value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise RefusalError("it takes a mapping", "give one")
    return value


def class_hook(kind: Any, made_with: Converter) -> Hook:
    """An attrs class or dataclass out of a mapping, or one that is already made."""
    inner: Callable[[Any, Any], Any] = made_with.gen_structure_attrs_fromdict(kind)

    def hook(value: object, _: Any) -> Any:
        return value if isinstance(value, kind) else inner(_mapping(value), kind)

    return hook


def arguments_hook(kind: Any, made_with: Converter) -> Hook:
    """A class of arguments: it converts and checks them itself, but not the plain fields that a subclass adds."""
    plain = {name: annotations_of(kind).get(name, Any) for name in kind.__dataclass_fields__}
    plain = {name: inner for name, inner in plain.items() if name not in declarations(kind)}
    required = {field.name for field in dataclasses.fields(kind) if _is_required(field)}

    def hook(value: object, _: Any) -> Any:
        if isinstance(value, kind):
            return value
        given, errors = {}, []
        for name, inner in _mapping(value).items():
            try:
                given[str(name)] = made_with.structure(inner, plain[name]) if name in plain else inner
            except Exception as error:
                errors.append(_noted(error, kind, name))
        try:
            made = kind(**given)
        except ConfigurationError as error:
            errors.append(error)
        except TypeError:  # for want of a field that is required: it was refused above, or is missing
            errors += [_noted(KeyError(name), kind, name) for name in required - _mapping(value).keys()]
            if not errors:
                raise
        if errors:
            raise ClassValidationError(f"While structuring {kind.__name__}", errors, kind)
        return made

    return hook


def _noted(error: Exception, kind: type, name: str) -> Exception:
    """`error` with cattrs's note that it is about the attribute `name`."""
    error.add_note(AttributeValidationNote(f"{kind.__name__}.{name}", name, Any))
    return error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and (attrs.has(kind) or dataclasses.is_dataclass(kind))


converter = plain_converter.copy()
converter.register_structure_hook_factory(_is_class, class_hook)
converter.register_structure_hook_factory(
    lambda kind: isinstance(kind, type) and issubclass(kind, Arguments), arguments_hook
)
