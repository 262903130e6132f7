"""The call that makes arguments: which names it takes, and how it tells of everything that is wrong at once."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Any

from hexloop.app.arguments.introspection import takes
from hexloop.app.arguments.names import unknown_argument
from hexloop.app.arguments.translation import translated, warn_of_kept
from hexloop.domain.errors import ConfigurationError


class TakingOldNames(ABCMeta):
    """The class of classes of arguments: a call may name arguments as earlier releases did.

    It stands in front of any constructor, whether attrs, dataclasses or a user wrote it. It derives from ABCMeta, so
    that a subclass may also be an abstract class.
    """

    def __call__(cls, *values: Any, **named: Any) -> Any:
        """Make one. Names that are no argument are refused together with whatever is wrong with the others."""
        kind: Any = cls
        warn_of_kept(kind, named)
        named, refused = translated(kind, named, {"output_dir": values[0]} if values else {})
        unknown = {name: value for name, value in named.items() if not takes(kind, name)}
        if not (unknown or refused):
            return super().__call__(*values, **named)
        known = {name: value for name, value in named.items() if name not in unknown}
        told = [unknown_argument(name, value, kind.__dataclass_fields__) for name, value in unknown.items()]
        raise ConfigurationError(
            [*told, *refused, *problems_of(lambda: super(TakingOldNames, cls).__call__(*values, **known))]
        )


def problems_of(make: Callable[[], object]) -> tuple[str, ...]:
    """The problems that keep `make` from making what it makes; none are known where an argument is missing."""
    try:
        make()
    except ConfigurationError as error:
        return error.problems
    except TypeError:
        return ()
    return ()
