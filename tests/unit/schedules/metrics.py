"""What the tests of the two adaptive schedules share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import cattrs
from hypothesis import strategies as st

from hexloop.domain.schedules import Adaptive

State = TypeVar("State")

METRICS = st.lists(st.floats() | st.sampled_from([0.0, 0.5, 1.0]), max_size=60)


def follow(
    schedule: Adaptive[State], metrics: Iterable[float], rates: tuple[float, ...]
) -> tuple[State, list[tuple[float, ...]]]:
    """The state after the last metric, and the rates after each."""
    state, seen = schedule.start(rates), []
    for metric in metrics:
        state, rates = schedule(state, metric, rates)
        seen.append(rates)
    return state, seen


def through_json(state: Any) -> Any:
    """What comes back of a state that was written as JSON."""
    return cattrs.structure(json.loads(json.dumps(cattrs.unstructure(state))), type(state))
