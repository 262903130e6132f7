"""Logged losses are those of all processes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.collectives.simulated import SimulatedWorld
from hexloop.adapters.losses import PlainLosses
from hexloop.domain.ranks import SharedLosses
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import Part
from tests.examples import examples

shares = st.lists(st.lists(st.integers(-1000, 1000).map(float), max_size=5), min_size=2, max_size=5)


@settings(max_examples=examples(25), deadline=None)
@given(shares)
def test_every_process_gets_the_total(losses: list[list[float]]) -> None:
    """All processes get the same total of what each added, and then start again from zero."""

    def add_and_drain(ranks: Collectives) -> list[float]:
        shared = SharedLosses(PlainLosses(), ranks)
        for loss in losses[ranks.rank]:
            shared.add(loss)
        return [shared.drain(), shared.drain()]

    totals = SimulatedWorld(len(losses)).run(add_and_drain)
    assert totals == [[sum(map(sum, losses)), 0.0]] * len(losses)


def test_each_process_keeps_its_own_share() -> None:
    """Losses exported before a log are those of one process, without communication, and resume as such."""

    def export(ranks: Collectives) -> list[Part]:
        shared = SharedLosses(PlainLosses(), ranks)
        shared.add(10.0**ranks.rank)
        return list(shared.export())

    kept = SimulatedWorld(3).run(export)

    def resume(ranks: Collectives) -> float:
        shared = SharedLosses(PlainLosses(), ranks)
        shared.load(kept[ranks.rank])
        shared.add(1000.0)
        return shared.drain()

    assert SimulatedWorld(3).run(resume) == [3111.0] * 3


class WithComponents(PlainLosses):
    """Losses that have found some components."""

    def __init__(self, components: dict[str, float]) -> None:
        super().__init__()
        self._found = components

    def drain_components(self) -> dict[str, float]:
        """Return the components once."""
        found, self._found = self._found, {}
        return found


def test_components_are_summed_by_name() -> None:
    """Ranks may have different ones, or none, and values that are not finite."""
    own: list[dict[str, float]] = [{"a": 1.0, "b": math.nan}, {}, {"a": 2.5, "c": 1e300}]

    def drain(ranks: Collectives) -> list[object]:
        shared = SharedLosses(WithComponents(own[ranks.rank]), ranks)
        shared.add(1.0)
        found = [shared.drain(), shared.drain_components(), shared.drain_components()]
        return [*found, shared.drain(), shared.drain_components()]

    for total, components, *rest in SimulatedWorld(3).run(drain):
        assert total == 3.0
        assert components == pytest.approx({"a": 3.5, "b": math.nan, "c": 1e300}, nan_ok=True)
        assert rest == [{}, 0.0, {}]
