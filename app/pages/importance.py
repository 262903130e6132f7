"""How much each parameter of a search matters for its objective, computed without any package for searches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hexloop.app.pages.history import number_of

FEWEST_TRIALS = 8
"""How many trials with an objective are needed."""

MOST_GROUPS = 8
"""Into how many groups of similar values the trials are divided at most."""


def importances(parameters: Mapping[str, Sequence[object]], objective: Sequence[float | None]) -> dict[str, float]:
    """Return the share of the objective that each parameter explains on its own, from 0 to 1, the largest first.

    The trials are divided into groups of equal or similar values of the parameter. The result is the correlation ratio
    of the objective's ranks, adjusted for the number of groups as the coefficient of determination is (Ezekiel, 1930):
    1 - (1 - between / total) * (n - 1) / (n - groups), and 0 where that is negative. Ranks make a diverged trial count
    no more than the worst of the others. What parameters do together only is not found.

    parameters: the values of each parameter, None for a trial without it. objective: as many values; trials without a
    finite one are left out. Returns nothing if fewer than `FEWEST_TRIALS` remain, or if all have the same objective.
    """
    finite = [value is not None and math.isfinite(value) for value in objective]
    ranks = _ranks([value for value in objective if value is not None and math.isfinite(value)])
    total = float(np.square(ranks - ranks.mean()).sum()) if len(ranks) else 0.0
    if len(ranks) < FEWEST_TRIALS or total == 0:
        return {}
    found = {
        name: _explained(_groups([value for value, kept in zip(values, finite, strict=True) if kept]), ranks, total)
        for name, values in parameters.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _explained(groups: npt.NDArray[np.int64], ranks: npt.NDArray[np.float64], total: float) -> float:
    count, number = len(ranks), int(groups.max()) + 1
    if number < 2 or number >= count:
        return 0.0
    sizes = np.bincount(groups, minlength=number)
    means = np.bincount(groups, ranks, minlength=number) / np.maximum(sizes, 1)
    between = float((sizes * np.square(means - ranks.mean())).sum())
    return max(1 - (1 - between / total) * (count - 1) / (count - number), 0.0)


def _groups(values: Sequence[object]) -> npt.NDArray[np.int64]:
    """Return the group of each value: numbers in order, as equal in size as equal values allow; others by value."""
    most = max(2, min(MOST_GROUPS, math.isqrt(len(values))))
    numbers = [number for each in values if (number := _number(each)) is not None]
    if numbers and len(set(numbers)) > most:
        ranks = iter(_ranks(numbers))
        groups = [
            int((next(ranks) - 0.5) * most / len(numbers)) if _number(each) is not None else most + (each is not None)
            for each in values
        ]
    else:
        known: dict[str, int] = {}
        groups = [known.setdefault(repr(each), len(known)) for each in values]
    return np.unique(np.array(groups), return_inverse=True)[1].reshape(-1)


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else, truth values among them."""
    number = number_of(value)
    return number if number is not None and math.isfinite(number) else None


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the rank of each value from 1 on; equal values get the mean of theirs."""
    _, inverse, counts = np.unique(np.array(values, dtype=float), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: npt.NDArray[np.float64] = last - (counts - 1) / 2
    return means[inverse.reshape(-1)]
