"""The arguments of a run as its journal records them, and which of them were changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from hexloop.app.arguments.base import Arguments
from hexloop.app.arguments.declaration import default_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.redaction import redacted

NOT_RECORDED = frozenset({"output_dir", "run_name", "resume_from_checkpoint", "journal"})
"""Arguments that do not influence the results of a run."""


def settings_of(args: Any) -> dict[str, Any]:
    """Return the arguments that influence results, as a journal has them; a token that is not set is None."""
    found: dict[str, Any] = redacted(_unredacted(args))
    return found


def _unredacted(args: Any) -> dict[str, Any]:
    settings = {name: value for name, value in args.to_sanitized_dict().items() if name not in NOT_RECORDED}
    unset = {name: "None" for name in settings if name.endswith("_token") and getattr(args, name, "") is None}
    return settings | unset


def changed_defaults(args: Any, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the defaults of the arguments that differ from them; None if they cannot be known.

    What `to_sanitized_dict` adds to the arguments, such as `train_batch_size`, is not one. Neither is what the other
    arguments imply, such as `do_eval` with an `eval_strategy`.
    """
    try:
        defaults = _unredacted(untouched(type(args), vars(args)))
    except (ConfigurationError, TypeError):  # such as a default that is computed from the object
        return None
    names = type(args).__dataclass_fields__.keys() & settings.keys()
    different = {name: value for name, value in defaults.items() if name in names and settings[name] != value}
    return {
        name: value
        for name, value in redacted(different).items()
        if settings[name] != value and not _is_implied(args, name, settings[name])
    }


def _is_implied(args: Any, name: str, value: object) -> bool:
    """Return whether an argument would have its value, as recorded, with its default and all others as they are."""
    made = object.__new__(type(args))
    try:
        vars(made).update(vars(args) | {name: default_of(type(args), name)})
        Arguments.check(made)
        return bool(_unredacted(made)[name] == value)
    except (ConfigurationError, TypeError):  # the default does not go with the others
        return False


def untouched(cls: type[Arguments], given: Mapping[str, Any]) -> Any:
    """Return an object of `cls` whose arguments have their defaults, and on this machine what is derived from them.

    given: the values of arguments without a default. Raises ConfigurationError if a rule refuses the defaults.
    """
    made = object.__new__(cls)
    for name, field in cls.__dataclass_fields__.items():
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        vars(made)[name] = default_of(cls, name) if has_default else given.get(name)
    Arguments.check(made)
    return made
