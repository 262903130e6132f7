"""The contract suites on the device, and training on it; `tests/engines/test_private_device.py` runs this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hexloop import TrainingArguments
from hexloop.adapters.device.torch import AcceleratorDevice
from hexloop.adapters.snapshots.torch import TorchSnapshots
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.app.command_line.doctor import _devices
from hexloop.app.testing.contracts.devices import DeviceContract
from hexloop.ports.device import Device
from tests.contracts import test_torch as on_cpu
from tests.contracts.test_snapshots import OfTensors
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights
from tests.private_device import MEMORY, NAME, register

pytestmark = [
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning"),
    pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning"),
    pytest.mark.filterwarnings("ignore:PRETEND reports that you have 2 available devices:UserWarning"),
]

EXTENSION = register()
DEVICE = f"{NAME}:0"


class TestDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return AcceleratorDevice(NAME)

    def draw(self, device: Device) -> float:
        return float(torch.rand((), device=device.name) + torch.rand(()))

    def out_of_memory(self, device: Device) -> BaseException:
        return torch.OutOfMemoryError(f"{NAME} out of memory")

    def test_it_measures_memory(self, device: Device) -> None:
        """A tensor counts as memory in use while it exists, and in the peak until that is reset."""
        device.forget_peak_memory()
        before = device.memory()
        tensor = torch.zeros(1 << 20, dtype=torch.uint8, device=device.name)
        during = device.memory()
        del tensor
        after = device.memory()
        device.forget_peak_memory()

        assert during.used - before.used == during.peak - before.peak == after.peak - before.peak == 1 << 20
        assert after.used == before.used == device.memory().peak
        assert device.memory().total == MEMORY


class TestTorchTrainable(on_cpu.TestTorchTrainable):
    device_name = DEVICE


class TestStandardLearner(on_cpu.TestStandardLearnerOnTorch):
    device_name = DEVICE


class TestPlainPrecision(on_cpu.TestPlainPrecisionOnTorch):
    device_name = DEVICE


class TestBf16Precision(on_cpu.TestBf16Precision):
    device_name = DEVICE


class TestFp16Precision(on_cpu.TestFp16Precision):
    device_name = DEVICE


class TestSingleProcess(on_cpu.TestSingleProcessOnTorch):
    device_name = DEVICE


class TestTorchLosses(on_cpu.TestTorchLosses):
    device_name = DEVICE


class TestRunningLoss(on_cpu.TestRunningLoss):
    device_name = DEVICE


class TestTorchEvaluator(on_cpu.TestTorchEvaluator):
    device_name = DEVICE


# Snapshots


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device has too little memory left for a copy."""
    monkeypatch.setattr(getattr(torch, NAME), "mem_get_info", lambda device: (0, MEMORY))


class TestSnapshots(OfTensors):
    device_name = DEVICE


@pytest.mark.usefixtures("full")
class TestSnapshotsWithoutRoom(OfTensors):
    device_name = DEVICE


def memory_of_a_copy() -> int:
    """Return how many bytes of the device a copy of 4 MiB takes; check the copy."""
    weight = torch.arange(1 << 20, dtype=torch.float32).to(DEVICE)
    device = AcceleratorDevice(NAME)
    device.forget_peak_memory()
    before = device.memory()
    (taken,) = TorchSnapshots().take("model", [tensor_part("weight", weight)])
    assert bytes(taken.read()) == bytes(weight.cpu().numpy().data)
    assert device.memory().used == before.used
    return device.memory().peak - before.used


def test_a_copy_is_staged_on_the_device() -> None:
    """It takes as much memory there as the tensors, and none afterwards."""
    assert memory_of_a_copy() == 1 << 22


@pytest.mark.usefixtures("full")
def test_a_copy_takes_no_memory_of_a_full_device() -> None:
    """It goes to pinned memory directly."""
    assert memory_of_a_copy() == 0


# Training


def trained(folder: Path, resume: str | None = None, dropout: float = 0.0, **given: Any) -> Any:
    """Return the Trainer of a run of several epochs on the preferred device."""
    chosen: dict[str, Any] = {"num_train_epochs": 5, "max_grad_norm": 0.5, "use_cpu": False, **given}
    trainer = small_trainer(folder, parts={"model": net(dropout), "eval_dataset": rows(8, seed=1)}, **chosen)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def on_host(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


@pytest.mark.parametrize("given", [{}, {"optim": "sgd", "gradient_accumulation_steps": 2}, {"optim": "adamw_torch"}])
def test_it_trains_as_the_cpu_does(tmp_path: Path, given: dict[str, Any]) -> None:
    """The losses and the weights agree to 1e-6; the operations were carried out on the device."""
    before = EXTENSION.operations()
    ours = trained(tmp_path / "device", eval_strategy="epoch", **given)
    on_device = EXTENSION.operations() - before
    theirs = trained(tmp_path / "cpu", eval_strategy="epoch", use_cpu=True, **given)

    assert ours.adapters.device.name == DEVICE
    assert {each.device for each in ours.model.parameters()} == {torch.device(DEVICE)}
    assert on_device > 500
    for one, other in zip(history(ours), history(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-6)
    for name, tensor in on_host(weights(ours)).items():
        torch.testing.assert_close(tensor, theirs.model.state_dict()[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_it_trains_in_mixed_precision(tmp_path: Path, precision: str) -> None:
    """Under the rules of autocast that the device brings."""
    chosen: dict[str, Any] = {precision: True}
    mixed = trained(tmp_path / precision, **chosen)
    on_cpu, full = trained(tmp_path / "cpu", use_cpu=True, **chosen), trained(tmp_path / "fp32")

    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (mixed, on_cpu, full)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[2]


def test_a_run_resumes_exactly(tmp_path: Path) -> None:
    """With numbers that are drawn on the device."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 7, "dropout": 0.3}
    whole = trained(tmp_path / "whole", **saving)
    torch.get_device_module(NAME).manual_seed_all(99)
    again = trained(tmp_path / "again", str(tmp_path / "whole" / "checkpoint-7"), **saving)

    assert same_weights(on_host(weights(again)), on_host(weights(whole)))
    assert history(again)[:-1] == history(whole)[:-1]


def test_it_is_detected_and_reported() -> None:
    """The arguments choose it before the CPU, and the doctor lists what it can do."""
    assert TrainingArguments("out").device == torch.device(DEVICE)
    found = {each.description: each.precisions for each in _devices()}
    assert found["Pretend 1, 1 GiB"] == {"fp32": "works", "bf16": "works", "fp16": "works"}
