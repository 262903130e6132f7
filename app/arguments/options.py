"""From the fields of a class, whether attrs or dataclasses made it, to argparse options that set them.

Options come in two kinds. Those of `HfArgumentParser` convert their values and know the defaults. Those of the command
line keep values as text, which is put into a document, and converted and checked together with what a file holds.
"""

from __future__ import annotations

import dataclasses
import re
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import attrs

from hexloop.app.arguments.base import Arguments, unknown_name
from hexloop.app.arguments.choices import further_choices
from hexloop.app.arguments.conversion import decoded
from hexloop.app.arguments.declaration import annotations_of, declarations
from hexloop.app.arguments.legacy import LEGACY_ARGUMENTS
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem, enumeration, parse_truth

MISSING: Any = dataclasses.MISSING

MANY_CHOICES = 12
"""An option's help lists no more choices than this."""

_METADATA = ("help", "metavar", "choices", "nargs", "const")
"""The entries of a field's metadata that are passed to `add_argument`."""

_METAVARS = {int: "N", float: "X", str: "TEXT", dict: "JSON"}

_SEQUENCES = (list, tuple, set, frozenset, Sequence)


@attrs.frozen
class Field:
    """A parameter of a class's constructor.

    default: MISSING if there is none, or only a factory. factory: makes the default; None if there is no factory.
    computed: whether the default depends on other values. checked: whether the class itself converts and checks the
    value, with better messages than its type alone allows.
    """

    name: str
    kind: Any
    metadata: Mapping[Any, Any]
    default: Any = MISSING
    factory: Callable[[], Any] | None = None
    computed: bool = False
    checked: bool = False

    @property
    def required(self) -> bool:
        """Whether a call without this parameter fails."""
        return self.default is MISSING and self.factory is None and not self.computed


def fields_of(cls: type[Any]) -> list[Field]:
    """Return the parameters of `cls(...)` in the order of their declaration.

    Raises ConfigurationError if `cls` is neither an attrs class nor a dataclass, or a type cannot be resolved.
    """
    declared: tuple[Any, ...]
    if dataclasses.is_dataclass(cls):
        declared = dataclasses.fields(cls)
    elif isinstance(cls, type) and attrs.has(cls):
        declared = attrs.fields(cls)
    else:
        problem = f"{cls!r} cannot be parsed: it has no fields; make it an attrs class or a dataclass."
        raise ConfigurationError(Problem(problem, kind=TypeError))
    kinds = annotations_of(cls, {field.name for field in declared})
    checked = declarations(cls) if issubclass(cls, Arguments) else {}
    return [field_of(each, kinds.get(each.name, each.type), each.name in checked) for each in declared if each.init]


def field_of(declared: dataclasses.Field[Any] | attrs.Attribute[Any], kind: Any, checked: bool = False) -> Field:
    """Return what a field declares. kind: its type. checked: see `Field`."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    default: Any = declared.default
    if isinstance(declared, dataclasses.Field):
        factory: Any = None if declared.default_factory is MISSING else declared.default_factory
        return Field(declared.name, kind, declared.metadata, default, factory, checked=checked)
    known = partial(Field, declared.alias or declared.name, kind, declared.metadata)
    if default is attrs.NOTHING:
        return known()
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # declared as a function
        return known(default=default)
    return known(computed=True) if default.takes_self else known(factory=default.factory)


@attrs.frozen
class OptionType:
    """How the text after an option is converted.

    convert: makes a value of one text; raises ArgumentTypeError, ValueError or TypeError if it cannot. choices: all
    values, if they are few. is_truth: whether the option without a value means True. collect: makes a value of several
    texts; None if the option takes one.
    """

    convert: Callable[[str], Any] = str
    choices: tuple[Any, ...] | None = None
    is_truth: bool = False
    collect: Callable[[list[str]], Any] | None = None


_TEXT = OptionType()


def option_type_of(kind: Any) -> OptionType:
    """Return how texts are converted to the type `kind`."""
    origin = get_origin(kind) or kind
    if origin in (Union, UnionType):
        return _of_union(get_args(kind))
    if origin is Literal:
        return _of_choices(get_args(kind))
    if kind is bool:
        return OptionType(_to_truth, is_truth=True)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _of_choices(tuple(member.value for member in origin))
    if origin in _SEQUENCES:
        return _of_sequence(list if origin is Sequence else origin, get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return OptionType(_to_mapping)
    return OptionType(kind) if isinstance(kind, type) and kind not in (Any, object) else _TEXT


def _to_truth(text: str) -> bool:
    truth = parse_truth(text)
    if truth is None:
        raise ArgumentTypeError(f"{text!r} is not a truth value; write true or false")
    return truth


def _to_mapping(text: str) -> dict[str, Any]:
    value = decoded(text)
    if not isinstance(value, dict):
        raise ArgumentTypeError(f"""{text!r} is not a mapping; write its JSON text such as '{{"name": 1}}'""")
    return value


def _of_choices(choices: tuple[Any, ...]) -> OptionType:
    by_text = {str(choice): choice for choice in choices}
    return OptionType(lambda text: by_text.get(text, text), choices)


def _of_sequence(container: Callable[[Any], Any], items: tuple[Any, ...]) -> OptionType:
    """Take several texts, or one that is JSON text of a list, whose items are taken as they are."""
    item = option_type_of(items[0]) if items else _TEXT

    def collect(texts: list[str]) -> Any:
        listed = decoded(texts[0]) if len(texts) == 1 and item.convert is not str else None
        return container(listed if isinstance(listed, list) else [_item(item, text) for text in texts])

    return OptionType(collect=collect)


def _item(kind: OptionType, text: str) -> Any:
    value = kind.convert(text)
    if kind.choices is not None and value not in kind.choices:
        raise ArgumentTypeError(f"{text!r} is not one of {', '.join(map(str, kind.choices))}")
    return value


def _of_union(members: tuple[Any, ...]) -> OptionType:
    """Take the first type that fits; `str` is the last resort, and beside None alone everything is text."""
    others = [option_type_of(member) for member in members if member not in (NoneType, str)]
    if not others:
        return _TEXT
    if str not in members:
        return others[0] if len(others) == 1 else _first_that_fits(others)
    if collect := next((other.collect for other in others if other.collect), None):
        keeps_one = NoneType in members  # a single text stays as it is, as for the type `str | None`
        return OptionType(collect=lambda texts: texts[0] if keeps_one and len(texts) == 1 else collect(texts))
    if others[0].choices and NoneType not in members:
        return others[0]
    if NoneType not in members or any(other.is_truth for other in others):
        return _first_that_fits([*(other for other in others if other.choices is None), _TEXT])
    return _TEXT


def _first_that_fits(kinds: list[OptionType]) -> OptionType:
    def convert(text: str) -> Any:
        for kind in kinds[:-1]:
            try:
                return kind.convert(text)
            except (ArgumentTypeError, ValueError, TypeError):
                continue
        return kinds[-1].convert(text)

    return OptionType(convert, is_truth=any(kind.is_truth for kind in kinds))


class CollectAction(Action):
    """Makes one value of the texts after an option."""

    def __init__(self, *args: Any, collect: Callable[[list[str]], Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.collect = collect

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:
        """Set the value. Raises ArgumentError if a text cannot be converted to the type of the items."""
        try:
            setattr(namespace, self.dest, self.collect(values))
        except (ArgumentTypeError, ValueError, TypeError) as error:
            raise ArgumentError(self, str(error)) from error


Parser = ArgumentParser | _ArgumentGroup


def spellings(name: str) -> list[str]:
    """Return the option of a name with underscores, and with dashes if that differs."""
    return list(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))


def add_option(parser: Parser, field: Field) -> None:
    """Add `--name`, its spelling with dashes, its aliases, and its opposite `--no_name` if it is on by default."""
    kind = option_type_of(field.kind)
    given = {key: value for key, value in field.metadata.items() if key in _METADATA}
    if field.checked:
        given["help"] = str(given.get("help", "")).replace("%", "%%")
        if kind.choices is not None:  # the class checks choices itself, to report all problems at once
            if len(kind.choices) <= MANY_CHOICES:
                given = {"metavar": f"{{{','.join(map(str, kind.choices))}}}", **given}
            kind = _TEXT
    aliases = field.metadata.get("aliases", [])
    names = [*spellings(field.name), *([aliases] if isinstance(aliases, str) else aliases)]
    parser.add_argument(*names, **{**given, **_typed_shape(field, kind)})
    if kind.is_truth and field.default is True:
        add_opposite(parser, field.name, default=True, help=given.get("help"))


def _typed_shape(field: Field, kind: OptionType) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": kind.convert}
    if kind.collect is not None:
        shape = {"action": CollectAction, "collect": kind.collect, "nargs": "+"}
    elif kind.is_truth:
        shape |= {"nargs": "?", "const": True}
    if kind.choices is not None:
        shape["choices"] = kind.choices
    if field.computed:
        return {**shape, "default": SUPPRESS}
    if not field.required:
        return {**shape, "default": field.default if field.factory is None else field.factory()}
    if kind.is_truth:
        return {**shape, "default": False if field.kind is bool else None}
    return {**shape, "required": True}


def add_text_option(parser: Parser, field: Field) -> None:
    """Add `--name`, whose value stays text; hidden, its spelling with dashes and for a truth value `--no_name`."""
    kind, main = option_type_of(field.kind), _main_type(field.kind)
    shape: dict[str, Any] = {"metavar": _METAVARS.get(main, "NAME")}
    if kind.collect is not None:
        shape = {"metavar": "NAME", "nargs": "*"}
    elif kind.is_truth:
        shape = {"metavar": "true|false" if main is bool else "TEXT", "nargs": "?", "const": "true"}
        add_opposite(parser, field.name)
    elif "const" in field.metadata:
        shape |= {"nargs": "?", "const": field.metadata["const"]}
    name, *dashed = spellings(field.name)
    parser.add_argument(name, dest=field.name, default=SUPPRESS, help=_text_help(field, main), **shape)
    for spelling in dashed:
        parser.add_argument(spelling, dest=field.name, default=SUPPRESS, help=SUPPRESS, **shape)


def _main_type(kind: Any) -> Any:
    """Return the first member of a union that is not None, without its parameters; of other types themselves."""
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next(get_origin(member) or member for member in members if member is not NoneType)


def known_values(kind: Any) -> list[str]:
    """Return the texts that an option of the type `kind` can have, as shells complete them; [] if there is no list."""
    main = _main_type(kind)
    if main is bool:
        return ["true", "false"]
    if not (isinstance(main, type) and issubclass(main, Enum)):
        return []
    return [*(str(member.value) for member in main), *further_choices(main)]


def _text_help(field: Field, kind: Any) -> str:
    text = str(field.metadata.get("help", ""))
    if isinstance(kind, type) and issubclass(kind, Enum) and len(kind) <= MANY_CHOICES and "(" not in text:
        text += f": {enumeration((str(member.value) for member in kind), 'or')}"
    default = field.default.value if isinstance(field.default, Enum) else field.default
    if default not in (None, MISSING):
        text += f" (default: {str(default).lower() if isinstance(default, bool) else default})"
    return text.strip().replace("%", "%%")


def add_opposite(parser: Parser, name: str, default: Any = SUPPRESS, help: str | None = SUPPRESS) -> None:
    """Add `--no_name`, which turns the field off."""
    names = spellings(f"no_{name}")
    parser.add_argument(*names, dest=name, action="store_const", const=False, default=default, help=help)


def add_legacy_option(parser: ArgumentParser, name: str) -> None:
    """Add a hidden option for a name of earlier releases."""
    value = LEGACY_ARGUMENTS[name].bare
    bare: dict[str, Any] = {} if value is None else {"nargs": "?", "const": value}
    parser.add_argument(*spellings(name), dest=name, default=SUPPRESS, help=SUPPRESS, **bare)


def unknown_options(words: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a problem for each option in `words`, with its value if one follows, and for each other word.

    words: those that argparse did not recognize. known: the names of the options, without dashes in front.
    """
    known = list(known)
    problems, left = [], list(words)
    while left:
        word = left.pop(0)
        if not _is_option(word):
            problems.append(f"You gave {word!r}, but no option takes it; remove it.")
            continue
        option, _, value = word.partition("=")
        if not value and left and not _is_option(left[0]):
            value = left.pop(0)
        refusal = unknown_name(option.lstrip("-"), known, "option", "--{}".format)
        stop = "" if refusal.remedy.endswith("?") else "."
        problems.append(f"You gave {f'{option} {value}'.strip()}, but {refusal}{stop}")
    return problems


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.match(r"-\.?\d", word)  # negative numbers are values
