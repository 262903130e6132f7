"""What is wrong with an argument, as a value: a refusal says why and what to do, a problem is the whole sentence."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from enum import Enum

_cut = reprlib.Repr()
_cut.maxstring = _cut.maxother = 80


class RefusalError(ValueError):
    """A value, or a combination of values, that cannot be used: `because` says why, `remedy` what to do."""

    def __init__(self, because: str, remedy: str) -> None:
        self.because = because
        self.remedy = remedy
        super().__init__(f"{because}; {remedy}")


class Problem(str):
    """A sentence for `ConfigurationError` that knows which arguments it is about, so that their lines can be named."""

    names: tuple[str, ...]

    def __new__(cls, sentence: str, names: Iterable[str] = ()) -> Problem:
        """`sentence` about the arguments `names`."""
        problem = super().__new__(cls, sentence)
        problem.names = tuple(names)
        return problem


def problem(chosen: Mapping[str, object], refusal: RefusalError) -> Problem:
    """The sentence that refuses `chosen`, a mapping from the names of arguments to their values."""
    choices = enumeration([f"{name}={shown_as(name, value)}" for name, value in chosen.items()])
    stop = "" if refusal.remedy.endswith("?") else "."
    return Problem(f"You chose {choices}, but {refusal}{stop}", chosen)


def shown(value: object) -> str:
    """`value` as a message shows it: cut if long, an enumeration's member as the word that selects it."""
    return _cut.repr(value.value if isinstance(value, Enum) else value)


def shown_as(name: str, value: object) -> str:
    """`value` of the argument `name` as a message shows it: the text of a token is nobody's business."""
    return "'<hidden>'" if name.endswith("_token") and isinstance(value, str) else shown(value)


def enumeration(parts: Iterable[object], joint: str = "and") -> str:
    """`parts` as an English list: "a", "a and b", "a, b and c"."""
    *most, last = (str(part) for part in parts)
    return f"{', '.join(most)} {joint} {last}" if most else last
