"""A run in a framework other than torch: what it takes is its adapters and one file, `lists.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn import Linear

from hexloop import ConfigurationError, Trainer, TrainingArguments
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.trainable.least_squares import LinearModel
from hexloop.app.assembly.framework import METHODS, torch_framework
from hexloop.app.assembly.ineffective import NEEDS, unanswered
from hexloop.app.hooks import is_standard
from hexloop.domain.checkpoints.reading import verify
from tests.engines.processes import QUIET
from tests.unit.another_framework.lists import Lists


def test_a_framework_of_lists_trains_without_torch(tmp_path: Path) -> None:
    """Training, evaluation, checkpoints, the best model and an exact resume, where torch cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.another_framework.training", str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["imported"] == []
    assert found["whole"] == found["resumed"]
    assert found["losses"] == sorted(found["losses"], reverse=True)
    assert abs(found["whole"][0] - 3.0) < 0.1
    assert Path(found["best"]).parent == tmp_path / "whole"
    assert json.loads((tmp_path / "saved" / "line.json").read_text()) == found["whole"]
    assert verify(LocalStorage(tmp_path / "whole"), "checkpoint-24").manifest.step == 24


@pytest.mark.parametrize("wrong", ["torch", Lists, Linear(1, 1)])
def test_what_is_no_framework_is_refused(tmp_path: Path, wrong: Any) -> None:
    """A name, a class, and a model, which has methods of the same names."""
    with pytest.raises(ConfigurationError, match="framework takes an object whose class derives from") as refused:
        Trainer(Linear(1, 1), TrainingArguments(str(tmp_path)), framework=wrong)
    assert len(refused.value.problems) == 1


def test_a_class_is_no_model(tmp_path: Path) -> None:
    """The framework is asked whether an object can be a model."""
    with pytest.raises(ConfigurationError, match="which is not a model; pass a LinearModel"):
        Trainer(LinearModel, TrainingArguments(str(tmp_path)), framework=Lists())


def test_arguments_that_the_framework_would_ignore_are_refused(tmp_path: Path) -> None:
    """All of them at once, by the methods that it does not define."""
    asked: dict[str, Any] = {"label_smoothing_factor": 0.1, "auto_find_batch_size": True, "full_determinism": True}
    with pytest.raises(ConfigurationError) as refused:
        Trainer(LinearModel(), TrainingArguments(str(tmp_path), **asked), framework=Lists())
    assert [problem.split("=")[0] for problem in refused.value.problems] == sorted(asked, key=list(NEEDS).index)


def test_torch_ignores_no_argument(tmp_path: Path) -> None:
    """Each method that an argument needs is defined."""
    asked: dict[str, Any] = dict.fromkeys(NEEDS, True)
    assert unanswered(torch_framework(), SimpleNamespace(**asked)) == []  # type: ignore[arg-type]


class Steps(Trainer):
    """Overrides methods that a framework of lists does not call, and one that the Trainer itself calls."""

    def training_step(self, *_: Any, **__: Any) -> Any:
        return 0.0

    def compute_loss(self, *_: Any, **__: Any) -> Any:
        return 0.0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)


def test_overrides_that_the_framework_would_not_call_are_refused(tmp_path: Path) -> None:
    """Both methods of a step, and not `log`."""
    with pytest.raises(ConfigurationError) as refused:
        Steps(LinearModel(), TrainingArguments(str(tmp_path)), framework=Lists())
    assert [problem.split(" ")[0] for problem in refused.value.problems] == ["training_step", "compute_loss"]


def test_every_method_of_a_framework_is_a_hook() -> None:
    """`METHODS` names methods of the Trainer that may be overridden."""
    assert [name for name in METHODS if not is_standard(getattr(Trainer, name))] == []


def test_what_the_framework_itself_refuses_is_reported_together(tmp_path: Path) -> None:
    """Problems of the model and of the optimizer, before the first step."""
    rows = [((1.0,), 2.0)] * 8
    arguments = TrainingArguments(str(tmp_path), activation_checkpointing=True, optim="adamw_torch", use_cpu=True)
    trainer = Trainer(LinearModel(), arguments, train_dataset=rows, framework=Lists())
    with pytest.raises(ConfigurationError) as refused:
        trainer.train()
    assert [problem.split("=")[0] for problem in refused.value.problems] == ["activation_checkpointing", "optim"]
