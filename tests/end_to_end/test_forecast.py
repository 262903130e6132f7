"""Forecasts beside what happens: memory, size of a checkpoint, steps; and what a forecast must leave alone."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import hexloop
from hexloop.app.command_line import main
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.forecast import Room
from tests.end_to_end.console import hexloop as command

WIDTH = 64


class Net(nn.Module):
    """A model whose activations are larger than its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss and the logits."""
        logits = self.head(self.layers(x))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else torch.zeros(())
        return {"loss": loss, "logits": logits}


class Selecting(Net):
    """A model whose shapes depend on values."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss of the rows whose first value is positive."""
        kept = x[:, 0] > -1e9
        return super().forward(x[kept], None if labels is None else labels[kept])


def rows(count: int = 256) -> list[dict[str, Any]]:
    """Return samples."""
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(16, generator=generator), "labels": number % 4} for number in range(count)]


def make_trainer(folder: Path, model: nn.Module | None = None, **arguments: Any) -> hexloop.Trainer:
    """Return a Trainer."""
    torch.manual_seed(0)
    given = {
        "per_device_train_batch_size": 32, "num_train_epochs": 2, "save_strategy": "epoch", "eval_strategy": "epoch",
        "seed": 1, "report_to": "none", "disable_tqdm": True, "save_total_limit": 1,
    }  # fmt: skip
    return hexloop.Trainer(
        model or Net(),
        hexloop.TrainingArguments(str(folder), **{**given, **arguments}),
        train_dataset=rows(),
        eval_dataset=rows(64),
    )


def allocated_at_peak(train: Any) -> int:
    """Return the most that torch's allocator gave out at a time, beyond what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        train()
    used = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            used += event.nbytes()
            peak = max(peak, used)
    return peak


@pytest.mark.parametrize(
    "arguments",
    [{}, {"gradient_accumulation_steps": 2}, {"optim": "sgd"}, {"max_grad_norm": 0.0}, {"optim": "adafactor"}],
    ids=str,
)
def test_the_memory_of_a_step_is_that_of_the_run(arguments: dict[str, Any], tmp_path: Path) -> None:
    quiet = {"save_strategy": "no", "eval_strategy": "no", "logging_strategy": "no", "max_steps": 4, **arguments}
    forecast = make_trainer(tmp_path / "forecast", **quiet).forecast(steps=0)
    trainer = make_trainer(tmp_path / "run", **quiet)
    weights = sum(each.nbytes for each in trainer.model.parameters())
    happened = weights + allocated_at_peak(trainer.train)
    assert forecast.step_memory is not None
    assert forecast.step_memory.counted_by == "fake tensors"
    assert forecast.step_memory.weights == weights
    assert forecast.step_memory.peak == pytest.approx(happened, rel=0.15)
    assert forecast.timing is None


def test_the_parts_are_those_of_adam(tmp_path: Path) -> None:
    memory = make_trainer(tmp_path).forecast(steps=0).step_memory
    assert memory is not None
    assert memory.all_gradients == memory.weights
    assert memory.moments == pytest.approx(2 * memory.weights, rel=0.01)


def test_a_checkpoint_is_as_large_as_forecast(tmp_path: Path) -> None:
    computed = make_trainer(tmp_path / "computed").forecast(steps=0).checkpoint
    measured = make_trainer(tmp_path / "measured").forecast(steps=2)
    trainer = make_trainer(tmp_path / "run")
    trainer.train()
    (folder,) = (tmp_path / "run").glob("checkpoint-*")
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    assert computed == pytest.approx(size, rel=0.15)
    assert measured.checkpoint == pytest.approx(size, rel=0.15)
    assert (measured.counts.steps, measured.counts.saves, measured.counts.evaluations) == (16, 2, 2)
    assert measured.samples == 512
    assert measured.timing is not None
    assert len(measured.timing.steps) == 2
    assert measured.timing.evaluation is not None
    assert measured.timing.save is not None


class Timed(hexloop.Trainer):
    """A Trainer on which only a clock of the test goes on: at its start, in a step and in each log."""

    now = 0.0
    starts: Iterator[float] = repeat(1.0)

    @classmethod
    def wait(cls, seconds: float) -> None:
        """Let time pass."""
        cls.now += seconds

    def get_train_dataloader(self) -> Any:
        """Take long the first time, as what is imported by it does."""
        self.wait(next(type(self).starts))
        return super().get_train_dataloader()

    def compute_loss(self, *args: Any, **keywords: Any) -> Any:
        """Take half a second."""
        self.wait(0.5)
        return super().compute_loss(*args, **keywords)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Take three seconds, as the end of a run does."""
        self.wait(3.0)
        super().log(logs, start_time)


@pytest.mark.parametrize("saves", ["no", "epoch"])
def test_the_time_has_the_start_of_a_new_process_and_the_end(
    saves: Literal["no", "epoch"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens once in a process is part of the first step, though the simulation has done it already."""
    monkeypatch.setattr(Timed, "starts", chain([10.0], repeat(1.0)))
    clock = SimpleNamespace(monotonic=time.monotonic, perf_counter=lambda: Timed.now)
    monkeypatch.setattr("hexloop.app.run.forecasting.time", clock)
    args = hexloop.TrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=32, save_strategy=saves, report_to="none"
    )
    timing = Timed(Net(), args, train_dataset=rows()).forecast(steps=3).timing
    assert timing is not None
    assert (timing.first_step, timing.steps, timing.end) == (10.5, (0.5, 0.5, 0.5), 3.0)
    assert timing.save == (None if saves == "no" else 0.0), "the steps beside it took as long as others"


def test_a_forecast_changes_nothing(tmp_path: Path) -> None:
    expected = make_trainer(tmp_path / "alone").train()
    trainer = make_trainer(tmp_path / "after")
    weights = [each.detach().clone() for each in trainer.model.parameters()]
    before = random.getstate(), repr(np.random.get_state()), torch.get_rng_state()
    files = sorted(os.listdir(tmp_path / "after"))
    trainer.forecast(steps=2)
    assert sorted(os.listdir(tmp_path / "after")) == files
    assert (random.getstate(), repr(np.random.get_state())) == before[:2]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert all(map(torch.equal, weights, trainer.model.parameters()))
    assert trainer.optimizer is None
    assert trainer.state.global_step == 0
    assert trainer.train().training_loss == expected.training_loss


def test_the_optimizer_of_the_user_is_left_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
    trainer.optimizer = optimizer
    memory = trainer.forecast(steps=1).step_memory
    assert memory is not None
    assert memory.moments == memory.weights
    assert not optimizer.state


def test_shapes_that_depend_on_values_are_counted_by_a_real_step(tmp_path: Path) -> None:
    forecast = make_trainer(tmp_path, Selecting()).forecast(steps=2)
    assert forecast.step_memory is not None
    assert forecast.step_memory.counted_by == "a real step"
    assert any("before one is taken" in note for note in forecast.notes)
    plain = make_trainer(tmp_path).forecast(steps=0).step_memory
    assert plain is not None
    assert forecast.step_memory.peak == pytest.approx(plain.peak, rel=0.2)
    without = make_trainer(tmp_path, Selecting()).forecast(steps=0)
    assert without.step_memory is None


@pytest.mark.matrix
def test_activation_checkpointing_is_counted(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)

    def activations(**arguments: Any) -> int:
        ids = [{"input_ids": torch.arange(48) % 64, "labels": torch.arange(48) % 64} for _ in range(16)]
        trainer = hexloop.Trainer(
            transformers.LlamaForCausalLM(config),
            hexloop.TrainingArguments(str(tmp_path), report_to="none", max_steps=2, **arguments),
            train_dataset=ids,
        )
        memory = trainer.forecast(steps=0).step_memory
        assert memory is not None
        return memory.activations

    assert activations(gradient_checkpointing=True) < 0.6 * activations()


def test_a_run_that_does_not_fit_is_not_tried(tmp_path: Path) -> None:
    from hexloop.app.run.forecasting import forecast_run

    trainer = make_trainer(tmp_path)
    room = Room(50_000, "a small device")
    forecast = forecast_run(trainer._collect_parts(), trainer._copy_for_forecast, 5, room)
    assert forecast.timing is None
    assert any("a small device will run out of memory" in each for each in forecast.warnings)
    assert any("the time, because no step was taken" in each for each in forecast.notes)


class Once:
    """Data that can be read only once."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise AssertionError("a forecast must not read it")


def test_data_that_can_be_read_only_once_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, max_steps=2)
    trainer.train_dataset = Once()
    with pytest.raises(ConfigurationError, match="can be read only once"):
        trainer.forecast()


MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows():
    return [{"x": torch.ones(8) * n, "labels": n % 3} for n in range(24)]
"""

RECIPE = """
model: {{call: forecast_module.Net}}
train_dataset: {{call: forecast_module.rows}}
arguments: {{output_dir: {folder}, max_steps: 30, per_device_train_batch_size: 4, report_to: tensorboard}}
"""

SCRIPT = """
import forecast_module, transformers
args = transformers.TrainingArguments({folder!r}, max_steps=30, per_device_train_batch_size=4)
transformers.Trainer(forecast_module.Net(), args, train_dataset=forecast_module.rows()).train()
raise SystemExit("it went on")
"""


def test_the_command_prints_a_forecast_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "forecast_module.py").write_text(MODULE)
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "runs"
    recipe.write_text(RECIPE.format(folder=folder))
    assert main(["train", str(recipe), "--dry-run", "--measure", "2"]) == 0
    printed = capsys.readouterr().out
    assert "Net: 27 weights, 27 trained, on cpu in fp32" in printed
    assert "Length: 30 steps of 4 samples" in printed
    assert "from 2 measured steps" in printed
    assert not folder.exists()
    assert not list(tmp_path.glob("*tfevents*"))


def test_a_script_is_forecast_at_its_first_train(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "forecast_module.py").write_text(MODULE)
    script, folder = tmp_path / "script.py", tmp_path / "runs"
    script.write_text(SCRIPT.format(folder=str(folder)))
    ended = command("run", "--dry-run", "--measure", "0", script, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Length: 30 steps of 4 samples" in ended.stdout
    assert "it went on" not in ended.stderr
    assert not folder.exists()


def test_the_forecast_is_a_document(tmp_path: Path) -> None:
    document = make_trainer(tmp_path).forecast(steps=0).document()
    assert json.loads(json.dumps(document))["counts"] == {"steps": 16, "evaluations": 2, "saves": 2}
