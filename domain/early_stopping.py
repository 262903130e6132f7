"""When evaluations have stopped getting better."""

from __future__ import annotations


def patience_after(
    metric: float, best: float | None, counter: int, *, greater_is_better: bool, threshold: float = 0.0
) -> int:
    """How many evaluations in a row were no improvement, after one that measured `metric`.

    best: the best measured before it, None where it is the first. counter: how many in a row there were before.
    threshold: an improvement is more than this far from `best`. A NaN is never an improvement on anything.
    """
    if best is None:
        return 0
    better = metric > best if greater_is_better else metric < best
    return 0 if better and abs(metric - best) > threshold else counter + 1
