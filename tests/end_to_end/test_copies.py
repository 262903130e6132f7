"""`copy.deepcopy` and pickle make an independent Trainer, as they do of transformers' Trainer."""

from __future__ import annotations

import copy
import gc
import os
import pickle  # noqa: TID251  # the user pickles a Trainer; hexloop does not
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexloop import EarlyStoppingCallback, Trainer, TrainerCallback
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.assembly.adapters import cpu_device
from hexloop.domain.errors import RunStateError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import arguments, history, same_weights, small_trainer, weights


def pickled(trainer: Any) -> Any:
    return pickle.loads(pickle.dumps(trainer))


COPIES: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": pickled}
each_way = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


class Counts(TrainerCallback):
    """Counts steps, and refers to its Trainer, as callbacks of libraries do."""

    def __init__(self, trainer: Any = None) -> None:
        self.trainer, self.steps = trainer, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps += 1


class Mine(Trainer):
    """Has attributes of its own."""

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values, **named)
        self.extra = {"rows": [1, 2]}


def full_trainer(folder: Path, **given: Any) -> Any:
    """Return a Trainer that saves, evaluates, logs to a file and has callbacks."""
    chosen = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 4}
    named = {**chosen, "report_to": ["json_lines", "tensorboard"], "metric_for_best_model": "loss", **given}
    return Mine(
        net(),
        arguments(folder, **named, load_best_model_at_end=True),
        train_dataset=rows(32),
        eval_dataset=rows(8),
        callbacks=[Counts(), EarlyStoppingCallback(5)],
    )


@each_way
def test_a_copy_trains_as_the_original_does(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """With equal results, and without an effect on the original, whichever of them trains first."""
    original = full_trainer(tmp_path / "out")
    before = weights(original)
    second = copied(original)
    assert type(second) is Mine
    assert second.extra == {"rows": [1, 2]}
    assert second.extra is not original.extra
    assert second.callback_handler.callback_list == original.callback_handler.callback_list
    second.train()
    assert same_weights(weights(original), before)
    assert original.state.global_step == 0
    assert not original.state.log_history
    assert [each.steps for each in original.callback_handler.callbacks if isinstance(each, Counts)] == [0]
    assert [each.steps for each in second.callback_handler.callbacks if isinstance(each, Counts)] == [4]
    (tmp_path / "out").rename(tmp_path / "of_the_copy")
    original.train()
    assert same_weights(weights(original), weights(second))
    assert history(original) == history(second)
    files = [
        {str(each.relative_to(tmp_path / name)) for each in (tmp_path / name).rglob("*") if "runs" not in each.parts}
        for name in ("out", "of_the_copy")
    ]
    assert files[0] == files[1]


@each_way
def test_callbacks_that_refer_to_the_trainer_refer_to_the_copy(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """And methods that were set on the Trainer are those of the copy."""
    original = small_trainer(tmp_path)
    original.add_callback(Counts(original))
    original.compute_loss_func = None
    original.kept_method = original.get_learning_rates
    second = copied(original)
    assert second.callback_handler.callbacks[-1].trainer is second
    assert second.kept_method.__self__ is second
    second.train()
    assert second.callback_handler.callbacks[-1].steps == 4


@each_way
def test_callbacks_of_a_copy_may_be_changed(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """A callback that is added to the copy is called in its runs only; the original may be gone."""
    original = small_trainer(tmp_path)
    second = copied(original)
    second.add_callback(counts := Counts())
    original.train()
    assert counts.steps == 0
    del original
    gc.collect()
    second.train()
    assert counts.steps == 4


@each_way
def test_requests_stay_with_the_trainer_that_received_them(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """A stop that is requested before the run ends only that Trainer's."""
    original = small_trainer(tmp_path)
    original.request_stop("not the copy")
    second = copied(original)
    assert second.train().global_step == 4
    assert original.train().global_step < 4


def test_a_copy_uses_the_adapters_that_were_passed(tmp_path: Path) -> None:
    """They are places and services: a copy saves to the same storage. A pickled Trainer needs ones that can be."""
    storage = MemoryStorage()
    original = small_trainer(tmp_path / "a", parts={"storage": storage}, save_strategy="steps", save_steps=4)
    copy.deepcopy(original).train()
    assert "checkpoint-4" in [entry.name for entry in storage.list("")]
    passed = {"storage": LocalStorage(tmp_path / "there"), "device": cpu_device()}
    second = pickled(small_trainer(tmp_path / "b", parts=passed, save_strategy="steps", save_steps=4))
    second.train()
    assert (tmp_path / "there" / "checkpoint-4").is_dir()


@each_way
def test_a_copy_uses_the_folder_of_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: Callable[[Any], Any]
) -> None:
    """A relative `output_dir` starts where the original was made."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    original = full_trainer(Path("out"), report_to=["json_lines"])
    os.chdir(tmp_path / "elsewhere")
    second = copied(original)
    second.train()
    second.save_model()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert {"checkpoint-2", "checkpoint-4", "model.safetensors"} <= set(os.listdir(tmp_path / "out"))
    assert os.path.isdir(second.state.best_model_checkpoint)


@each_way
def test_after_a_run_a_copy_keeps_its_result(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """Weights, state and outcome; both may train on."""
    original = small_trainer(tmp_path)
    original.train()
    second = copied(original)
    assert same_weights(weights(original), weights(second))
    assert history(second) == history(original)
    assert second.state.global_step == 4
    assert second.train().global_step == original.train().global_step == 4
    assert same_weights(weights(original), weights(second))


@each_way
def test_a_live_run_is_not_copied(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """The message says when it can be."""
    trainer = small_trainer(tmp_path)
    events = trainer.stream()
    next(events)
    with pytest.raises(RunStateError, match="live run cannot be copied or pickled"):
        copied(trainer)
    events.close()
    assert copied(trainer).train().global_step == 4


def test_a_shallow_copy_shares(tmp_path: Path) -> None:
    """As `copy.copy` does of any object."""
    trainer = small_trainer(tmp_path)
    assert vars(copy.copy(trainer)) == vars(trainer)


def test_a_copy_has_an_accelerator_of_its_own(tmp_path: Path) -> None:
    """Around the same object of accelerate's, which is shared by copies in transformers too."""
    original = small_trainer(tmp_path)
    assert original.accelerator.real is not None
    original.gather_function = original.accelerator.gather
    second = copy.deepcopy(original)
    assert second.accelerator is not original.accelerator
    assert second.accelerator.real is original.accelerator.real
    assert second.gather_function == second.accelerator.gather
    assert second.train().global_step == 4
