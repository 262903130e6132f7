"""How messages about values are worded, and which words stand for true and false.

`RefusalError` states why a single value is refused, without its name. `problem` turns it into a complete sentence for
`ConfigurationError`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from itertools import islice
from typing import Literal, TypeVar

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.redaction import is_secret_name

Part = TypeVar("Part")

Topic = Literal[
    "out of memory",
    "NaN loss",
    "slow data",
    "hangs and timeouts",
    "resume refused",
    "disk full",
    "damaged checkpoint",
    "error in a step",
    "missing package",
]
"""The sections of docs/troubleshooting.md, by their headings."""

MOST_LISTED = 8
"""Problems, names or values that a message lists."""

_shortened = reprlib.Repr()
_shortened.maxstring = _shortened.maxother = 80

_TRUTH_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1", "t", "y"), True),
    **dict.fromkeys(("false", "no", "off", "0", "f", "n"), False),
}


class RefusalError(ValueError):
    """Raised for a value, or a combination of values, that cannot be used.

    because: why it is refused. remedy: how to fix it. kind: a further class of the error; see `Problem`.
    """

    def __init__(self, because: str, remedy: str, kind: type[Exception] | None = None) -> None:
        self.because = because
        self.remedy = remedy
        self.kind = kind
        super().__init__(f"{because}; {remedy}")


class Problem(str):
    """A sentence for `ConfigurationError`, with the names of the arguments it is about.

    kind: a further class of the error, which code written for other libraries may expect.
    """

    names: tuple[str, ...]
    kind: type[Exception] | None

    def __new__(cls, sentence: str, names: Iterable[str] = (), kind: type[Exception] | None = None) -> Problem:
        """Make a problem from `sentence`, which is about the arguments `names`."""
        problem = super().__new__(cls, sentence)
        problem.names, problem.kind = tuple(names), kind
        return problem


def problem(values: Mapping[str, object], refusal: RefusalError) -> Problem:
    """Return the sentence that refuses `values`, a mapping from argument names to their values."""
    listed = enumeration([f"{name}={shown_as(name, value)}" for name, value in values.items()])
    stop = "" if refusal.remedy.endswith("?") else "."
    return Problem(f"You chose {listed}, but {refusal}{stop}", values, refusal.kind)


def shown(value: object) -> str:
    """Return `value` as messages show it: shortened if long, an enumeration's member as its value."""
    return _shortened.repr(value.value if isinstance(value, Enum) else value)


def shown_as(name: str, value: object) -> str:
    """Return the value of the argument `name` as messages show it; that of a token, of any type, is hidden."""
    return "'<hidden>'" if is_secret_name(name) and value is not None else shown(value)


def enumeration(parts: Iterable[object], conjunction: str = "and") -> str:
    """Return `parts`, of which there is at least one, as an English list: "a", "a and b", "a, b and c"."""
    *most, last = (str(part) for part in parts)
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def listed(parts: Sequence[Part], separator: str = "; ", describe: Callable[[Part], str] = str) -> str:
    """Return the first `MOST_LISTED` of `parts` in one line, and how many more there are.

    describe: returns the text of a part. It is called only for those that are shown, as a file may have any number.
    """
    text = separator.join(map(describe, parts[:MOST_LISTED]))
    more = len(parts) - MOST_LISTED
    return f"{text}{separator}and {more} more" if more > 0 else text


def first_listed(problems: Iterable[str]) -> str:
    """Return the first `MOST_LISTED` problems in one line, and whether there are more; "" if there are none.

    At most one further problem is found, as a file may have any number.
    """
    found = list(islice(problems, MOST_LISTED + 1))
    return "; ".join(found[:MOST_LISTED] + ["and more"] * (len(found) > MOST_LISTED))


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str, *, spell: Callable[[str], str] = str, similarity: float = 0.6
) -> str:
    """Return "did you mean X?" with the name in `known` that is closest to `name`, or `otherwise` if none is close.

    Letter case is ignored, and dashes equal underscores. spell: how the suggestion is written, e.g. `repr`.
    similarity: the lowest ratio of matching characters (`difflib.SequenceMatcher.ratio`) that counts as close.
    """
    by_plain_name: dict[str, str] = {}
    for each in known:
        by_plain_name.setdefault(_plain(each), each)
    matches = get_close_matches(_plain(name), by_plain_name, n=1, cutoff=similarity)
    return f"did you mean {spell(by_plain_name[matches[0]])}?" if matches else otherwise


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def troubleshooting(topic: Topic) -> str:
    """Return how a message refers to the section of the documentation on `topic`: "see docs/troubleshooting.md#..."."""
    return f"see docs/troubleshooting.md#{topic.lower().replace(' ', '-')}"


def split_assignments(text: str) -> list[str]:
    """Return the parts of "name=value, other=(1, 2)", without blanks; commas in brackets do not separate."""
    plain = re.sub(r"\s", "", text)
    return [part for part in re.split(r",(?![^(\[]*[)\]])", plain) if part]


def parse_truth(text: str) -> bool | None:
    """Return the truth value that `text` spells, such as "yes" or "0", in any letter case; None if it is none."""
    return _TRUTH_WORDS.get(text.strip().lower())


def variable_truth(name: str, value: str) -> bool:
    """Return the truth value of the environment variable `name`, False if it is empty.

    Raises ConfigurationError for any other text.
    """
    truth = parse_truth(value) if value.strip() else False
    if truth is None:
        raise ConfigurationError(
            f"You set the environment variable {name}={shown(value)}, but it takes a truth value; set true or false."
        )
    return truth
