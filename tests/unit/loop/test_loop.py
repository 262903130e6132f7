"""The training loop on the fakes."""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.errors import DataError
from hexloop.domain.events import AnyEvent, EpochBegan, EpochEnded, Logged, MicroStepEnded, StepBegan, StepEnded
from hexloop.domain.guard import WindowPlace
from hexloop.domain.loop import StandardLearner, train
from hexloop.domain.run import FailedStep, windows
from hexloop.domain.triggers import ControlFlags
from hexloop.testing import InMemoryBatches, PlainPrecision, SingleProcess
from tests.unit.loop.small import ROWS, Small, every, make_small, names


class UnknownLengthBatches(InMemoryBatches[Any]):
    """Batches of unknown number."""

    def batches_per_epoch(self) -> Any:
        return None


class OneEpochBatches(UnknownLengthBatches):
    """Batches that can be read in the first epoch only."""

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        if epoch == 0:
            yield from super().epoch(epoch, position)


def test_events_come_in_order() -> None:
    """A run yields events for its start, each epoch, each step, and its end."""
    small = make_small(rows=ROWS[:4], epochs=1)
    step = ["StepBegan", "StepEnded"]
    assert names(small.events()) == ["TrainBegan", "EpochBegan", *step, *step, "EpochEnded", "Logged", "TrainEnded"]


def test_micro_steps_yield_events_except_the_last_of_a_window() -> None:
    """A window of three has two micro-step events, and one of the two remaining batches has one."""
    small = make_small(rows=ROWS[:10], accumulation=3, epochs=1)
    events = small.events()
    micro = [event for event in events if isinstance(event, MicroStepEnded)]
    ended = [event for event in events if isinstance(event, StepEnded)]
    assert [event.step for event in micro] == [0, 0, 1]
    assert [(event.step, len(event.losses)) for event in ended] == [(1, 3), (2, 2)]
    assert float(micro[0].loss) == float(ended[0].losses[0])  # type: ignore[arg-type]


def test_the_first_step_matches_a_hand_calculation() -> None:
    """Check one unclipped step of gradient descent on (x, y) = (-1, -1), (-7/8, -3/4) from zero weights, and
    its log.
    """
    small = make_small(rows=ROWS[:2], epochs=1, max_norm=0, triggers=every(log=1))
    small.events()
    gradient_weight = 2 * (1 * 1 + 0.75 * 0.875) / 2  # errors and features have opposite signs
    gradient_bias = 2 * (1 + 0.75) / 2
    assert small.parameters == pytest.approx([0.1 * gradient_weight, -0.1 * gradient_bias])
    loss = (1 + 0.75**2) / 2
    norm = math.hypot(gradient_weight, gradient_bias)
    assert small.logs[0] == pytest.approx({"loss": loss, "grad_norm": norm, "learning_rate": 0.1})
    assert small.logs[-1]["train_loss"] == pytest.approx(loss)


def test_losses_fall() -> None:
    """The loss of the last steps is far below that of the first."""
    small = make_small(epochs=20, triggers=every(log=8))
    small.events()
    losses = [log["loss"] for log in small.logs if "loss" in log]
    assert losses[-1] < losses[0] / 50
    assert small.parameters == pytest.approx([2, 1], abs=0.1)


@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4), st.floats(0.1, 3))
def test_every_sample_of_the_plan_is_trained_on(rows: int, batch_size: int, accumulation: int, epochs: float) -> None:
    """The numbers of steps and samples are those of the plan, for all sizes."""
    small = make_small(rows=(ROWS * 3)[:rows], batch_size=batch_size, accumulation=accumulation, epochs=epochs)
    events = small.events()
    plan, state = small.run.plan, small.run.state
    assert sum(isinstance(event, StepEnded) for event in events) == state.step == plan.total_steps
    assert plan.steps_per_epoch is not None
    whole, rest = divmod(plan.total_steps, plan.steps_per_epoch)
    assert state.samples == whole * rows + min(rest * batch_size * accumulation, rows)
    assert sum(isinstance(event, EpochEnded) for event in events) == plan.epochs


def test_accumulation_equals_a_larger_batch() -> None:
    """Four micro-batches of two rows train like one batch of eight, including the partial last window."""
    whole = make_small(rows=ROWS[:14], batch_size=8)
    pieces = make_small(rows=ROWS[:14], batch_size=2, accumulation=4)
    whole.events(), pieces.events()
    assert pieces.parameters == pytest.approx(whole.parameters, rel=1e-12)
    assert pieces.run.state.samples == whole.run.state.samples


def test_a_run_of_unknown_length_counts_steps() -> None:
    """Data of unknown length are read repeatedly until max_steps, and the whole run counts as one epoch."""
    small = make_small(batches=UnknownLengthBatches(ROWS, 4), max_steps=10)
    events = small.events()
    assert [event.epoch for event in events if isinstance(event, EpochBegan)] == [0, 1, 2]
    assert small.run.state.step == 10


def test_exhausted_data_end_the_run_with_a_warning() -> None:
    """An iterator that is exhausted after its first epoch trains once and warns."""
    small = make_small(batches=OneEpochBatches(ROWS, 4), max_steps=10)
    with pytest.warns(UserWarning, match="no batches in epoch 1, so training stops after step 4 of 10"):
        small.events()
    assert small.run.state.step == 4


def test_empty_data_are_an_error() -> None:
    """Data of unknown length without a batch are refused."""
    small = make_small(batches=UnknownLengthBatches([], 4), max_steps=10)
    with pytest.raises(DataError, match="yielded no batches"):
        small.events()


def test_a_callback_may_end_the_epoch() -> None:
    """should_epoch_stop skips to the end of the epoch, and the next starts as usual."""
    small = make_small(rows=ROWS, epochs=2)
    seen: list[AnyEvent] = []
    for event in train(small.run):
        seen.append(event)
        if isinstance(event, StepEnded) and event.step == 3:
            small.run.control.should_epoch_stop = True
    ended = [event.step for event in seen if isinstance(event, EpochEnded)]
    assert ended == [3, 11]
    assert small.run.state.step == 11


def test_a_callback_may_stop_the_run_with_an_epoch_end() -> None:
    """should_training_stop ends the run after this step with an epoch-end event, as in transformers."""
    small = make_small()
    for event in train(small.run):
        if isinstance(event, StepEnded) and event.step == 2:
            small.run.control.should_training_stop = True
            small.run.control.should_log = True
    assert small.run.state.step == 2
    assert [log for log in small.logs if "loss" in log]
    assert not small.run.stopped


def test_actions_requested_by_callbacks_are_done_once() -> None:
    """A flag that is set while a log is handled takes effect, and is off at the next step."""
    small = make_small(triggers=every(log=3))
    for event in train(small.run):
        if isinstance(event, Logged) and event.step == 3 and "loss" in event.values:
            small.run.control.should_evaluate = True
    assert sum("eval_loss" in log for log in small.logs) == 1


def test_a_flag_set_too_late_is_cleared() -> None:
    """A flag that a callback sets after its action does not take effect at the next step."""
    small = make_small(triggers=every(save=3))
    for event in train(small.run):
        if type(event).__name__ == "CheckpointPublished":
            small.run.control.should_log = True
    assert not [log for log in small.logs if "loss" in log]


def test_next_may_come_from_another_thread_each_time() -> None:
    """No state of the run is bound to a thread."""
    alone, threaded = make_small(), make_small()
    alone.events()
    events = train(threaded.run)

    def step() -> None:
        next(events, None)

    while threaded.run.state.step < threaded.run.plan.total_steps:
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
    list(events)
    assert threaded.parameters == alone.parameters


@pytest.mark.parametrize(
    "stop_at", ["TrainBegan", "EpochBegan", "StepBegan", "StepEnded", "Logged", "PredictionStepEnded"]
)
def test_closing_releases_everything_and_saves_nothing(stop_at: str) -> None:
    """At any point of a run, close() calls every cleanup once, and yields and saves nothing more."""
    called: list[str] = []
    small = make_small(triggers=every(log=2, evaluate=2, save=8), cleanups=[lambda: called.append("cleanup")])
    events = train(small.run)
    for event in events:
        if type(event).__name__ == stop_at:
            break
    saved = small.storage.list("")
    request = small.run.requests.request_save()
    events.close()
    assert called == ["cleanup"]
    assert small.storage.list("") == saved
    assert request.done
    assert list(events) == []


def test_an_error_in_the_data_is_raised_after_cleanup() -> None:
    """The original exception is propagated, and the run is cleaned up."""

    class Broken(InMemoryBatches[Any]):
        def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
            yield ROWS[:2]
            raise OSError("the disk is gone")

    called: list[str] = []
    small = make_small(batches=Broken(ROWS, 2), cleanups=[lambda: called.append("cleanup")])
    with pytest.raises(OSError, match="the disk is gone"):
        small.events()
    assert called == ["cleanup"]


def test_every_cleanup_is_called_despite_errors() -> None:
    """A cleanup that fails does not prevent the others; its error is raised in the end."""
    called: list[str] = []

    def fail() -> None:
        raise RuntimeError("cannot close")

    small = make_small(cleanups=[lambda: called.append("first"), fail, lambda: called.append("last")])
    with pytest.raises(RuntimeError, match="cannot close"):
        small.events()
    assert sorted(called) == ["first", "last"]


def test_a_run_that_lets_go_of_its_collaborators_holds_neither_them_nor_its_error() -> None:
    """They refer to the run, and its error to the frames of the loop."""

    def fail(_batch: object) -> None:
        raise ZeroDivisionError

    small = make_small(triggers=every(save=2))
    small.run.cleanups = [small.run.disconnect]
    store = weakref.ref(small.store)
    small.run.connect(small.store, small.run.guard, small.run.agreement, [fail], dict)
    with pytest.raises(ZeroDivisionError):
        small.events()
    assert small.run.failure is None
    assert small.run.counters == ()
    del small.store
    assert store() is None
    assert small.run.state.step == 0


def test_data_are_closed_with_the_run() -> None:
    """The generator of batches is closed with the run, so that its workers can stop."""
    closed: list[bool] = []

    class Watched(InMemoryBatches[Any]):
        def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
            try:
                yield from super().epoch(epoch, position)
            finally:
                closed.append(True)

    small = make_small(batches=Watched(ROWS, 2))
    events = train(small.run)
    while not isinstance(next(events), StepBegan):
        pass
    events.close()
    assert closed == [True]


def test_windows_read_no_batch_early() -> None:
    """A window is yielded before the next one's first batch is read."""
    read: list[int] = []

    def batches() -> Generator[int, None, None]:
        for number in range(5):
            read.append(number)
            yield number

    groups = windows(batches(), 2)
    assert next(groups) == [0, 1]
    assert read == [0, 1]
    assert list(groups) == [[2, 3], [4]]


class UnreadableBatches(InMemoryBatches[Any]):
    """Batches the sixth of which cannot be read."""

    def epoch(self, epoch: int, position: int) -> Generator[Any, None, None]:
        yield from itertools.islice(super().epoch(epoch, position), 5)
        raise OSError("no such file")


def test_an_error_in_reading_is_explained() -> None:
    """By the step that its batch was read for, and where its samples begin."""
    small = make_small(batches=UnreadableBatches(ROWS, 2), accumulation=2)
    explained: list[FailedStep[Any]] = []
    small.run.explain = lambda _error, failed: explained.append(failed)
    with pytest.raises(OSError, match="no such file"):
        small.events()
    (failed,) = explained
    assert failed == FailedStep(3, 8, 0, 2, WindowPlace(0, 8, 0), None)
    assert failed.in_reading
    assert not failed.in_update


def failing(small_parts: dict[str, Any], method: str, call: int) -> tuple[Small, FailedStep[Any], list[Any]]:
    """Run until a call of a method of the learner fails; return the run, how that is explained, and what was passed."""
    calls: list[Any] = []

    class Failing(StandardLearner[Any, Any]):
        def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Any:
            note("micro_step", batch)
            return super().micro_step(batch, window_items, last_of_window)

        def update(self, max_norm: float) -> Any:
            note("update", max_norm)
            return super().update(max_norm)

    def note(name: str, passed: Any) -> None:
        if name == method:
            calls.append(passed)
            if len(calls) == call:
                raise FloatingPointError("not a number")

    small = make_small(
        learner=lambda trainable: Failing(trainable, PlainPrecision(), SingleProcess()), rows=ROWS[:15], **small_parts
    )
    explained: list[tuple[Exception, FailedStep[Any]]] = []
    small.run.explain = lambda error, failed: explained.append((error, failed))
    with pytest.raises(FloatingPointError) as raised:
        small.events()
    ((error, failed),) = explained
    assert error is raised.value is small.run.failure
    return small, failed, calls


@pytest.mark.parametrize(
    ("call", "step", "number", "count", "epoch", "position", "samples"),
    [(1, 1, 1, 3, 0, 0, 2), (5, 2, 2, 3, 0, 8, 2), (8, 3, 2, 2, 0, 14, 1), (9, 4, 1, 3, 1, 0, 2)],
)
def test_an_error_in_a_micro_step_is_explained(
    call: int, step: int, number: int, count: int, epoch: int, position: int, samples: int
) -> None:
    """By the step, the micro-batch in it, and the place of its samples in the data; also in a shorter window."""
    small, failed, batches = failing({"accumulation": 3}, "micro_step", call)
    assert failed == FailedStep(step, 6, number, count, WindowPlace(epoch, position, samples), batches[-1])
    assert batches[-1] == ROWS[:15][position : position + samples]
    assert not failed.in_reading
    assert not failed.in_update
    assert small.run.state.step == step - 1


@pytest.mark.parametrize(
    ("call", "count", "epoch", "position", "samples"), [(1, 3, 0, 0, 6), (3, 2, 0, 12, 3), (5, 3, 1, 6, 6)]
)
def test_an_error_in_an_update_is_explained(call: int, count: int, epoch: int, position: int, samples: int) -> None:
    """By the step, and the samples of all its micro-batches; no single batch is to blame."""
    small, failed, _ = failing({"accumulation": 3}, "update", call)
    assert failed == FailedStep(call, 6, count + 1, count, WindowPlace(epoch, position, samples), None)
    assert failed.in_update
    assert not failed.in_reading
    assert small.run.state.step == call - 1


def test_counters_get_every_micro_batch() -> None:
    """Each counter is called once per micro-batch that was trained on."""
    counted: list[int] = []
    small = make_small(accumulation=3, epochs=1, counters=[lambda batch: counted.append(len(batch))])
    small.events()
    assert counted == [2] * 8


def test_flags_are_read_and_set_by_name() -> None:
    """`due` lists the actions in order, and `set_due` sets exactly those."""
    control = ControlFlags(should_save=True, should_log=True, should_training_stop=True)
    assert control.due_actions() == ["log", "save"]
    control.set_due_actions(["evaluate"])
    assert control.due_actions() == ["evaluate"]
    assert control.should_training_stop
