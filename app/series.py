"""The curve of one logged value: points by step, kept in little memory, and reduced to what a chart can show."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

MOST_POINTS = 2_000
"""How many points of a curve are drawn."""

MOST_GAPS = 50
"""How many steps without a finite value are marked."""

MOST_STEPS = 2**53
"""Steps from here on cannot be told apart in a browser, and do not occur."""


Block = npt.NDArray[Any]
"""Steps or values of consecutive points."""


@define
class Series:
    """The values of one name over the steps of a run.

    steps: ascending. values: finite, as many as steps. gaps: the steps at which the value was NaN or infinite.
    """

    steps: array[int] = field(factory=lambda: array("q"))
    values: array[float] = field(factory=lambda: array("d"))
    gaps: array[int] = field(factory=lambda: array("q"))

    def add(self, step: int, value: float) -> None:
        """Add a point. Points at this step and later ones are replaced, because the run has repeated these steps."""
        if (self.steps and self.steps[-1] >= step) or (self.gaps and self.gaps[-1] >= step):
            self.forget_after(step - 1)
        if math.isfinite(value):
            self.steps.append(step)
            self.values.append(value)
        else:
            self.gaps.append(step)

    def append_block(self, steps: Block, values: Block) -> None:
        """Add points that are after all others. The caller has checked that steps ascend and values are finite."""
        self.steps.frombytes(steps.astype(np.int64).tobytes())
        self.values.frombytes(values.astype(np.float64).tobytes())

    def replace_from(self, steps: Block, values: Block) -> None:
        """Add points whose steps ascend, in the place of points at their first step and later ones."""
        if not len(steps):
            return
        self.forget_after(int(steps[0]) - 1)
        finite = np.isfinite(values)
        self.append_block(steps[finite], values[finite])
        self.gaps.frombytes(steps[~finite].astype(np.int64).tobytes())

    def forget_after(self, step: int) -> None:
        """Remove the points after `step`."""
        if self.steps and self.steps[-1] > step:
            keep = bisect_right(self.steps, step)
            del self.steps[keep:], self.values[keep:]
        if self.gaps and self.gaps[-1] > step:
            del self.gaps[bisect_right(self.gaps, step) :]

    def extend(self, later: Series) -> None:
        """Add the points of a series that starts after this one ends."""
        self.steps += later.steps
        self.values += later.values
        self.gaps += later.gaps

    def last(self) -> Series:
        """Return a series of the last point, and of a last gap if that is later."""
        return Series(self.steps[-1:], self.values[-1:], self.gaps[-1:] if self.ends_in_gap else array("q"))

    @property
    def ends_in_gap(self) -> bool:
        """Whether the value that was added last is not finite."""
        return bool(self.gaps) and (not self.steps or self.gaps[-1] > self.steps[-1])

    def __len__(self) -> int:
        return len(self.steps)

    def summary(self) -> SeriesSummary | None:
        """Return the extremes and the ends; None if there is no point."""
        if not self.steps:
            return None
        values = np.array(self.values)
        lowest, highest = int(values.argmin()), int(values.argmax())
        first, last, low, high = ((self.steps[each], self.values[each]) for each in (0, -1, lowest, highest))
        return SeriesSummary(first, last, low, high, count=len(self.steps), gaps=len(self.gaps))


@frozen
class SeriesSummary:
    """A curve in figures: points as (step, value), and how many there are. gaps: values that are not finite."""

    first: tuple[int, float]
    last: tuple[int, float]
    lowest: tuple[int, float]
    highest: tuple[int, float]
    count: int
    gaps: int


def reduced(
    steps: Sequence[int] | array[int], values: Sequence[float] | array[float], most: int = MOST_POINTS
) -> tuple[list[int], list[float]]:
    """Return at most `most` of the points, in order: the first, the last, and the extremes of equal parts.

    A peak of a single step is kept, unlike by averages or by every n-th point. most: at least 4.
    """
    count = len(steps)
    if count <= most:
        return list(steps), list(values)
    inner = np.asarray(values, np.float64)[1:-1]
    parts = (most - 2) // 2
    starts = np.linspace(0, len(inner), parts + 1).astype(np.int64)
    kept = {0, count - 1}
    for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        part = inner[start:end]
        kept.add(1 + start + int(part.argmin()))
        kept.add(1 + start + int(part.argmax()))
    order = sorted(kept)
    return [steps[number] for number in order], [values[number] for number in order]
