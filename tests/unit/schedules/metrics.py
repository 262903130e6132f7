"""Shared helpers for the tests of the adaptive schedules."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TypeVar

import cattrs
from hypothesis import strategies as st

from hexloop.domain.schedules.adaptive import Adaptive

State = TypeVar("State")

METRICS = st.lists(st.floats() | st.sampled_from([0.0, 0.5, 1.0]), max_size=60)


def follow(
    schedule: Adaptive[State], metrics: Iterable[float], rates: tuple[float, ...]
) -> tuple[State, list[tuple[float, ...]]]:
    """Return the state after the last metric, and the rates after each."""
    state, seen = schedule.start(rates), []
    for metric in metrics:
        state, rates = schedule(state, metric, rates)
        seen.append(rates)
    return state, seen


def through_json(state: Any) -> Any:
    """Return a state after it was written and read as JSON."""
    return cattrs.structure(json.loads(json.dumps(cattrs.unstructure(state))), type(state))
