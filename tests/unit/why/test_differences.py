"""The search for the last equal step, and recordings that are not what they should be."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
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
        ({"norm": (0.75).hex()}, Cause.CLIPPING, "the norm of the gradients"),
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


@pytest.mark.parametrize(
    ("mine", "others", "values"),
    [
        ("(0.9, 0.95)", "(0.8, 0.95)", ("(0.9, 0.95)", "(0.8, 0.95)")),
        ("(0.9, 0.95)", "float32 [] 0f", ("(0.9, 0.95)", "float32 []")),
        ("float32 [2, 3] 0f", "bfloat16 [2, 3] ?", ("float32 [2, 3]", "bfloat16 [2, 3]")),
        ("float32 [2, 3] 0f", "float32 [2, 3] 1f", ("", "")),
    ],
)
def test_a_tensor_is_shown_by_its_kind_and_another_value_whole(mine: str, others: str, values: tuple[str, str]) -> None:
    one, other = (evolve(RECORDING, steps=[evolve(STEP, optimizer={"w: m": each})]) for each in (mine, others))
    found = first_difference(one, other)
    assert found is not None
    assert (found.cause, found.name, found.values) == (Cause.OPTIMIZER, "w: m", values)


def in_steps(change: Callable[[RecordedStep], RecordedStep]) -> Callable[[Recording], Recording]:
    return lambda recording: evolve(recording, steps=[change(each) for each in recording.steps])


def in_batches(**changes: Any) -> Callable[[Recording], Recording]:
    return in_steps(lambda step: evolve(step, batches=[evolve(each, **changes) for each in step.batches]))


def with_options(**options: str) -> Callable[[Recording], Recording]:
    return in_steps(lambda step: evolve(step, groups=[{**each, **options} for each in step.groups]))


PLANTS: dict[Cause, Callable[[Recording], Recording]] = {
    Cause.PROCESSES: lambda recording: evolve(recording, processes=2),
    Cause.START_WEIGHTS: lambda recording: evolve(recording, weights={"w": "float32 [3] 0a"}),
    Cause.START_OPTIMIZER: lambda recording: evolve(recording, optimizer={"w: m": "8"}),
    Cause.ACCUMULATION: in_steps(lambda step: evolve(step, batches=[*step.batches, *step.batches])),
    Cause.SAMPLES: in_batches(rows=[{"x": "a"}, {"x": "c"}]),
    Cause.RANDOM: in_steps(lambda step: evolve(step, random="s")),
    Cause.MODULE: in_batches(modules=[evolve(CALL, outputs="float32 [2, 3] 03")]),
    Cause.LOSS: in_batches(loss=(2.0).hex()),
    Cause.GRADIENTS: in_steps(lambda step: evolve(step, gradients={})),
    Cause.CLIPPING: in_steps(lambda step: evolve(step, norm=(0.75).hex())),
    Cause.LEARNING_RATE: with_options(lr="0.2"),
    Cause.OPTIONS: with_options(eps="0.01"),
    Cause.OPTIMIZER: in_steps(lambda step: evolve(step, optimizer={"w: m": "8"})),
    Cause.WEIGHTS: in_steps(lambda step: evolve(step, weights={})),
}
"""For each cause, what makes a recording differ in it; they can be combined."""


@given(st.sets(st.sampled_from([*PLANTS]), min_size=1))
def test_of_several_differences_the_first_of_the_run_is_found(causes: set[Cause]) -> None:
    """Causes are in the order in which a run has them, so that what follows from another one is not named."""
    ordered = [each for each in Cause if each in causes]
    changed = reduce(lambda recording, cause: PLANTS[cause](recording), ordered, RECORDING)
    found = first_difference(RECORDING, changed)
    assert found is not None
    assert found.cause is ordered[0]


def test_a_difference_before_the_first_step_is_said_to_be_there() -> None:
    """It has no step, and nothing else is listed."""
    found = first_difference(RECORDING, evolve(RECORDING, processes=2))
    assert found is not None
    assert found.sentence() == (
        "They differ first in the number of processes, before the first step that was repeated: "
        "how many share the samples of a step: 1 and 2."
    )


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"batches": [evolve(BATCH, loss=(2.25).hex())]}, ("1.5", "2.25")),
        ({"norm": (0.75).hex()}, ("0.5", "0.75")),
        ({"norm": ""}, ("0.5", "none")),
    ],
)
def test_numbers_are_shown_in_decimals(changes: dict[str, Any], values: tuple[str, str]) -> None:
    """They are recorded in hexadecimal; one that a run does not have is none."""
    found = first_difference(RECORDING, evolve(RECORDING, steps=[evolve(STEP, **changes)]))
    assert found is not None
    assert found.values == values


@pytest.mark.parametrize(("sizes", "described"), [((1, 1), "2 of 1 samples"), ((1, 2), "2 of 1 and 2 samples")])
def test_another_number_of_micro_batches_is_found_with_their_sizes(sizes: tuple[int, ...], described: str) -> None:
    """Even if the samples are the same, as each micro-batch has a loss of its own."""
    batches = [evolve(BATCH, rows=[{"x": "a"}] * size, indices=None) for size in sizes]
    found = first_difference(RECORDING, evolve(RECORDING, steps=[evolve(STEP, batches=batches)]))
    assert found is not None
    assert found.sentence() == (
        "They differ first in the number of micro-batches in a step, at step 3: "
        f"micro-batches: 1 of 2 samples and {described}."
    )


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ({}, "the output of layer for micro-batch 1 (Linear())", ("", "")),
        (
            {"outputs": "float32 [2, 5] 02"},
            "the output of layer for micro-batch 1",
            ("float32 [2, 3]", "float32 [2, 5]"),
        ),
        (
            {"description": "Linear(bias=False)"},
            "the output of layer for micro-batch 1",
            ("Linear()", "Linear(bias=False)"),
        ),
        (
            {"inputs": "float32 [2, 4] 05"},
            "the output of layer for micro-batch 1, whose input differs as well (Linear())",
            ("", ""),
        ),
    ],
)
def test_a_module_that_computes_something_else_is_described(
    changes: dict[str, str], name: str, values: tuple[str, str]
) -> None:
    """By what differs most: its description, the shape of its output, or only the output's values."""
    call = evolve(CALL, **{"outputs": "float32 [2, 3] 03", **changes})
    found = first_difference(RECORDING, in_batches(modules=[call])(RECORDING))
    assert found == Finding(Cause.MODULE, 3, name, values)


def test_the_first_module_that_computes_something_else_is_found() -> None:
    """Another input alone is no difference; the module without a name is the whole model."""
    first, whole = evolve(CALL, inputs="float32 [2, 4] 05"), evolve(CALL, name="", description="Net()")
    one = in_batches(modules=[CALL, whole])(RECORDING)
    other = in_batches(modules=[first, evolve(whole, outputs="float32 [2, 3] 03")])(RECORDING)
    assert first_difference(one, in_batches(modules=[first, whole])(RECORDING)) is None
    found = first_difference(one, other)
    assert found == Finding(Cause.MODULE, 3, "the output of the model for micro-batch 1 (Net())")


def of_samples(*batches: dict[int, str]) -> Recording:
    """Return a recording of a step that reads these samples: in each micro-batch, the values of `x` by index."""
    read = [evolve(BATCH, rows=[{"x": each} for each in batch.values()], indices=[*batch]) for batch in batches]
    return evolve(RECORDING, steps=[evolve(STEP, batches=read)])


def test_samples_in_another_order_are_found_in_any_micro_batch() -> None:
    """With the place that the first run's sample has in the second."""
    found = first_difference(
        of_samples({4: "a", 9: "b"}, {2: "c", 7: "d"}, {1_000: "e"}),
        of_samples({4: "a", 9: "b"}, {2: "c", 1_000: "e"}, {7: "d"}),
    )
    assert found is not None
    assert found.sentence() == (
        "They differ first in the order of the samples, at step 3: row 1 of micro-batch 2, whose sample of the first "
        "run is row 0 of micro-batch 3 in the second: sample 7 and sample 1,000."
    )


def test_all_samples_of_the_step_that_have_changed_are_listed() -> None:
    """The first one with the fields that differ."""
    found = first_difference(
        of_samples({4: "a", 9: "b"}, {2: "c", 7: "d"}), of_samples({4: "a", 9: "B"}, {2: "c", 7: "D"})
    )
    assert found is not None
    assert found.sentence() == (
        "They differ first in the samples, at step 3: x of sample 9, row 1 of micro-batch 1 (also sample 7)."
    )


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
