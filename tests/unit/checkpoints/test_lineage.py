from __future__ import annotations

from attrs import evolve

from hexloop.domain.checkpoints.manifest import Lineage
from tests.unit.checkpoints.test_manifest import EXAMPLE


def test_a_session_holds_what_it_wrote_and_what_led_to_it() -> None:
    """Of earlier sessions, only what came before the checkpoint that the run went on from counts."""
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


def test_a_new_run_holds_nothing_of_others() -> None:
    """A session without ancestors holds only what it wrote itself."""
    assert not Lineage("a run", "new").holds(EXAMPLE)
    assert Lineage("a run", "b").holds(EXAMPLE)
