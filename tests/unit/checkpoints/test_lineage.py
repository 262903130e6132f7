"""Which checkpoints belong to the lineage of a session."""

from __future__ import annotations

from attrs import evolve

from hexloop.domain.checkpoints.manifest import Lineage
from tests.unit.checkpoints.test_manifest import EXAMPLE


def test_a_session_owns_its_checkpoints_and_their_ancestors() -> None:
    """Of earlier sessions, only checkpoints before the one that the run resumed from count."""
    resumed_from = evolve(EXAMPLE, run="r", session="2", ancestors={"1": 30}, step=50)
    lineage = Lineage.after(resumed_from, "3")

    def holds(session: str, step: int, run: str = "r") -> bool:
        return lineage.holds(evolve(EXAMPLE, run=run, session=session, ancestors={}, step=step))

    assert lineage.holds(resumed_from)
    assert holds("1", 30)
    assert not holds("1", 31)
    assert holds("2", 40)
    assert not holds("2", 60)
    assert holds("3", 1000)
    assert not holds("4", 1)
    assert not holds("2", 40, run="another")


def test_a_new_run_owns_no_other_checkpoints() -> None:
    """A session without ancestors owns only what it wrote itself."""
    assert not Lineage("a run", "new").holds(EXAMPLE)
    assert Lineage("a run", "b").holds(EXAMPLE)
