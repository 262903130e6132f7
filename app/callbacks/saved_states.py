"""Checks of the states of callbacks in a checkpoint, against those of the callbacks that are to load them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hexloop.app.callbacks.trainer_state import is_exportable
from hexloop.domain.ranges import MOST

OWN_PACKAGES = ("hexloop.", "transformers.")
"""The packages whose callbacks have the same entries in each state, with values of the same kinds."""

LARGEST = 1e300

LONGEST = 80
"""Characters of a wrong value that a message shows."""


def wrong_states(callbacks: Iterable[object], exported: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with states of callbacks: entries that the callback's own state cannot have.

    A state of a callback of hexloop has the entries that it has here. That of a user's callback may have others, of any
    kind, but none that replaces a method.
    """
    for callback in filter(is_exportable, callbacks):
        name, own = type(callback).__name__, callback.state()  # type: ignore[attr-defined]
        saved = exported.get(name, [])
        if not isinstance(own, dict):
            continue
        for state in saved if isinstance(saved, list) else [saved]:
            for key in ("args", "attributes"):
                held = state.get(key) if isinstance(state, dict) else None
                if isinstance(own.get(key), dict):
                    if isinstance(held, dict):
                        yield from _wrong_values(type(callback), own[key], held, f"callbacks.{name}.{key}")
                    else:
                        yield f"callbacks.{name} in its run state has no dictionary {key!r}."


def _wrong_values(kind: type[Any], own: Mapping[str, Any], saved: Mapping[Any, Any], path: str) -> Iterator[str]:
    strict = kind.__module__.startswith(OWN_PACKAGES)
    for name, value in saved.items():
        shown, present = f"{value!a:.{LONGEST}}", getattr(kind, str(name), None)
        if strict and name not in own:
            yield f"{path} in its run state has the entry {name!a:.{LONGEST}}, which a {kind.__name__} does not have."
        elif strict and (expected := _expected(own[name], value)):
            yield f"{path}.{name} in its run state is {shown}, which is not {expected}."
        elif name not in own and (callable(present) or isinstance(present, property)):
            yield f"{path}.{name} in its run state is {shown}, which would replace a method of {kind.__name__}."


def _expected(own: Any, saved: Any) -> str | None:
    """Return what a saved value should be; None if it is of the kind of the callback's own."""
    if isinstance(own, bool):
        return None if isinstance(saved, bool) else "true or false"
    is_number = isinstance(saved, int | float) and not isinstance(saved, bool)
    if isinstance(own, int):
        return None if is_number and isinstance(saved, int) and abs(saved) <= MOST else "a whole number"
    if own is None or isinstance(own, float):
        return None if saved is None or (is_number and abs(saved) <= LARGEST) else "a number"
    return None if isinstance(saved, type(own)) else f"of the type {type(own).__name__}"
