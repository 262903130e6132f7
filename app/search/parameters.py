"""The parameters of a trial in its copy of the training arguments, with names of entries such as `optim_args.beta`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.base import is_legacy, unknown_argument
from hexloop.app.notices import TRAINER, Notices
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import finite_json
from hexloop.domain.wording import Problem, RefusalError, problem, shown

Args = TypeVar("Args", bound=TrainingArguments)


def with_hyperparameters(args: Args, hyperparameters: Mapping[str, Any]) -> Args:
    """Return a copy of training arguments with the values of a trial, such as `BestRun.hyperparameters`.

    A name with dots sets an entry of a dictionary: `lr_scheduler_kwargs.num_cycles`.

    Args:
        args: the arguments that are copied.
        hyperparameters: values by the name of an argument.

    Raises:
        ConfigurationError: with every problem: unknown names, values of the wrong type, combinations that cannot work.
    """
    changed = copy.copy(args)
    set_hyperparameters(changed, hyperparameters)
    return changed


def set_hyperparameters(
    args: TrainingArguments, hyperparameters: Mapping[str, Any], notices: Notices | None = None
) -> None:
    """Set the values of a trial in place, without changing the dictionaries that the arguments hold.

    notices: during a takeover, an unknown name is a warning, and a value is cast to the type of the one before, as in
    transformers. Raises ConfigurationError with every problem.
    """
    lenient = notices is not None and notices.as_transformers
    values, problems = dict[str, Any](), list[str]()
    for name, value in hyperparameters.items():
        top, _, rest = name.partition(".")
        if not _has(args, top):
            if lenient:
                message = "The search sets %s, but there is no argument of that name; it is ignored."
                logging.getLogger(TRAINER).warning(message, name)
            else:
                problems.append(unknown_argument(name, value, type(args).__dataclass_fields__))
            continue
        try:
            before = values.get(top, getattr(args, top, None))
            values[top] = _with_entry(before, rest.split("."), value) if rest else _cast(before, value, lenient)
        except RefusalError as refusal:
            problems.append(problem({name: value}, refusal))
    declared = {name: value for name, value in values.items() if name in args._declared or is_legacy(type(args), name)}
    try:
        args.assign(**declared)
    except ConfigurationError as error:
        problems += error.problems
    if problems:
        raise ConfigurationError([_of_space(each) for each in problems])
    for name in values.keys() - declared.keys():  # an attribute that a subclass sets by itself
        setattr(args, name, values[name])
    args.check()


def _of_space(sentence: str) -> Problem:
    text = sentence.removeprefix("You chose ")
    kind = getattr(sentence, "kind", None)
    return Problem(f"The search space chose {text}" if text != sentence else sentence, (), kind)


def _has(args: TrainingArguments, name: str) -> bool:
    return name in args._declared or is_legacy(type(args), name) or name in vars(args)


def _cast(before: Any, value: Any, lenient: bool) -> Any:
    """Return a value; if `lenient`, as the type of the one before, as transformers casts it."""
    if not lenient or before is None:
        return value
    try:
        return type(before)(value)
    except (TypeError, ValueError) as error:
        raise RefusalError(f"it cannot be cast to {type(before).__name__} ({error})", "return one") from error


def _with_entry(before: Any, names: list[str], value: Any) -> Any:
    """Return a copy of a dictionary, or of an object of options, with one entry set."""
    first, *rest = names
    if before is None or isinstance(before, Mapping):
        entries = dict(before or {})
        entries[first] = _with_entry(entries.get(first), rest, value) if rest else value
        return entries
    if isinstance(before, str | int | float | list | Enum) or not hasattr(before, first):
        raise RefusalError(f"{shown(before)} has no entry {first!r}", "name an entry of a dictionary")
    changed = copy.copy(before)
    setattr(changed, first, _with_entry(getattr(before, first), rest, value) if rest else value)
    return changed


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a search space returned as JSON can hold it, without changing a value.

    NumPy's numbers become Python's, members of enumerations their values, and tuples lists. Raises ConfigurationError,
    with every problem, for anything else, and for numbers that are not finite.
    """
    found, problems = dict[str, Any](), list[str]()
    for name, value in parameters.items():
        try:
            found[name] = _plain(value)
        except RefusalError as refusal:
            problems.append(_of_space(problem({name: value}, refusal)))
    if problems:
        raise ConfigurationError(problems)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or type(value) in (bool, int, float, str):
        if finite_json(value) != value:
            raise RefusalError("it is not finite, and the record of a search cannot hold it", "return a finite number")
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    number = value.item() if hasattr(value, "item") and getattr(value, "shape", ()) == () else value
    if type(number) in (bool, int, float, str):
        return _plain(number)
    because = f"a value of the type {type(value).__name__} cannot be recorded"
    raise RefusalError(because, "return numbers, texts, truth values, None, and lists and dictionaries of these")
