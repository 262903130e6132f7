"""Few combinations of factors among which every pair of values comes: a covering array of strength two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Choice = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(choice: Mapping[str, Any]) -> set[Pair]:
    """Every pair of the values of different factors, the factors in alphabetical order."""
    return set(combinations(sorted(choice.items()), 2))


def all_pairs(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Choice], bool]) -> set[Pair]:
    """Every pair of values that is allowed with at least some others."""
    return {
        ((one, a), (other, b))
        for one, other in combinations(sorted(factors), 2)
        for a, b in product(factors[one], factors[other])
        if allowed({one: a, other: b})
    }


def covering_array(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Choice], bool]) -> list[Choice]:
    """Choices that have every allowed pair; the same ones each time.

    allowed: whether a choice, of which factors may still be missing, can be completed. Greedy: each choice begins with
    a pair that is still missing, and takes factor by factor the value that has the most missing pairs with the others.
    """
    missing = all_pairs(factors, allowed)
    chosen: list[Choice] = []
    while missing:
        choice: Choice = dict(min(missing, key=repr))
        for factor in sorted(factors.keys() - choice.keys(), key=lambda name: -len(factors[name])):
            possible = [value for value in factors[factor] if allowed({**choice, factor: value})]
            # Of equals the one that comes next in turn, so that values spread evenly.
            turn = len(chosen) % len(possible)
            turned = [*possible[turn:], *possible[:turn]]
            choice[factor] = max(turned, key=lambda value: _gain(choice, factor, value, missing))
        missing -= pairs_of(choice)
        chosen.append(choice)
    return chosen


def _gain(choice: Choice, factor: str, value: Any, missing: set[Pair]) -> int:
    new = [tuple(sorted([(factor, value), other])) for other in choice.items()]
    return sum(pair in missing for pair in new)
