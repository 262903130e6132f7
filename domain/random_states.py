"""Checks of the states of random generators, which may come from a damaged or hostile checkpoint.

numpy does not check the states that it is given: for a position outside its array of 624 words it reads beyond the
array, which corrupts memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

WORDS = 624
"""Words of the Mersenne twister; its position is from 0 to this number."""

LARGEST_WORD = 2**32 - 1


def refuse_invalid_python_state(version: object, words: Sequence[object], gauss: object) -> None:
    """Raise ValueError, with the value that is wrong, for an invalid state of `random.Random`."""
    if version != 3:
        raise ValueError(f"the version of Python's generator is {version!r}, not 3")
    if len(words) != WORDS + 1:
        raise ValueError(f"the state of Python's generator has {len(words)} words, not {WORDS + 1}")
    _refuse_invalid_words("Python", words[:-1])
    _refuse_invalid_position("Python", words[-1])
    if not (gauss is None or (isinstance(gauss, float) and math.isfinite(gauss))):
        raise ValueError(f"the next Gaussian number of Python's generator is {gauss!r}, not a finite number or None")


def refuse_invalid_numpy_state(
    kind: object, words: Sequence[object], position: object, has_gauss: object, gauss: object
) -> None:
    """Raise ValueError, with the value that is wrong, for an invalid state of numpy's legacy generator."""
    if kind != "MT19937":
        raise ValueError(f"the kind of numpy's generator is {kind!r}, not 'MT19937'")
    if len(words) != WORDS:
        raise ValueError(f"the state of numpy's generator has {len(words)} words, not {WORDS}")
    _refuse_invalid_words("numpy", words)
    _refuse_invalid_position("numpy", position)
    if type(has_gauss) is not int or has_gauss not in (0, 1):
        raise ValueError(f"has_gauss of numpy's generator is {has_gauss!r}, not 0 or 1")
    if not isinstance(gauss, float | int) or isinstance(gauss, bool) or not math.isfinite(gauss):
        raise ValueError(f"the next Gaussian number of numpy's generator is {gauss!r}, not a finite number")


def _refuse_invalid_words(owner: str, words: Sequence[object]) -> None:
    for word in words:
        if type(word) is not int or not 0 <= word <= LARGEST_WORD:
            raise ValueError(f"a word of {owner}'s generator is {word!r}, not a whole number below 2**32")
    if not any(words):
        raise ValueError(f"all words of {owner}'s generator are 0, so it would return the same number every time")


def _refuse_invalid_position(owner: str, position: object) -> None:
    if type(position) is not int or not 0 <= position <= WORDS:
        raise ValueError(f"the position of {owner}'s generator is {position!r}, not a whole number from 0 to {WORDS}")
