"""Two Trainers in one process, and the global state after a run."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hexloop import Trainer
from hexloop.domain.events import StepEnded
from tests.end_to_end.small.models import Net, Noisy, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

SEEDS = (1, 2)


def random_trainer(folder: Path, seed: int, **given: Any) -> Trainer:
    """Return a Trainer that draws random numbers for dropout, data (all three generators) and order."""
    parts = {"model": net(0.3), "train_dataset": Noisy(16), "eval_dataset": rows(8)}
    given = {"eval_strategy": "steps", "eval_steps": 3, "num_train_epochs": 2, **given}
    return small_trainer(folder / str(seed), seed=seed, parts=parts, **given)  # type: ignore[no-any-return]


def alone(folder: Path, seed: int, **given: Any) -> Trainer:
    """Train such a Trainer and return it."""
    trainer = random_trainer(folder, seed, **given)
    trainer.train()
    return trainer


@pytest.mark.parametrize("first_goes_ahead_by", [0, 1, 5])
def test_alternating_runs_equal_each_alone(tmp_path: Path, first_goes_ahead_by: int) -> None:
    """Weights and logs of two interleaved runs are bitwise those that each has alone."""
    trainers = [random_trainer(tmp_path / "both", seed) for seed in SEEDS]
    streams = [trainer.stream() for trainer in trainers]
    for _ in range(first_goes_ahead_by):
        next(streams[0])
    while streams:
        streams = [stream for stream in streams if next(stream, None) is not None]

    for trainer, seed in zip(trainers, SEEDS, strict=True):
        single = alone(tmp_path / "alone", seed)
        assert same_weights(weights(trainer), weights(single))
        assert history(trainer) == history(single)


def test_a_run_within_another_changes_nothing_about_it(tmp_path: Path) -> None:
    """A whole training between two steps of another run does not change that run."""
    outer = random_trainer(tmp_path / "outer", 1)
    for event in outer.stream():
        if type(event) is StepEnded and event.step == 3:
            inner = alone(tmp_path / "inner", 2)

    assert same_weights(weights(outer), weights(alone(tmp_path, 1)))
    assert same_weights(weights(inner), weights(alone(tmp_path, 2)))


def test_a_run_closed_within_another_changes_nothing_about_it(tmp_path: Path) -> None:
    """A run's random states continue after another run was started and closed."""
    outer = random_trainer(tmp_path / "outer", 1)
    events = outer.stream()
    for _ in range(6):
        next(events)
    inner = random_trainer(tmp_path / "inner", 2).stream()
    for _ in range(9):
        next(inner)
    inner.close()
    list(events)

    assert same_weights(weights(outer), weights(alone(tmp_path, 1)))


def test_models_of_model_init_equal_those_of_separate_runs(tmp_path: Path) -> None:
    """With `model_init` the weights depend on the seed alone, whatever other run is active."""

    def make(seed: int) -> Any:
        return small_trainer(tmp_path / str(seed), seed=seed, parts={"model_init": Net})

    outer = make(1).stream()
    next(outer)
    within = make(2)
    within.train()
    outer.close()
    single = make(2)
    single.train()

    assert same_weights(weights(within), weights(single))


def test_global_flags_are_set_during_their_own_run_only(tmp_path: Path) -> None:
    """A run's flags are set at its own events only, and restored at the end."""
    strict = small_trainer(tmp_path / "strict", full_determinism=True)
    loose = small_trainer(tmp_path / "loose")
    before = torch.are_deterministic_algorithms_enabled()
    seen: dict[str, set[bool]] = {"strict": set(), "loose": set()}
    for name, trainer in (("strict", strict), ("loose", loose)):
        trainer.model.register_forward_pre_hook(
            lambda *_, name=name: seen[name].add(torch.are_deterministic_algorithms_enabled())
        )
    streams = [strict.stream(), loose.stream()]
    while streams:
        streams = [stream for stream in streams if next(stream, None) is not None]

    assert not before
    assert seen == {"strict": {True}, "loose": {False}}
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("ending", ["whole", "closed", "broken"])
def test_global_flags_are_restored(tmp_path: Path, ending: str) -> None:
    """However a run ends, torch's flags, threads and default dtype are restored."""

    def switches() -> list[object]:
        return [
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.benchmark,
            torch.get_float32_matmul_precision(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
        ]

    before = switches()
    trainer = small_trainer(tmp_path, full_determinism=True)
    if ending == "broken":
        trainer.train_dataset = [*rows(8), None]
        with pytest.raises(Exception):  # noqa: B017, PT011 - any error will do
            trainer.train()
    else:
        events = trainer.stream()
        assert next(events) is not None
        list(events) if ending == "whole" else events.close()

    assert switches() == before


def test_two_threads_are_warned(tmp_path: Path) -> None:
    """A run that starts while another is active in a second thread warns about the state that both share."""
    outer = small_trainer(tmp_path / "outer").stream()
    next(outer)
    caught: list[str] = []

    def train() -> None:
        with pytest.warns(UserWarning, match="Two runs are live in two threads") as warned:
            small_trainer(tmp_path / "inner").train()
        caught.extend(str(warning.message) for warning in warned)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()

    assert len(caught) == 1
    outer.close()


def test_nothing_is_printed_without_loggers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With `loggers=[]`, training, evaluating, predicting and saving write to neither output stream."""
    trainer = random_trainer(tmp_path, 1, save_strategy="epoch", disable_tqdm=False)
    trainer.train()
    trainer.evaluate()
    trainer.predict(rows(4))
    trainer.save_model()
    trainer.save_state()

    assert capfd.readouterr() == ("", "")


def test_no_signal_handler_is_installed(tmp_path: Path) -> None:
    """During a run, every signal keeps its handler."""

    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in signal.valid_signals()]

    before = handlers()
    for _ in small_trainer(tmp_path).stream():
        assert handlers() == before

    assert handlers() == before


def test_a_run_starts_with_the_random_states_of_its_seed(tmp_path: Path) -> None:
    """Random numbers drawn before the run do not affect it."""
    random.seed(99), np.random.seed(99), torch.manual_seed(99)
    one = alone(tmp_path / "one", 1)
    random.random(), np.random.rand(3), torch.rand(5)

    assert same_weights(weights(one), weights(alone(tmp_path / "other", 1)))
