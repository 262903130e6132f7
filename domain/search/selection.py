"""Which trials of a search are the best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hexloop.domain.search.records import MAXIMIZE, RecordedTrial
from hexloop.ports.search import TrialState


def ranked(trials: Iterable[RecordedTrial], direction: str) -> list[RecordedTrial]:
    """Return the complete trials of a search with one objective, best first; equal ones by number."""
    sign = -1.0 if direction == MAXIMIZE else 1.0
    complete = [each for each in trials if each.state is TrialState.COMPLETE and each.values]
    return sorted(complete, key=lambda each: (sign * (each.values or (0.0,))[0], each.number))


def best_trials(trials: Iterable[RecordedTrial], directions: Sequence[str]) -> list[RecordedTrial]:
    """Return the best trial, or with several objectives those that no other one beats, by number; none if none ended.

    One trial beats another if it is at least as good in every objective, and better in one (Pareto).
    """
    if len(directions) == 1:
        return ranked(trials, directions[0])[:1]
    complete = sorted(ranked(trials, directions[0]), key=lambda each: each.number)
    signed = {each.number: _losses(each, directions) for each in complete}
    return [each for each in complete if not any(_beats(other, signed[each.number]) for other in signed.values())]


def kept_trials(trials: Sequence[RecordedTrial], directions: Sequence[str], count: int) -> set[int]:
    """Return the numbers of the `count` best trials; with several objectives, of all that no other one beats."""
    if len(directions) > 1:
        return {each.number for each in best_trials(trials, directions)}
    return {each.number for each in ranked(trials, directions[0])[:count]}


def _losses(trial: RecordedTrial, directions: Sequence[str]) -> tuple[float, ...]:
    values = trial.values or ()
    return tuple(
        -value if direction == MAXIMIZE else value for value, direction in zip(values, directions, strict=True)
    )


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(first <= second for first, second in zip(one, other, strict=True))
