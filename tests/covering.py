"""Covering arrays of strength two: few combinations of factors that contain every pair of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Choice = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(choice: Mapping[str, Any]) -> set[Pair]:
    """Return every pair of values of different factors, with the factors in alphabetical order."""
    return set(combinations(sorted(choice.items()), 2))


def all_pairs(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Choice], bool]) -> set[Pair]:
    """Return every pair of values that is allowed in at least one combination."""
    return {
        ((one, a), (other, b))
        for one, other in combinations(sorted(factors), 2)
        for a, b in product(factors[one], factors[other])
        if allowed({one: a, other: b})
    }


def covering_array(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Choice], bool]) -> list[Choice]:
    """Return combinations that contain every allowed pair, deterministically.

    allowed: whether a partial combination can be completed. Greedy: each combination starts with a missing pair, and
    adds for each factor the value with the most missing pairs.
    """
    missing = all_pairs(factors, allowed)
    chosen: list[Choice] = []
    while missing:
        choice: Choice = dict(min(missing, key=repr))
        for factor in sorted(factors.keys() - choice.keys(), key=lambda name: (-len(factors[name]), name)):
            possible = [value for value in factors[factor] if allowed({**choice, factor: value})]
            # Ties rotate, so that values are used evenly.
            turn = len(chosen) % len(possible)
            turned = [*possible[turn:], *possible[:turn]]
            choice[factor] = max(turned, key=lambda value: _gain(choice, factor, value, missing))
        missing -= pairs_of(choice)
        chosen.append(choice)
    return chosen


def _gain(choice: Choice, factor: str, value: Any, missing: set[Pair]) -> int:
    new = [tuple(sorted([(factor, value), other])) for other in choice.items()]
    return sum(pair in missing for pair in new)
