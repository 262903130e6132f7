"""What setters have in common: one call sets several arguments, and the next can follow it."""

from __future__ import annotations

from typing import Any, Self

from hexloop.app.arguments.every import EveryArgument
from hexloop.app.arguments.old_names import OLD_NAMES


class ChainedSetters(EveryArgument):
    """Methods that set several arguments and return `self`. If one is refused, they raise and set none."""

    def _with(self, **values: Any) -> Self:
        """`assign`, in a chain of calls. An argument of earlier releases that is None was not given."""
        self.assign(**{name: value for name, value in values.items() if value is not None or name not in OLD_NAMES})
        return self
