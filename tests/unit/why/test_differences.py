"""The search for the last equal step, and recordings that are not what they should be."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.why import (
    Cause,
    Finding,
    MicroBatch,
    ModuleCall,
    RecordedStep,
    Recording,
    document_of,
    first_difference,
    last_equal,
    recording_of,
)

CALL = ModuleCall("layer", "Linear()", "float32 [2, 4] 01", "float32 [2, 3] 02")
BATCH = MicroBatch([{"x": "a"}, {"x": "b"}], [4, 9], [CALL], (1.5).hex())
STEP = RecordedStep(
    3,
    "r",
    [BATCH],
    {"w": "float32 [3] 05"},
    "1.0",
    (0.5).hex(),
    [{"lr": "0.1"}],
    {"w": "float32 [3] 06"},
    {"w: m": "7"},
)
RECORDING = Recording(1, {"w": "float32 [3] 00"}, {}, [STEP])


@given(st.lists(st.integers(1, 1000), unique=True, max_size=60).map(sorted), st.integers(0, 1001))
def test_bisection_finds_where_runs_part_in_few_looks(steps: list[int], parted: int) -> None:
    looked: list[int] = []

    def is_equal(step: int) -> bool:
        looked.append(step)
        return step < parted

    equal, different = last_equal(steps, is_equal)
    assert equal == max((each for each in steps if each < parted), default=None)
    assert different == min((each for each in steps if each >= parted), default=None)
    assert len(looked) <= len(steps).bit_length()


def test_equal_recordings_have_no_difference() -> None:
    assert first_difference(RECORDING, RECORDING) is None
    assert recording_of(document_of(RECORDING)) == RECORDING


@pytest.mark.parametrize(
    ("changes", "cause", "name"),
    [
        ({"random": "s"}, Cause.RANDOM, "the generators"),
        ({"batches": [evolve(BATCH, loss=(2.0).hex())]}, Cause.LOSS, "of micro-batch 1"),
        ({"batches": [evolve(BATCH, modules=[])]}, Cause.MODULE, "which module micro-batch 1 calls"),
        ({"batches": [evolve(BATCH, rows=BATCH.rows[:1], indices=[4])]}, Cause.SAMPLES, "how many"),
        ({"batches": [evolve(BATCH, rows=[{"x": "a"}, {"x": "c"}])]}, Cause.SAMPLES, "x of sample 9"),
        ({"batches": [evolve(BATCH, rows=[{"x": "a"}, {"x": "c"}], indices=None)]}, Cause.SAMPLES, "x of sample 9"),
        ({"batches": [evolve(BATCH, rows=[{"x": "a"}, {"x": "c"}], indices=[4, 8])]}, Cause.ORDER, "row 1"),
        ({"gradients": {}}, Cause.GRADIENTS, "w"),
        ({"clipping": "0.1"}, Cause.CLIPPING, "max_grad_norm"),
        ({"groups": [{"lr": "0.2"}]}, Cause.LEARNING_RATE, "lr of parameter group 0"),
        ({"groups": [{"lr": "0.1"}, {"lr": "0.1"}]}, Cause.OPTIONS, "parameter groups"),
        ({"optimizer": {"w: m": "8"}}, Cause.OPTIMIZER, "w: m"),
        ({"weights": {"w": "float32 [3] 09"}}, Cause.WEIGHTS, "w"),
    ],
)
def test_each_part_of_a_step_is_compared(changes: dict[str, Any], cause: Cause, name: str) -> None:
    found = first_difference(RECORDING, evolve(RECORDING, steps=[evolve(STEP, **changes)]))
    assert found is not None
    assert (found.cause, found.step) == (cause, 3)
    assert found.name.startswith(name)


def test_a_limit_of_the_norm_that_changes_nothing_is_no_difference() -> None:
    assert first_difference(RECORDING, evolve(RECORDING, steps=[evolve(STEP, clipping="2.0")])) is None


def test_a_sentence_lists_a_few_of_many() -> None:
    finding = Finding(Cause.WEIGHTS, 1200, "a", ("1", "2"), tuple("bcdefgh"))
    assert finding.sentence() == (
        "They differ first in the weights, at step 1,200: a: 1 and 2 (also b, c, d, e, f and 2 more)."
    )


@pytest.mark.parametrize("document", [{}, {"processes": 1, "weights": [], "optimizer": {}, "steps": []}, {"steps": 3}])
def test_other_documents_are_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a recording"):
        recording_of(document)
