"""An accelerator that is added by a row of the table of kinds alone. Its calls are answered by the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hexloop import Trainer, TrainingArguments
from hexloop.adapters.device.torch import AcceleratorDevice
from hexloop.adapters.device.torch.kinds import KINDS, Kind
from hexloop.app.command_line.doctor import _devices
from hexloop.app.testing.contracts.devices import DeviceContract
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device, DeviceCapabilities
from tests.end_to_end.small.models import Net
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


class Functions:
    """What torch's module of such a kind would have."""

    def __init__(self) -> None:
        self.generators = [torch.Generator(), torch.Generator()]
        self.calls: list[str] = []

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(self.generators)

    def is_bf16_supported(self) -> bool:
        return True

    def get_device_name(self, index: int) -> str:
        return f"Pretender {index}"

    def get_device_properties(self, index: int) -> Any:
        return SimpleNamespace(total_memory=16 * 2**30)

    def memory_allocated(self, index: int) -> int:
        return 100

    def max_memory_allocated(self, index: int) -> int:
        return 100 if "reset_peak_memory_stats" in self.calls else 200

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def reset_peak_memory_stats(self, index: int) -> None:
        self.calls.append("reset_peak_memory_stats")

    def manual_seed_all(self, seed: int) -> None:
        for each in self.generators:
            each.manual_seed(seed)

    def get_rng_state(self, index: int) -> torch.Tensor:
        return self.generators[index].get_state()

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [each.get_state() for each in self.generators]

    def set_rng_state(self, state: torch.Tensor, index: int) -> None:
        self.generators[index].set_state(state)


def row(functions: Functions) -> Kind:
    """Return the row of the table."""
    able = DeviceCapabilities("pretender", frozenset({"fp32", "bf16"}))
    make = partial(AcceleratorDevice, "pretender", capabilities=able, module=functions, name="cpu")
    return Kind("pretender", make, module=functions, computes_on="cpu", compiler="pretending")


class TestMadeUpAccelerator(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        self.functions = Functions()
        found = row(self.functions).device(0)
        assert found is not None
        return found

    def draw(self, device: Device) -> float:
        return torch.rand(1, generator=self.functions.generators[0]).item() + torch.rand(1).item()

    def out_of_memory(self, device: Device) -> BaseException:
        return torch.OutOfMemoryError("Pretender out of memory")


@pytest.fixture
def functions() -> Iterator[Functions]:
    """The preferred accelerator of this machine."""
    made, others = Functions(), dict(KINDS)
    KINDS.clear()
    KINDS.update({"pretender": row(made), **others})
    yield made
    del KINDS["pretender"]


class Noisy(Net):
    """Adds noise that is drawn on the device."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.draw = functions.generators[0]

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        return super().forward(x + 0.1 * torch.randn(x.shape, generator=self.draw), labels)


def noisy_trainer(folder: Path, functions: Functions) -> Any:
    """Return a Trainer of four steps, which saves at the second."""
    torch.manual_seed(7)
    return small_trainer(folder, parts={"model": Noisy(functions)}, use_cpu=False, save_strategy="steps", save_steps=2)


def test_a_run_trains_and_resumes_on_it(functions: Functions, tmp_path: Path) -> None:
    """The run reports it, reads its memory, and continues its random stream bit-identically after a resume."""
    whole = noisy_trainer(tmp_path, functions)
    assert whole.adapters.device.capabilities.kind == "pretender"
    whole.train()
    functions.manual_seed_all(99)
    again = noisy_trainer(tmp_path, functions)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert same_weights(weights(again), weights(whole))
    assert history(again)[-3:-1] == history(whole)[-3:-1]


def test_it_is_detected_and_reported(functions: Functions) -> None:
    """The arguments choose it, each process of a machine another one, and the doctor lists them."""
    arguments = TrainingArguments("out")
    assert (arguments.device_name, arguments.device, arguments.n_gpu) == ("pretender:0", torch.device("cpu"), 1)
    assert TrainingArguments("out", torch_compile=True).torch_compile_backend == "pretending"
    assert KINDS["pretender"].chosen(local_rank=3) == "pretender:1"
    found = {each.description: each.precisions for each in _devices()}
    assert found["Pretender 1, 16 GiB"]["bf16"] == "works"


def test_a_number_that_it_lacks_is_refused(functions: Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the device and says that it is not there."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "pretender:2")
    with pytest.raises(ConfigurationError, match="The device pretender:2 cannot be used: torch does not find it"):
        Trainer(torch.nn.Linear(2, 1), TrainingArguments("out", report_to=[]))
