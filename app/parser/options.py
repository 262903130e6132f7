"""From a field to the options of a command line that set it."""

from __future__ import annotations

from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace, _ArgumentGroup
from collections.abc import Callable
from typing import Any

from hexloop.app.arguments.old_names import OLD_NAMES
from hexloop.app.parser.fields import MISSING, Field
from hexloop.app.parser.reading import TEXT, Reading, reading_of

PASSED_ON = ("help", "metavar", "choices", "nargs", "const")
"""What a field's metadata may say to `add_argument`; other entries are somebody else's."""

MANY = 12
"""More choices than this are not listed in an option's help."""


class Collect(Action):
    """Makes one value of the words after an option."""

    def __init__(self, *args: Any, collect: Callable[[list[str]], Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.collect = collect

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:
        """Set the value. Raises ArgumentError where a word is none of the items' type."""
        try:
            setattr(namespace, self.dest, self.collect(values))
        except (ArgumentTypeError, ValueError, TypeError) as error:
            raise ArgumentError(self, str(error)) from error


def add_field(group: ArgumentParser | _ArgumentGroup, field: Field) -> None:
    """Add `--name`, its spelling with dashes, its aliases, and where it is on by default its opposite, `--no_name`."""
    reading = reading_of(field.kind)
    told = {key: value for key, value in field.metadata.items() if key in PASSED_ON}
    if field.checked:
        told["help"] = str(told.get("help", "")).replace("%", "%%")
        reading, told = _left_to_the_class(reading, told)
    aliases = field.metadata.get("aliases", [])
    names = [*spellings(f"--{field.name}"), *([aliases] if isinstance(aliases, str) else aliases)]
    group.add_argument(*names, **{**told, **_shape(field, reading)})
    if reading.is_truth and field.default is True:
        add_opposite(group, field, help=told.get("help"))


def add_opposite(group: ArgumentParser | _ArgumentGroup, field: Field, help: str | None = SUPPRESS) -> None:
    """Add `--no_name`, which switches the field off."""
    default = SUPPRESS if field.default is MISSING else field.default
    names = spellings(f"--no_{field.name}")
    group.add_argument(*names, dest=field.name, action="store_const", const=False, default=default, help=help)


def add_old_name(parser: ArgumentParser, name: str) -> None:
    """Add an option, unseen, for a name of older releases."""
    alone: dict[str, Any] = {"nargs": "?", "const": True} if reading_of(OLD_NAMES[name].kind).is_truth else {}
    parser.add_argument(*spellings(f"--{name}"), dest=name, default=SUPPRESS, help=SUPPRESS, **alone)


def spellings(option: str) -> list[str]:
    """An option with underscores, and with dashes where that is another one."""
    dashed = f"--{option[2:].replace('_', '-')}"
    return [option] if dashed == option else [option, dashed]


def is_truth(field: Field) -> bool:
    """Whether a field's option may stand alone, for True."""
    return reading_of(field.kind).is_truth


def _left_to_the_class(reading: Reading, told: dict[str, Any]) -> tuple[Reading, dict[str, Any]]:
    """Without the check of choices that the class makes by itself, telling all that is wrong at once."""
    if reading.choices is None:
        return reading, told
    few = {"metavar": f"{{{','.join(map(str, reading.choices))}}}"} if len(reading.choices) <= MANY else {}
    return TEXT, {**few, **told}


def _shape(field: Field, reading: Reading) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": reading.word}
    if reading.collect is not None:
        shape = {"action": Collect, "collect": reading.collect, "nargs": "+"}
    elif reading.is_truth:
        shape |= {"nargs": "?", "const": True}
    if reading.choices is not None:
        shape["choices"] = reading.choices
    if field.computed:
        return {**shape, "default": SUPPRESS}
    if not field.required:
        return {**shape, "default": field.default if field.factory is None else field.factory()}
    if reading.is_truth:
        return {**shape, "default": False if field.kind is bool else None}
    return {**shape, "required": True}
