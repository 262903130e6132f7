"""Closer looks at a run."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.choices import DebugOption
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments


def _options(value: Any) -> Any:
    """Words parted by blanks, or nothing, as a list."""
    if isinstance(value, str) and not value.startswith("["):
        return value.split()
    return [] if value is None else value


@argument_group
class Debugging(Arguments):
    """Debugging."""

    debug: str | list[DebugOption] = argument(
        default="",
        prepare=_options,
        help="closer looks, parted by blanks: underflow_overflow (report the first layer whose values overflow), "
        "tpu_metrics_debug (figures of a TPU)",
    )
