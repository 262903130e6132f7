"""Saved states of the random generators of Python and numpy are checked before they are loaded."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hexloop.domain.random_states import WORDS, refuse_invalid_numpy_state, refuse_invalid_python_state

PYTHON: dict[str, Any] = {"version": 3, "words": [1] * WORDS + [WORDS], "gauss": None}
NUMPY: dict[str, Any] = {
    "kind": "MT19937",
    "words": [2**32 - 1] * WORDS,
    "position": 0,
    "has_gauss": 1,
    "gauss": 0.5,
}


def test_valid_states_are_accepted() -> None:
    """The state of a generator passes, at both ends of its ranges."""
    refuse_invalid_python_state(*random.Random(3).getstate())
    refuse_invalid_python_state(**PYTHON | {"gauss": 0.5})
    refuse_invalid_numpy_state(**NUMPY)
    refuse_invalid_numpy_state(**NUMPY | {"has_gauss": 0, "position": WORDS})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version"),
        ({"words": [0] * WORDS}, "624 words, not 625"),
        ({"words": [-1] + [1] * WORDS}, "a word of Python"),
        ({"words": [None] * (WORDS + 1)}, "a word of Python's generator is None.*; the position"),
        ({"words": [0] * (WORDS + 1)}, "are 0"),
        ({"words": [1] * WORDS + [WORDS + 1]}, "position of Python"),
        ({"gauss": "x"}, "Gaussian"),
        (
            {"version": [9] * 99, "words": [], "gauss": 10**400},
            r"version .{95,110}, not 3; .*0 words.*of 1329 bits, not",
        ),
    ],
)
def test_an_invalid_state_of_python_is_refused(changes: dict[str, Any], message: str) -> None:
    """The error names what is wrong."""
    with pytest.raises(ValueError, match=message):
        refuse_invalid_python_state(**PYTHON | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "PCG64"}, "kind"),
        ({"words": [0]}, "1 words, not 624"),
        ({"words": [True] * WORDS}, "a word of numpy"),
        ({"position": 10**9}, "position of numpy"),
        ({"has_gauss": 2}, "has_gauss"),
        ({"gauss": True}, "Gaussian"),
        ({"gauss": 10**400}, "Gaussian number of numpy's generator is a number of 1329 bits"),
        (
            {"kind": 5, "position": -1, "has_gauss": None},
            "kind .* is 5.*; the position .* is -1.*; has_gauss .* is None",
        ),
    ],
)
def test_an_invalid_state_of_numpy_is_refused(changes: dict[str, Any], message: str) -> None:
    """The error names what is wrong."""
    with pytest.raises(ValueError, match=message):
        refuse_invalid_numpy_state(**NUMPY | changes)
