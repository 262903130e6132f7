"""The guarantees of a Trainer's event stream, with torch."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexloop import Trainer, TrainerCallback
from hexloop.adapters.interrupts import ManualInterrupts
from hexloop.adapters.logger import RecordingLogger
from hexloop.app.control.listening import CommandListener
from hexloop.domain.errors import RunStateError
from hexloop.domain.events import (
    AnyEvent,
    EvaluationInterrupted,
    Paused,
    PredictionStepEnded,
    StepBegan,
    StepEnded,
    TrainBegan,
    TrainEnded,
)
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


class BrokenError(Exception):
    """The error that the tests raise during a run."""


def in_another_thread(function: Callable[[], Any]) -> Any:
    """Return the function's result, called in a new thread."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(function()))
    thread.start()
    thread.join()
    return outcome[0]


def test_next_may_come_from_another_thread_each_time(tmp_path: Path) -> None:
    """A run whose every step runs in a new thread ends with the weights of `train`."""
    drained = small_trainer(tmp_path)
    drained.train()
    trainer = small_trainer(tmp_path, eval_strategy="epoch", parts={"eval_dataset": rows(8)})
    events = trainer.stream()
    while in_another_thread(lambda: next(events, None)) is not None:
        pass

    assert trainer.state.global_step == 4
    assert same_weights(weights(trainer), weights(drained))


class Held(TrainerCallback):
    """Holds its second step until it may go on."""

    def __init__(self) -> None:
        self.inside, self.may_go_on = threading.Event(), threading.Event()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            self.inside.set()
            assert self.may_go_on.wait(60)


@pytest.mark.parametrize("way", ["close", "next", "throw"])
def test_another_thread_waits_for_the_step(tmp_path: Path, way: str) -> None:
    """A stream that another thread is in a step of is closed, or advanced, after the step."""
    held = Held()
    trainer = small_trainer(tmp_path, parts={"callbacks": [held]})
    stream = trainer.stream()
    acts = {"close": stream.close, "next": lambda: next(stream), "throw": lambda: stream.throw(BrokenError())}

    def step() -> None:
        while not isinstance(next(stream), StepEnded) or trainer.state.global_step < 2:
            pass

    stepping = threading.Thread(target=step)
    stepping.start()
    assert held.inside.wait(60)
    problems = list[BaseException]()

    def act() -> None:
        try:
            acts[way]()
        except BaseException as error:
            problems.append(error)

    acting = threading.Thread(target=act)
    acting.start()
    acting.join(0.2)
    assert acting.is_alive(), "it waits"
    held.may_go_on.set()
    for each in (stepping, acting):
        each.join(60)
    assert [type(each) for each in problems] == ([BrokenError] if way == "throw" else [])
    assert trainer.state.global_step == 2
    stream.close()
    assert next(stream, None) is None


def test_a_stream_ends_at_the_step_in_which_it_is_closed(tmp_path: Path) -> None:
    """A thread that goes through all events does not keep another one, which closes the stream, waiting to the end."""
    held = Held()
    trainer = small_trainer(tmp_path, parts={"callbacks": [held]}, max_steps=200)
    stream = trainer.stream()
    reading = threading.Thread(target=lambda: list(stream))
    reading.start()
    assert held.inside.wait(60)
    closing = threading.Thread(target=stream.close)
    closing.start()
    closing.join(0.2)
    held.may_go_on.set()
    for each in (reading, closing):
        each.join(60)
    assert trainer.state.global_step == 2


def test_a_run_is_not_closed_inside_of_its_step(tmp_path: Path) -> None:
    """A callback that closes the stream gets an error that names what to do."""

    class Closes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            stream.close()

    stream = small_trainer(tmp_path, parts={"callbacks": [Closes()]}).stream()
    with pytest.raises(RunStateError, match=r"use trainer\.request_stop"):
        list(stream)


def test_no_context_is_open_between_events(tmp_path: Path) -> None:
    """At every event gradients are enabled, and autocast and inference mode are off, evaluation included."""
    trainer = small_trainer(
        tmp_path, bf16=True, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
        gradient_accumulation_steps=2, parts={"eval_dataset": rows(8)},
    )  # fmt: skip
    seen = set()
    for event in trainer.stream():
        seen.add(type(event).__name__)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")

    assert {"StepEnded", "MicroStepEnded", "PredictionStepEnded", "Evaluated", "Saved", "Logged"} <= seen


def break_in_the_consumer(trainer: Trainer) -> None:
    for event in trainer.stream():
        if type(event) is StepEnded:
            raise BrokenError


def break_in_a_callback(trainer: Trainer) -> None:
    class Breaking(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise BrokenError

    trainer.add_callback(Breaking())
    trainer.train()


def break_in_the_model(trainer: Trainer) -> None:
    calls = 0

    def forward(self: Net, inputs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise BrokenError

    trainer.model.register_forward_pre_hook(forward)
    trainer.train()


class BreakingRows(list[dict[str, Tensor]]):
    """Rows of which one cannot be read."""

    def __getitem__(self, index: Any) -> Any:
        if index == 5:
            raise BrokenError
        return super().__getitem__(index)


def break_in_the_dataset(trainer: Trainer) -> None:
    trainer.train_dataset = BreakingRows(rows(16))
    trainer.train()


def break_in_the_metrics(trainer: Trainer) -> None:
    def compute_metrics(prediction: Any) -> dict[str, float]:
        raise BrokenError

    trainer.compute_metrics = compute_metrics
    trainer.eval_dataset = rows(8)
    trainer.args.eval_strategy = "steps"
    trainer.args.eval_steps = 1
    trainer.train()


ENDINGS = [
    break_in_the_consumer,
    break_in_a_callback,
    break_in_the_model,
    break_in_the_dataset,
    break_in_the_metrics,
]


@pytest.mark.parametrize("end", ENDINGS)
def test_the_trainer_cleans_up_and_survives_an_exception(tmp_path: Path, end: Callable[[Trainer], None]) -> None:
    """Loggers are finished once, interrupts are released, no run is active, and the error is the one raised."""
    logger, interrupts = RecordingLogger(), ManualInterrupts()
    trainer = small_trainer(tmp_path, parts={"loggers": [logger], "interrupts": interrupts})

    with pytest.raises(BrokenError) as raised:
        end(trainer)

    assert raised.value.__cause__ is None
    assert logger.finished == 1
    assert not interrupts.listening
    assert not trainer.is_in_train
    assert trainer.model.training is (end is not break_in_the_metrics)
    assert list(tmp_path.glob("checkpoint-*")) == []


def close(events: Any) -> None:
    events.close()


def throw(events: Any) -> None:
    with pytest.raises(BrokenError):
        events.throw(BrokenError)


@pytest.mark.parametrize("end", [close, throw])
def test_a_stream_can_be_closed_at_every_event(tmp_path: Path, end: Callable[[Any], None]) -> None:
    """Closing the stream at any event finishes the logger once and lets the next run start."""
    logger = RecordingLogger()
    trainer = small_trainer(
        tmp_path, eval_strategy="epoch", save_strategy="epoch", gradient_accumulation_steps=2,
        parts={"loggers": [logger], "eval_dataset": rows(4)},
    )  # fmt: skip
    number = len(list(trainer.stream()))
    for taken in range(number + 1):
        trainer.model = trainer.model_wrapped = net()
        logger.finished = 0
        events = trainer.stream()
        for _ in range(taken):
            next(events)
        end(events)
        assert logger.finished == (1 if taken else 0)
        assert not trainer.is_in_train
        assert list(events) == []


def test_an_unreferenced_stream_is_cleaned_up(tmp_path: Path) -> None:
    """Leaving a for loop by break ends the run as soon as the stream is dropped."""
    trainer = small_trainer(tmp_path)
    for event in trainer.stream():
        if type(event) is StepEnded:
            break
    gc.collect()

    assert not trainer.is_in_train
    assert trainer.train().global_step == 4


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("ending", ["whole", "closed", "broken"])
def test_workers_are_stopped(tmp_path: Path, ending: str, persistent: bool) -> None:
    """However a run ends, no loader worker remains, persistent ones included."""
    trainer = small_trainer(
        tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=persistent, num_train_epochs=2
    )
    if ending == "whole":
        trainer.train()
    elif ending == "closed":
        events = trainer.stream()
        while type(next(events)) is not StepEnded:
            pass
        assert multiprocessing.active_children()
        events.close()
    else:
        with pytest.raises(BrokenError):
            break_in_a_callback(trainer)

    assert multiprocessing.active_children() == []


def test_an_interrupt_in_a_step_saves_nothing(tmp_path: Path) -> None:
    """KeyboardInterrupt in the model propagates unchanged, and no checkpoint is written."""

    class Interrupted(Net):
        calls = 0

        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            self.calls += 1
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().forward(x, labels)

    trainer = small_trainer(tmp_path, save_strategy="steps", save_steps=1, parts={"model": net(kind=Interrupted)})

    with pytest.raises(KeyboardInterrupt):
        trainer.train()

    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
    assert not trainer.is_in_train


def test_a_paused_stream_returns_from_every_next(tmp_path: Path) -> None:
    """While the run is paused, each `next` returns Paused and trains nothing; `resume` continues the run."""
    trainer = small_trainer(tmp_path)
    events = trainer.stream()
    while type(next(events)) is not StepEnded:
        pass
    trainer.pause()
    paused = [next(events) for _ in range(5)]
    assert paused[0] in (paused[0], Paused(1))
    assert paused[1:] == [Paused(1)] * 4
    before = weights(trainer)
    next(events)
    assert same_weights(weights(trainer), before)
    trainer.resume()

    assert [type(event) for event in events].count(StepEnded) == 3


def test_train_waits_while_it_is_paused(tmp_path: Path) -> None:
    """`train` blocks during a pause and finishes once another thread resumes the run."""
    trainer = small_trainer(tmp_path)
    standing = threading.Event()

    class Pausing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                trainer.pause()
                standing.set()

    trainer.add_callback(Pausing())
    outcome: list[Any] = []
    worker = threading.Thread(target=lambda: outcome.append(trainer.train()))
    worker.start()
    assert standing.wait(60)
    worker.join(0.05)
    assert worker.is_alive()
    assert trainer.state.global_step == 2
    trainer.resume()
    worker.join(60)

    assert outcome[0].global_step == 4


def test_a_save_can_be_requested_and_waited_for(tmp_path: Path) -> None:
    """`request_save` from another thread returns a handle whose `wait` returns the name of an existing folder."""
    trainer = small_trainer(tmp_path)
    names: list[str] = []

    def ask() -> None:
        names.append(trainer.request_save().wait(60))

    asking: list[threading.Thread] = []
    for event in trainer.stream():
        if type(event) is StepEnded and event.step == 2 and not asking:
            asking.append(threading.Thread(target=ask))
            asking[0].start()
            while not trainer._requests.pending:
                pass
    asking[0].join(60)

    assert names == ["checkpoint-2"]
    assert (tmp_path / "checkpoint-2" / "manifest.json").is_file()


def test_a_stop_is_handled_at_the_next_boundary(tmp_path: Path) -> None:
    """After `request_stop` the current step is the last, and TrainEnded reports that the run was stopped."""
    trainer = small_trainer(tmp_path)
    steps, ended = 0, None
    for event in trainer.stream():
        if type(event) is StepBegan and event.step == 1:
            trainer.request_stop()
        steps += type(event) is StepEnded
        ended = event

    assert steps == 2
    assert isinstance(ended, TrainEnded)
    assert ended.stopped


def test_a_stop_inside_an_evaluation_ends_it(tmp_path: Path) -> None:
    """The evaluation stops after the current batch."""
    trainer = small_trainer(tmp_path, eval_strategy="steps", eval_steps=2, parts={"eval_dataset": rows(16)})
    predicted, kinds = 0, []
    for event in trainer.stream():
        if type(event) is PredictionStepEnded:
            predicted += 1
            trainer.request_stop()
        kinds.append(type(event))

    assert predicted == 1
    assert EvaluationInterrupted in kinds
    assert trainer.state.global_step == 2
    assert "eval_loss" not in {name for entry in trainer.state.log_history for name in entry}


def test_an_interrupted_evaluation_is_repeated_on_resume(tmp_path: Path) -> None:
    """A run that was saved and stopped during an evaluation repeats it first when resumed."""
    parts = {"eval_dataset": rows(16)}
    whole = small_trainer(tmp_path / "whole", eval_strategy="steps", eval_steps=2, parts={**parts, "model": net(0.3)})
    whole.train()
    first = small_trainer(tmp_path / "cut", eval_strategy="steps", eval_steps=2, parts={**parts, "model": net(0.3)})
    for event in first.stream():
        if type(event) is PredictionStepEnded:
            first.request_save()
            first.request_stop()
    second = small_trainer(tmp_path / "cut", eval_strategy="steps", eval_steps=2, parts={**parts, "model": net(0.3)})
    kinds = [type(event) for event in second.stream(resume_from_checkpoint=True)]

    assert kinds.index(PredictionStepEnded) < kinds.index(StepBegan)
    assert kinds.count(PredictionStepEnded) == 8
    assert same_weights(weights(second), weights(whole))


def use(trainer: Trainer, folder: Path) -> None:
    """Call everything that may be called at any time."""
    assert "eval_loss" in trainer.evaluate()
    assert trainer.predict(rows(6)).predictions.shape == (6, 1)
    trainer.save_model(str(folder / "aside"))
    trainer.log({"mine": 1.0})


def test_a_callback_may_evaluate_predict_save_and_log(tmp_path: Path) -> None:
    """Doing so in a callback has no effect on training."""

    class Using(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            use(trainer, tmp_path)

    alone = small_trainer(tmp_path, parts={"model": net(0.3)})
    alone.train()
    trainer = small_trainer(tmp_path, parts={"model": net(0.3), "eval_dataset": rows(8), "callbacks": [Using()]})
    trainer.train()

    assert same_weights(weights(trainer), weights(alone))
    assert [entry["mine"] for entry in trainer.state.log_history if "mine" in entry] == [1.0] * 4


def test_a_consumer_may_evaluate_predict_save_and_log(tmp_path: Path) -> None:
    """Doing so between any two events has no effect on training."""
    alone = small_trainer(tmp_path, parts={"model": net(0.3)})
    alone.train()
    trainer = small_trainer(tmp_path, parts={"model": net(0.3), "eval_dataset": rows(8)})
    for _ in trainer.stream():
        use(trainer, tmp_path)

    assert same_weights(weights(trainer), weights(alone))


def test_a_second_run_at_once_is_refused(tmp_path: Path) -> None:
    """`train` and `stream` raise RunStateError while a run is active, and that run continues."""
    trainer = small_trainer(tmp_path)
    events = trainer.stream()
    next(events)
    with pytest.raises(RunStateError, match="is live already"):
        trainer.train()
    with pytest.raises(RunStateError, match="is live already"):
        trainer.stream()

    assert [type(event) for event in events].count(StepEnded) == 4


def test_of_two_streams_only_the_first_starts(tmp_path: Path) -> None:
    """A stream created before another one started is refused at its first `next`."""
    trainer = small_trainer(tmp_path)
    one, other = trainer.stream(), trainer.stream()
    next(one)
    with pytest.raises(RunStateError, match="is live already"):
        next(other)
    one.close()


def end_whole(trainer: Trainer) -> None:
    trainer.train()


def end_closed(trainer: Trainer) -> None:
    events = trainer.stream()
    while type(next(events)) is not StepEnded:
        pass
    events.close()


def end_broken(trainer: Trainer) -> None:
    with pytest.raises(BrokenError):
        break_in_the_consumer(trainer)


def end_stopped(trainer: Trainer) -> None:
    for event in trainer.stream():
        if type(event) is StepEnded:
            trainer.request_stop()


@pytest.mark.parametrize("end", [end_whole, end_closed, end_broken, end_stopped])
def test_a_second_run_starts_with_the_current_weights(tmp_path: Path, end: Callable[[Trainer], None]) -> None:
    """It equals the first run of a new Trainer with these weights: steps, losses, optimizer, history."""
    trainer = small_trainer(tmp_path, parts={"model": net(0.3)})
    end(trainer)
    other = small_trainer(tmp_path, parts={"model": net(0.3)})
    other.model.load_state_dict(weights(trainer))
    again, first = trainer.train(), other.train()

    assert again.global_step == first.global_step == 4
    assert again.training_loss == first.training_loss
    assert same_weights(weights(trainer), weights(other))
    assert len(trainer.state.log_history) == len(other.state.log_history)


def test_a_run_may_use_a_worker_thread(tmp_path: Path) -> None:
    """`train` in a thread gives the same result as in the main thread."""
    main, worker = small_trainer(tmp_path), small_trainer(tmp_path)
    output = in_another_thread(worker.train)

    assert output.training_loss == main.train().training_loss
    assert same_weights(weights(worker), weights(main))


def test_a_run_that_cannot_start_can_be_repeated(tmp_path: Path) -> None:
    """If construction fails (no checkpoint to resume from), no run is active and the next one trains."""
    trainer = small_trainer(tmp_path)
    for _ in range(2):
        with pytest.raises(Exception, match="resume_from_checkpoint=True"):
            trainer.train(resume_from_checkpoint=True)
        assert not trainer.is_in_train

    assert trainer.train().global_step == 4


def test_an_exception_at_the_first_event_cleans_up(tmp_path: Path) -> None:
    """A callback that fails in on_train_begin leaves no active run."""

    class Breaking(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise BrokenError

    logger = RecordingLogger()
    trainer = small_trainer(tmp_path, parts={"loggers": [logger], "callbacks": [Breaking()]})
    with pytest.raises(BrokenError):
        trainer.train()
    trainer.remove_callback(Breaking)

    assert logger.finished == 1
    assert trainer.train().global_step == 4


def test_a_run_that_cannot_be_constructed_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last part does not start, the loggers, which have started, learn that the run failed."""

    def start(_listener: CommandListener) -> None:
        raise RuntimeError("can't start new thread")

    logger, interrupts = RecordingLogger(), ManualInterrupts()
    trainer = small_trainer(tmp_path, save_strategy="epoch", parts={"loggers": [logger], "interrupts": interrupts})
    with monkeypatch.context() as patch:
        patch.setattr(CommandListener, "start", start)
        with pytest.raises(RuntimeError, match="new thread"):
            trainer.train()

    assert [outcome.kind for outcome in logger.outcomes] == ["failed"]
    assert not interrupts.listening
    assert not trainer.is_in_train
    assert trainer.train().global_step == 4


def test_events_are_in_order(tmp_path: Path) -> None:
    """The stream starts with TrainBegan, ends with TrainEnded, and numbers the steps without a gap."""
    events: list[AnyEvent] = list(small_trainer(tmp_path).stream())

    assert type(events[0]) is TrainBegan
    assert type(events[-1]) is TrainEnded
    assert [event.step for event in events if type(event) is StepEnded] == [1, 2, 3, 4]
