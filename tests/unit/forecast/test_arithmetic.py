"""The arithmetic of a forecast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.host_memory import free_memory
from hexloop.domain.forecast import (
    Counts,
    Forecast,
    Room,
    StepMemory,
    Timing,
    counts_of,
    memory_warnings,
    size_text,
    time_text,
)
from hexloop.domain.state import RunState
from hexloop.domain.triggers import ControlFlags, Interval, Trigger, Triggers, make_plan

MEMORY = StepMemory(100, 20, 200, 1000, 100, "fake tensors")
TIMING = Timing(2.0, (0.5,) * 10, 3.0, 0.25, 1.25)

FORECAST = Forecast(
    model="Net",
    device="cpu",
    precision="fp32",
    parameters=25,
    trainable=25,
    processes=1,
    window=8,
    counts=Counts(100, 4, 3),
    epochs=2.0,
    samples=800,
    tokens=8000,
    step_memory=MEMORY,
    copies=300,
    checkpoint=500,
    saved_at_once=1,
    timing=TIMING,
    room=Room(10_000, "this machine"),
)

triggers = st.builds(
    Trigger, st.sampled_from([Interval.NO, Interval.STEPS, Interval.EPOCH]), st.integers(min_value=0, max_value=9)
)


@given(
    batches=st.integers(1, 12),
    accumulation=st.integers(1, 4),
    epochs=st.integers(1, 4),
    max_steps=st.integers(-1, 30),
    evaluate=triggers,
    save=triggers,
    delay=st.integers(0, 6),
    first=st.booleans(),
)
def test_what_is_counted_is_what_the_triggers_do(
    batches: int,
    accumulation: int,
    epochs: int,
    max_steps: int,
    evaluate: Trigger,
    save: Trigger,
    delay: int,
    first: bool,
) -> None:
    plan = make_plan(batches, accumulation, epochs, max_steps)
    chosen = Triggers(Trigger(), evaluate, save, evaluation_delay=delay)
    assert plan.steps_per_epoch is not None
    evaluations, saves, state = int(first), 0, RunState()
    for step in range(1, plan.total_steps + 1):
        control, state.step = ControlFlags(), step
        state.batches = min(batches, state.batches + accumulation)
        chosen.after_step(state, plan, control)
        evaluations += control.should_evaluate
        saves += control.should_save
        if step % plan.steps_per_epoch == 0 or step == plan.total_steps:
            control = ControlFlags()
            chosen.after_epoch(state, plan, control)
            evaluations += control.should_evaluate
            saves += control.should_save
            state.epoch, state.batches = state.epoch + 1, 0
    found = counts_of(plan, chosen, first)
    assert (found.steps, found.saves) == (plan.total_steps, saves)
    assert found.evaluations == evaluations


@pytest.mark.parametrize("delay", [0.0, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_run_over_data_without_a_length_counts_as_one_epoch(delay: float, accumulation: int) -> None:
    """As the triggers do, if the data lasts for the run."""
    plan = make_plan(None, accumulation, 1, 7)
    chosen = Triggers(Trigger(), Trigger(Interval.EPOCH), Trigger(Interval.EPOCH), evaluation_delay=delay)
    control = ControlFlags()
    chosen.after_epoch(RunState(step=7, batches=7 * accumulation), plan, control)
    assert (control.should_evaluate, control.should_save) == (delay <= 1, True)
    assert counts_of(plan, chosen, False) == Counts(7, int(control.should_evaluate), 1)


def test_with_best_each_evaluation_may_save() -> None:
    plan = make_plan(10, 1, 1, -1)
    chosen = Triggers(evaluate=Trigger(Interval.STEPS, 5), save=Trigger(Interval.BEST))
    assert counts_of(plan, chosen, False) == Counts(10, 2, 2)


def test_the_time_of_a_run_is_that_of_its_parts() -> None:
    assert FORECAST.seconds == pytest.approx(2.0 + 99 * 0.5 + 4 * 3.0 + 2 * 0.25 + 1.25)
    assert evolve(FORECAST, timing=None).seconds is None


def test_a_step_that_was_interrupted_does_not_count() -> None:
    assert Timing(1.0, (*(0.1,) * 9, 50.0)).step == pytest.approx(0.1)
    assert Timing(1.0, (0.1, 0.3)).step == pytest.approx(0.2)


@pytest.mark.parametrize(("saves", "kept", "disk"), [(3, 1, 1000), (3, None, 1500), (1, 1, 500), (0, 1, 0)])
def test_the_disk_holds_what_is_kept_and_what_is_being_written(saves: int, kept: int | None, disk: int) -> None:
    assert evolve(FORECAST, counts=Counts(100, 4, saves), saved_at_once=kept).disk == disk


def test_the_peak_is_compared_with_what_is_free() -> None:
    assert not list(memory_warnings(MEMORY, 0, Room(10_000, "cuda:0"), on_host=False))
    assert not list(memory_warnings(MEMORY, 0, None, on_host=False))
    (warning,) = memory_warnings(MEMORY, 0, Room(1000, "cuda:0"), on_host=False)
    assert (
        "cuda:0 will run out of memory: a step needs 1.32 kB at its peak, 1.3 times the 1 kB that are free" in warning
    )
    assert "per_device_train_batch_size" in warning
    (close,) = memory_warnings(MEMORY, 0, Room(1400, "cuda:0"), on_host=False)
    assert "may run out" in close


def test_copies_for_saves_are_in_the_memory_of_the_host() -> None:
    assert not list(memory_warnings(MEMORY, 900, Room(2000, "cuda:0"), on_host=False))
    assert list(memory_warnings(MEMORY, 900, Room(2000, "this machine"), on_host=True))


@pytest.mark.parametrize(
    ("memory", "named"),
    [
        (StepMemory(100, 0, 0, 1000, 100, ""), "gradient_accumulation_steps"),
        (StepMemory(100, 100, 200, 10, 100, ""), "adafactor"),
        (StepMemory(100, 1, 2, 10, 1, ""), "fewer bits"),
    ],
)
def test_the_remedy_is_for_the_largest_part(memory: StepMemory, named: str) -> None:
    (warning,) = memory_warnings(memory, 0, Room(10, "cuda:0"), on_host=False)
    assert named in warning


def test_shards_divide_what_is_shared() -> None:
    assert MEMORY.sharded(3) == StepMemory(34, 7, 67, 1000, 34, "fake tensors")


def test_the_text_names_each_part() -> None:
    text = str(evolve(FORECAST, notes=("the colour",), warnings=("Too large.",)))
    for part in ("weights", "gradients", "optimizer moments", "activations", "copies for saves", "800 samples"):
        assert part in text
    assert "about 8,000 tokens" in text
    assert "Not known: the colour" in text
    assert "Warning: Too large." in text
    assert FORECAST.document()["step_memory"]["peak"] == 1320


def labels(forecast: Forecast) -> list[str]:
    """Return what each line of the text starts with."""
    return [line.strip().partition("  ")[0].partition(":")[0] for line in str(forecast).splitlines()]


TENSORS = ["weights", "gradients", "optimizer moments", "activations and temporary tensors"]
TOGETHER = "(all gradients together are 100 B, at another moment)"
COPIES = "copies for saves, on the host"


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"step_memory": None}, ["Memory", *TENSORS, TOGETHER, COPIES]),
        ({"step_memory": evolve(MEMORY, all_gradients=20)}, [TOGETHER]),
        ({"copies": 0}, [COPIES]),
        ({"room": None}, ["Free on this machine"]),
        ({"checkpoint": None}, ["Checkpoint"]),
        ({"timing": None}, ["Time", "evaluations", "saves", "after the last step"]),
        ({"timing": evolve(TIMING, evaluation=None)}, ["evaluations"]),
        ({"timing": evolve(TIMING, save=None)}, ["saves", "after the last step"]),
        ({"counts": Counts(100, 0, 3)}, ["evaluations"]),
        ({"counts": Counts(100, 4, 0)}, ["saves", "after the last step"]),
    ],
)
def test_what_is_not_known_or_not_done_is_left_out(changes: dict[str, Any], left_out: list[str]) -> None:
    """Of the text, without another line being lost; the document has null for what is not known."""
    whole, changed = labels(FORECAST), evolve(FORECAST, **changes)
    assert set(left_out) <= set(whole)
    assert labels(changed) == [each for each in whole if each not in left_out]
    document = json.loads(json.dumps(changed.document()))
    assert {name for name, value in document.items() if value is None} >= {
        name for name, value in changes.items() if value is None
    }


def test_what_follows_from_something_unknown_is_unknown() -> None:
    """In the document, the whole time and the size on the disk are null with what they are computed from."""
    document = evolve(FORECAST, timing=None, checkpoint=None, step_memory=None).document()
    assert (document["seconds"], document["disk"], document["step_memory"]) == (None, None, None)
    assert FORECAST.document()["seconds"] == FORECAST.seconds
    assert FORECAST.document()["disk"] == 1000


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_999, "1 MB"), (1.5e9, "1.5 GB"), (5e15, "5000 TB")],
)
def test_sizes_have_three_digits(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1e-6, "under 1 ms"), (0.25, "0.25 s"), (61, "1 min 1 s"), (3700, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_times_have_two_units(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_a_container_has_less_memory_than_its_machine(tmp_path: Path) -> None:
    def available() -> int:
        return 50 * 1024

    def fail() -> int:
        raise OSError("a sandbox")

    assert free_memory(tmp_path, available) == 50 * 1024
    assert free_memory(tmp_path, fail) is None
    for name, value in {"max": "20000", "current": "15000", "stat": "anon 1\ninactive_file 5000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(value)
    assert free_memory(tmp_path, available) == 10_000
    assert free_memory(tmp_path, fail) == 10_000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(tmp_path, available) == 50 * 1024
    assert (free_memory() or 0) > 0
