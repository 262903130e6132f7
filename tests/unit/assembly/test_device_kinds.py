"""The table of kinds of devices: what torch's modules lack, packages that add a kind, and what a row states."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hexloop import ConfigurationError, Trainer, TrainingArguments
from hexloop.adapters.device.torch import AcceleratorDevice
from hexloop.adapters.device.torch.kinds import KINDS, Kind, import_error, is_installed, known_kinds
from hexloop.adapters.trainable.torch.optimizers import choose_optimizer
from hexloop.ports.device import DeviceCapabilities, Memory

ABLE = DeviceCapabilities("bare", frozenset({"fp32"}))


def bare(**functions: Any) -> AcceleratorDevice:
    """Return a device whose module has nothing but these functions."""
    module = SimpleNamespace(device_count=lambda: 1, **functions)
    return AcceleratorDevice("bare", capabilities=ABLE, module=module, name="cpu")


def test_what_a_module_lacks_is_left_out() -> None:
    """Memory is unknown, and the only random generators are those of the CPU."""
    device = bare()
    device.seed(3)
    device.release_memory()
    device.forget_peak_memory()
    exported = list(device.export())
    drawn = torch.rand(3)
    device.load(exported)

    assert device.memory() == Memory(0, 0, 0)
    assert [part.name for part in exported] == ["python", "numpy", "torch"]
    assert torch.equal(torch.rand(3), drawn)


def test_generators_are_found_in_the_part_about_random_numbers() -> None:
    """As in habana_frameworks."""
    own = torch.Generator()
    random = SimpleNamespace(
        manual_seed_all=own.manual_seed,
        get_rng_state=lambda index: own.get_state(),
        get_rng_state_all=lambda: [own.get_state()],
        set_rng_state=lambda state, index: own.set_state(state),
    )
    device = bare(random=random)
    device.seed(3)
    exported = list(device.export())
    drawn = torch.rand(3, generator=own)
    device.load(exported)

    assert torch.equal(torch.rand(3, generator=own), drawn)


@pytest.mark.parametrize(
    ("functions", "formats"),
    [
        ({"get_amp_supported_dtype": lambda: [torch.bfloat16]}, {"fp32", "bf16"}),
        ({"get_amp_supported_dtype": lambda: [torch.float16, torch.float64]}, {"fp32", "fp16"}),
        ({"is_bf16_supported": lambda: True}, {"fp32", "fp16", "bf16"}),
        ({"is_bf16_supported": lambda: False}, {"fp32", "fp16"}),
        ({}, {"fp32", "fp16"}),
    ],
)
def test_formats_are_those_that_the_module_states(functions: dict[str, Any], formats: set[str]) -> None:
    device = AcceleratorDevice("bare", module=SimpleNamespace(**functions))
    assert device.capabilities.precisions == formats


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The preferred kind of device, whose package cannot be imported here."""
    (tmp_path / "torch_broken.py").write_text("raise RuntimeError('no driver\\nand a long trace')")
    monkeypatch.syspath_prepend(tmp_path)
    others = dict(KINDS)
    KINDS.clear()
    KINDS.update({"broken": Kind("broken", lambda _: bare(), packages=("torch_broken",)), **others})
    yield "torch_broken"
    del KINDS["broken"]
    sys.modules.pop("torch_broken", None)
    for each in (import_error, is_installed):
        each.cache_clear()


def test_a_package_that_cannot_be_imported_is_told(
    broken: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run trains on the next kind, with a warning that says why and what to do."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trainer = Trainer(torch.nn.Linear(2, 1), TrainingArguments(str(tmp_path), report_to=[]))
    (told,) = [record.getMessage() for record in caplog.records if broken in record.getMessage()]

    assert trainer.adapters.device.name == next(kind for kind in known_kinds() if KINDS[kind].is_available())
    assert told.startswith("No broken is used")
    assert "RuntimeError: no driver)" in told
    assert f"install the {broken} that was built for torch {torch.__version__}, or remove it" in told
    caplog.clear()
    Trainer(torch.nn.Linear(2, 1), TrainingArguments(str(tmp_path), report_to=[], use_cpu=True))
    assert not caplog.records


def test_every_kind_of_transformers_has_a_row() -> None:
    """In the order in which transformers and accelerate prefer them."""
    assert [*KINDS] == ["xla", "mps", "mlu", "sdaa", "musa", "npu", "hpu", "cuda", "xpu", "neuron", "cpu"]
    assert {name: each.compiler for name, each in KINDS.items() if each.compiler != "inductor"} == {
        "hpu": "hpu_backend",
        "neuron": "neuron",
    }


@pytest.mark.parametrize(
    ("name", "package"), [("adamw_torch_npu_fused", "torch_npu"), ("adamw_torch_xla", "torch_xla")]
)
def test_optimizers_of_a_package_that_is_missing_are_refused(name: str, package: str) -> None:
    said = f"optim='{name}' is not supported: it is of {package}, which is not installed; run `pip install"
    with pytest.raises(ConfigurationError, match=said):
        choose_optimizer(name, 1e-3, (0.9, 0.999), 1e-8, None, "cpu")
