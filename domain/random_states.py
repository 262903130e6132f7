"""Checks of the states of random generators, which may come from a damaged or hostile checkpoint.

numpy does not check the states that it is given: for a position outside its array of 624 words it reads beyond the
array, which corrupts memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

WORDS = 624
"""Words of the Mersenne twister; its position is from 0 to this number."""

LARGEST_WORD = 2**32 - 1

LARGEST_EXPONENT = 1000
"""Bits of a whole number that every float can represent roughly."""


def refuse_invalid_python_state(version: object, words: Sequence[object], gauss: object) -> None:
    """Raise ValueError, with every problem, for an invalid state of `random.Random`."""
    _refuse(python_problems(version, words, gauss))


def refuse_invalid_numpy_state(
    kind: object, words: Sequence[object], position: object, has_gauss: object, gauss: object
) -> None:
    """Raise ValueError, with every problem, for an invalid state of numpy's legacy generator."""
    _refuse(numpy_problems(kind, words, position, has_gauss, gauss))


def python_problems(version: object, words: Sequence[object], gauss: object) -> Iterator[str]:
    """Yield what is wrong with a state of `random.Random`, with the value."""
    if version != 3:
        yield f"the version of Python's generator is {_shown(version)}, not 3"
    if len(words) != WORDS + 1:
        yield f"the state of Python's generator has {len(words)} words, not {WORDS + 1}"
    else:
        yield from _problems_of_words("Python", words[:-1])
        yield from _problems_of_position("Python", words[-1])
    if not (gauss is None or (isinstance(gauss, float) and math.isfinite(gauss))):
        yield f"the next Gaussian number of Python's generator is {_shown(gauss)}, not a finite number or None"


def numpy_problems(
    kind: object, words: Sequence[object], position: object, has_gauss: object, gauss: object
) -> Iterator[str]:
    """Yield what is wrong with a state of numpy's legacy generator, with the value."""
    if kind != "MT19937":
        yield f"the kind of numpy's generator is {_shown(kind)}, not 'MT19937'"
    if len(words) != WORDS:
        yield f"the state of numpy's generator has {len(words)} words, not {WORDS}"
    else:
        yield from _problems_of_words("numpy", words)
    yield from _problems_of_position("numpy", position)
    if type(has_gauss) is not int or has_gauss not in (0, 1):
        yield f"has_gauss of numpy's generator is {_shown(has_gauss)}, not 0 or 1"
    if not isinstance(gauss, float | int) or isinstance(gauss, bool) or not _is_finite(gauss):
        yield f"the next Gaussian number of numpy's generator is {_shown(gauss)}, not a finite number"


def _refuse(problems: Iterator[str]) -> None:
    if found := list(problems):
        raise ValueError("; ".join(found))


def _problems_of_words(owner: str, words: Sequence[object]) -> Iterator[str]:
    wrong = [word for word in words if type(word) is not int or not 0 <= word <= LARGEST_WORD]
    if wrong:
        yield f"a word of {owner}'s generator is {_shown(wrong[0])}, not a whole number below 2**32"
    elif not any(words):
        yield f"all words of {owner}'s generator are 0, so it would return the same number every time"


def _problems_of_position(owner: str, position: object) -> Iterator[str]:
    if type(position) is not int or not 0 <= position <= WORDS:
        yield f"the position of {owner}'s generator is {_shown(position)}, not a whole number from 0 to {WORDS}"


def _is_finite(number: float) -> bool:
    return abs(number) < math.inf and (isinstance(number, float) or number.bit_length() < LARGEST_EXPONENT)


def _shown(value: object) -> str:
    """Return a value for a message, cut if it is long."""
    if isinstance(value, int) and value.bit_length() > LARGEST_EXPONENT:
        return f"a number of {value.bit_length()} bits"
    return f"{value!r:.80}"
