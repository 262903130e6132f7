"""Controlling a Trainer from outside: other threads, an event loop, and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainerCallback
from hexloop.adapters.interrupts import ManualInterrupts, SignalInterrupts
from hexloop.domain.errors import HexloopError
from hexloop.domain.events import CheckpointPublished, Paused, PredictionStepEnded, Saved, StepEnded, TrainEnded
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

ENDLESS: dict[str, Any] = {"max_steps": 10**6, "num_train_epochs": 10**6, "logging_steps": 10**6}


def start(trainer: Any, output: list[Any]) -> threading.Thread:
    """Train in a thread, and wait for the first step."""
    thread = threading.Thread(target=lambda: output.append(trainer.train()))
    thread.start()
    while trainer.state.global_step < 1:
        time.sleep(0.001)
    return thread


def test_an_endless_run_can_be_stopped(tmp_path: Path) -> None:
    """`request_stop` from another thread ends `train`, which returns its metrics as usual."""
    trainer, output = small_trainer(tmp_path, **ENDLESS), list[Any]()
    thread = start(trainer, output)
    trainer.request_stop("enough")
    thread.join(60)

    assert output[0].global_step >= 1
    assert output[0].training_loss > 0


def test_a_run_in_a_thread_can_be_paused_saved_and_resumed(tmp_path: Path) -> None:
    """A save requested during a pause is written at once, and the run then continues."""
    trainer, output = small_trainer(tmp_path, **ENDLESS), list[Any]()
    wait = trainer._requests.wait_while_paused
    thread = start(trainer, output)
    trainer.pause()
    name = trainer.request_save().wait(60)
    step = trainer.state.global_step
    thread.join(0.05)
    assert trainer.state.global_step == step
    assert name == f"checkpoint-{step}"
    assert not wait(0)
    trainer.resume()
    while trainer.state.global_step == step:
        time.sleep(0.001)
    trainer.request_stop()
    thread.join(60)

    assert output[0].global_step > step


def test_a_stop_ends_a_pause(tmp_path: Path) -> None:
    """A paused `train` that receives a stop request ends without being resumed."""
    trainer, output = small_trainer(tmp_path, **ENDLESS), list[Any]()
    thread = start(trainer, output)
    trainer.pause()
    trainer.request_stop()
    thread.join(60)

    assert not thread.is_alive()


def test_a_save_that_is_never_written_raises(tmp_path: Path) -> None:
    """If the run is closed first, waiting on the handle raises."""
    trainer = small_trainer(tmp_path)
    events = trainer.stream()
    next(events)
    request = trainer.request_save()
    events.close()

    with pytest.raises(HexloopError, match="ended before"):
        request.wait(1)


def test_simultaneous_save_requests_share_a_checkpoint(tmp_path: Path) -> None:
    """Requests at one boundary share one checkpoint."""
    trainer, requests, saved = small_trainer(tmp_path), list[Any](), 0
    for event in trainer.stream():
        if type(event) is StepEnded and event.step == 2:
            requests = [trainer.request_save() for _ in range(3)]
        saved += type(event) is Saved

    assert [request.wait(1) for request in requests] == ["checkpoint-2"] * 3
    assert saved == 1


def test_requests_are_handled_between_evaluation_batches(tmp_path: Path) -> None:
    """A save and a pause requested during an evaluation do not wait for its end."""
    trainer = small_trainer(tmp_path, eval_strategy="epoch", parts={"eval_dataset": rows(16)})
    kinds = []
    for event in trainer.stream():
        if type(event) is PredictionStepEnded and event.batch == 2:
            trainer.request_save()
            trainer.pause()
        if type(event) is Paused:
            trainer.resume()
        kinds.append(type(event))
    second = [index for index, kind in enumerate(kinds) if kind is PredictionStepEnded][1]

    assert kinds[second + 1 : second + 4] == [Saved, CheckpointPublished, Paused]
    assert kinds.count(PredictionStepEnded) == 4
    assert kinds[-1] is TrainEnded


def test_a_request_before_the_run_is_not_lost(tmp_path: Path) -> None:
    """A stop requested before `train` ends it at the first boundary."""
    trainer = small_trainer(tmp_path)
    trainer.request_stop()

    assert trainer.train().global_step <= 1


def test_requests_end_with_their_run(tmp_path: Path) -> None:
    """Requests to a run that has ended do not affect the next."""
    trainer = small_trainer(tmp_path)
    for event in trainer.stream():
        if type(event) is StepEnded and event.step == 4:
            trainer.pause()
            trainer.request_stop()

    assert trainer.train().global_step == 4


def test_an_event_loop_may_drive_a_run(tmp_path: Path) -> None:
    """A coroutine runs each step in a worker thread while another requests the end."""
    trainer = small_trainer(tmp_path, **ENDLESS)

    async def drive() -> int:
        steps, events = 0, trainer.stream()
        while (event := await asyncio.to_thread(next, events, None)) is not None:
            steps += type(event) is StepEnded
        return steps

    async def stop() -> None:
        while trainer.state.global_step < 3:
            await asyncio.sleep(0.001)
        trainer.request_stop()

    async def both() -> int:
        return (await asyncio.gather(drive(), stop()))[0]

    assert asyncio.run(both()) == trainer.state.global_step >= 3


def test_an_injected_source_of_interrupts_stops_the_run(tmp_path: Path) -> None:
    """It is used during the run only."""
    interrupts = ManualInterrupts()
    trainer = small_trainer(tmp_path, parts={"interrupts": interrupts})
    steps = 0
    for event in trainer.stream():
        assert interrupts.listening or type(event) is TrainEnded
        if type(event) is StepEnded:
            steps += 1
            interrupts.interrupt()

    assert steps == 1
    assert not interrupts.listening


def test_a_signal_stops_a_run_that_asked_for_it(tmp_path: Path) -> None:
    """With SignalInterrupts a SIGTERM ends the run at the next boundary, and the handler is restored."""
    before = signal.getsignal(signal.SIGTERM)

    class Killing(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    interrupts = SignalInterrupts((signal.SIGTERM,))
    trainer = small_trainer(tmp_path, parts={"interrupts": interrupts, "callbacks": [Killing()]})

    assert trainer.train().global_step == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_stopped_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    """After stop, save and resume, the weights equal those of an uninterrupted run."""
    whole = small_trainer(tmp_path / "whole", num_train_epochs=2, parts={"model": net(0.3)})
    whole.train()
    first = small_trainer(tmp_path / "cut", num_train_epochs=2, parts={"model": net(0.3)})
    for event in first.stream():
        if type(event) is StepEnded and event.step == 3:
            first.request_save()
            first.request_stop()
    second = small_trainer(tmp_path / "cut", num_train_epochs=2, parts={"model": net(0.3)})
    second.train(resume_from_checkpoint=True)

    assert first.state.global_step == 3
    assert same_weights(weights(second), weights(whole))
