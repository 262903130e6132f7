"""Ranges of numbers and texts in documents, as annotations of the fields of their schemas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

from attrs import frozen


@frozen
class Between:
    """The range of a whole number in a document, ends included."""

    least: int
    most: int


@frozen
class Holding:
    """A condition on a value in a document. wanted: completes the sentence "x is not ..."."""

    wanted: str
    holds: Callable[[Any], bool]


def _may_name_folder(text: str) -> bool:
    return len(text) <= LONGEST_NAME and text not in (".", "..") and not any(mark in text for mark in "/\\\0")


LONGEST_NAME = 255
"""Characters of the name of a folder."""

FolderName = Annotated[str, Holding("the name of a folder", _may_name_folder)]
"""The name of a folder within another one. It may be empty, as a script may have set it to a path that ends there."""

TrackerName = Annotated[str, Holding("a text of at most 1,000 characters", lambda text: len(text) <= 1000)]
"""What identifies a run for a tracker."""

MOST = 2**53
"""The largest count. Floats represent all whole numbers up to it exactly."""

Count = Annotated[int, Between(0, MOST)]
"""A count of steps, samples or the like."""

PositiveCount = Annotated[int, Between(1, MOST)]
Int32Count = Annotated[int, Between(0, 2**31 - 1)]
"""A count that is stored in 32 bits."""

Whole = Annotated[int, Between(-MOST, MOST)]
LARGEST_BATCH = 2**31

BatchSize = Annotated[int, Between(1, LARGEST_BATCH)]
"""Samples of a batch or of an optimizer step."""

Updates = Annotated[int, Between(-1, MOST)]
"""A count that starts at -1 or 0, as the epochs and updates of torch's schedulers."""

Seed = Annotated[int, Between(-(2**63), 2**64 - 1)]
Finite = Annotated[float, Holding("a finite number", math.isfinite)]

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127

Rate = Annotated[float, Holding("a finite number of 32 bits", lambda value: abs(value) <= LARGEST_FLOAT32)]
"""A learning rate, by which torch multiplies tensors of 32 bits."""

Positive = Annotated[float, Holding("a finite number above 0", lambda value: 0 < value < math.inf)]
