"""Contract of the engine ports, run on one process and on a toy engine, and runs with an engine from a package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainingArguments
from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.engines.single.engine import ENGINE as SINGLE
from hexloop.adapters.trainable.least_squares import LeastSquares, LinearModel, MomentumOptimizer, Row, Scalar
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable
from hexloop.app.engines import installed_rows
from hexloop.app.testing.contracts.processes import EngineContract
from hexloop.app.testing.resume_exactness import assert_resume_exact
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from tests.contracts import toy_engine
from tests.contracts.least_squares import ROWS

Batch = Sequence[Row]


class OnLeastSquares(EngineContract[LinearModel, Batch, Scalar]):
    """One process, on the least-squares model."""

    def engine(self) -> Engine[Any, Scalar]:
        return SINGLE

    def arguments(self) -> Any:
        return SimpleNamespace(n_gpu=0, steps_in_backward=False)

    def model(self) -> LinearModel:
        return LinearModel()

    def optimizer(self, model: LinearModel) -> MomentumOptimizer:
        return MomentumOptimizer(model)

    def trainable(self, model: LinearModel, optimizer: MomentumOptimizer) -> LeastSquares:
        return LeastSquares(model, optimizer)

    def batch(self) -> Batch:
        return ROWS


class TestSingleProcess(OnLeastSquares):
    """One process."""


class Line(nn.Module):
    """A linear model that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


ROWS_OF_TENSORS = [{"x": torch.tensor([x / 8]), "labels": torch.tensor([x / 4 + 1])} for x in range(16)]


class OnLine(EngineContract[nn.Module, dict[str, Tensor], Tensor]):
    """The toy engine, on a torch model."""

    def engine(self) -> Engine[Any, Tensor]:
        return toy_engine.ENGINE

    def arguments(self) -> Any:
        return SimpleNamespace()

    def device(self) -> Device:
        return CpuDevice()

    def model(self) -> nn.Module:
        return Line()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def trainable(self, model: nn.Module, optimizer: Any) -> TorchTrainable:
        return TorchTrainable(model, optimizer, ModelLoss())

    def batch(self) -> dict[str, Tensor]:
        return {"x": torch.tensor([[0.5], [1.0]]), "labels": torch.tensor([[2.0], [3.0]])}


class TestToyEngine(OnLine):
    """The toy engine."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package that offers the toy engine through the entry point group "hexloop.engines"."""
    information = tmp_path / "site" / "toy_engine-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-engine\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[hexloop.engines]\ntoy = tests.contracts.toy_engine:ROW\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    installed_rows.cache_clear()
    yield
    installed_rows.cache_clear()


def trainer(folder: Path, **given: Any) -> Trainer:
    """Return a Trainer whose run name selects the toy engine if that is installed."""
    arguments = TrainingArguments(
        str(folder), use_cpu=True, run_name="toy", report_to=[], disable_tqdm=True, learning_rate=0.1, **given
    )
    return Trainer(Line(), arguments, train_dataset=ROWS_OF_TENSORS)


def test_one_process_is_used_without_the_package(tmp_path: Path) -> None:
    """The engine is only selected if its package is installed."""
    assert trainer(tmp_path).adapters.engine is SINGLE


@pytest.mark.usefixtures("installed")
def test_an_installed_engine_trains_as_one_process_does(tmp_path: Path) -> None:
    """Weights and logged losses are those of a run without the engine."""
    given = {"max_steps": 6, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1}
    with_toy = trainer(tmp_path / "toy", **given)
    assert with_toy.adapters.parallelism.capabilities.name == "toy"
    with_toy.train()
    alone = trainer(tmp_path / "alone", **given)
    alone.adapters.parallelism, alone.adapters.engine = SINGLE.make(alone.args, CpuDevice()), SINGLE
    alone.train()

    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (with_toy, alone)]
    assert losses[0] == losses[1]
    assert all(map(torch.equal, with_toy.model.parameters(), alone.model.parameters()))


@pytest.mark.usefixtures("installed")
def test_a_run_with_an_installed_engine_resumes_exactly(tmp_path: Path) -> None:
    """A run that was interrupted at a checkpoint and resumed is bit-identical to an uninterrupted run."""
    assert_resume_exact(lambda folder: trainer(Path(folder), max_steps=6, save_steps=2, weight_decay=0.1))
