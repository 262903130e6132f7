"""The calls of Transformer Engine, on a stand-in for the package, which needs a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import Tensor, nn

from hexloop import ConfigurationError, Trainer
from hexloop.adapters.device.torch import CpuDevice
from hexloop.adapters.precision.transformer_engine import TransformerEnginePrecision
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import arguments
from tests.unit.precision.models import wide


class EngineLinear(nn.Linear):
    """Has the constructor and the extra state of the package's layer; its state is a pickle there."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, params_dtype: Any = None, device: Any = "cuda"
    ) -> None:
        super().__init__(in_features, out_features, bias, device, params_dtype)

    def get_extra_state(self) -> Tensor:
        return torch.zeros(3, dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        raise AssertionError("a pickle would be read")

    def forward(self, x: Tensor) -> Tensor:
        ENTERED.append(ENABLED[-1])
        return super().forward(x)


ENABLED: list[tuple[bool, Any]] = [(False, None)]
ENTERED: list[tuple[bool, Any]] = []


@contextmanager
def fp8_autocast(enabled: bool, fp8_recipe: Any) -> Iterator[None]:
    ENABLED.append((enabled, fp8_recipe))
    try:
        yield
    finally:
        ENABLED.pop()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package, as far as it is used."""

    def recipe(name: str) -> Any:
        return lambda **options: (name, options)

    contents: dict[str, dict[str, Any]] = {
        "": {},
        ".pytorch": {"Linear": EngineLinear, "fp8_autocast": fp8_autocast},
        ".pytorch.fp8": {"check_mxfp8_support": lambda: (False, "needs compute capability 10.0")},
        ".common": {},
        ".common.recipe": {
            "Format": SimpleNamespace(HYBRID="hybrid", E4M3="e4m3"),
            "DelayedScaling": recipe("delayed"),
            "MXFP8BlockScaling": recipe("blocks"),
        },
    }
    modules = {}
    for path, values in contents.items():
        name = f"transformer_engine{path}"
        modules[name] = module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        vars(module).update(values, __path__=[])
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(modules[parent], last, module)
        monkeypatch.setitem(sys.modules, name, module)
    ENTERED.clear()


@pytest.mark.usefixtures("engine")
def test_layers_are_replaced_with_their_weights() -> None:
    """The same layers as by torchao; they have no state but their weights, and keep what is frozen."""
    model = wide()
    model.inner[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    TransformerEnginePrecision("cpu").convert(model)
    layers = [name for name, module in model.named_modules() if isinstance(module, EngineLinear)]
    assert layers == ["inner.0", "inner.3"]
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert not model.inner[0].weight.requires_grad
    assert model.inner[3].weight.requires_grad
    kept = list(model.modules())
    TransformerEnginePrecision("cpu").convert(model)
    assert list(model.modules()) == kept


@pytest.mark.usefixtures("engine")
def test_the_forward_pass_is_in_8_bits_while_training() -> None:
    """With the recipe of the options; evaluations compute in bf16 unless asked for."""
    options = {"fp8_format": "E4M3", "margin": 2, "amax_compute_algo": "max"}
    expected = ("delayed", {"fp8_format": "e4m3", "margin": 2, "amax_compute_algo": "max"})
    for further, in_evaluation in (({}, False), ({"use_autocast_during_eval": True}, True)):
        precision, model = TransformerEnginePrecision("cpu", {**options, **further}), wide()
        precision.convert(model)
        forward = precision.wrap(model.forward)
        assert forward(torch.ones(2, 4))["logits"].dtype == torch.bfloat16
        model.eval()
        forward(torch.ones(2, 4))
        assert ENTERED[:2] == [(True, expected)] * 2
        assert ENTERED[2:] == [(in_evaluation, expected)] * 2
        ENTERED.clear()


@pytest.mark.usefixtures("engine")
def test_a_device_without_scales_of_blocks_is_refused() -> None:
    """The package's own reason is shown."""
    with pytest.raises(ConfigurationError, match=r"cannot scale blocks \(needs compute capability 10.0\)"):
        TransformerEnginePrecision("cpu", {"use_mxfp8_block_scaling": True}).convert(wide())


@pytest.mark.usefixtures("engine")
def test_a_run_trains_with_it(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """On a device with products of 8 bits; a checkpoint lacks the package's own state, of which a message tells."""
    device = CpuDevice()
    device.capabilities = evolve(device.capabilities, precisions=device.capabilities.precisions | {"fp8"})
    trainer = Trainer(
        wide(), arguments(tmp_path, fp8="te", save_strategy="steps", save_steps=2), train_dataset=rows(16),
        device=device, loggers=[],
    )  # fmt: skip
    trainer.train()
    assert trainer.adapters.precision.name == "fp8"
    assert ENTERED == [(True, ("delayed", {}))] * 8
    assert "Checkpoints do not contain the maxima" in caplog.text
    assert (tmp_path / "checkpoint-4" / "model.safetensors").exists()


def test_without_the_package_or_such_a_device(tmp_path: Any) -> None:
    """Both are told before anything is trained, with what to do."""
    with pytest.raises(ConfigurationError) as caught:
        Trainer(wide(), arguments(tmp_path, fp8="transformer_engine"), train_dataset=rows(4))
    problems = "\n".join(caught.value.problems)
    assert "the precision fp8, but the device cpu has no products of 8 bits" in problems
    assert "the package transformer_engine is not installed; run `pip install 'transformer-engine" in problems
