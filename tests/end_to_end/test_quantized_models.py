"""Quantized models that cannot be trained are refused at construction, by transformers' rule."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import trainer_utils
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from hexloop import Trainer
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.quantizers import METHODS, PAGE, table
from tests.end_to_end.small.models import Net, net
from tests.end_to_end.small.trainers import small_trainer

validate: Any = trainer_utils.validate_quantization_for_training


class Adapted(Net):
    """A model that is recognized as PEFT's."""


class AdaptedMixed(Net):
    """The same, with mixed adapters."""


def quantized(kind: type[Net] = Net, trainable: bool = True, aware: bool = False, loaded: bool = False) -> Any:
    """Return a model with the attributes that transformers sets on quantized ones."""
    model: Any = net(kind=kind)
    model.is_quantized = True
    model.hf_quantizer = SimpleNamespace(
        is_trainable=trainable, is_qat_trainable=aware, quantization_config=SimpleNamespace(quant_method="four_bits")
    )
    if loaded:
        model._hf_peft_config_loaded = True
    return model


def _without_quantizer() -> Any:
    model = quantized()
    del model.hf_quantizer
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "without adapters": (quantized, "has no trainable adapters"),
    "without adapters, and without a quantizer": (_without_quantizer, "by an unknown method"),
    "with adapters, by a method that cannot be trained": (lambda: quantized(Adapted, trainable=False), "four_bits"),
    "of quantization-aware training that cannot be trained": (
        lambda: quantized(trainable=False, aware=True), "does not support training"
    ),
    "compiled": (lambda: torch.compile(quantized(Adapted), backend="eager"), "without torch.compile"),
}  # fmt: skip

TRAINED: dict[str, Any] = {
    "not quantized": net,
    "with adapters": lambda: quantized(Adapted),
    "with adapters of several kinds": lambda: quantized(AdaptedMixed),
    "with adapters that transformers added": lambda: quantized(loaded=True),
    "with quantization-aware training": lambda: quantized(aware=True),
}


@pytest.fixture(autouse=True)
def _peft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return PEFT's two classes, as if its package were loaded."""
    peft: Any = SimpleNamespace(PeftModel=Adapted, PeftMixedModel=AdaptedMixed)
    monkeypatch.setitem(sys.modules, "peft", peft)
    adapted = (Adapted, AdaptedMixed)
    monkeypatch.setattr("transformers.trainer_utils._is_peft_model", lambda model: isinstance(model, adapted))


@pytest.mark.parametrize("name", REFUSED)
def test_a_quantized_model_that_cannot_be_trained_is_refused(tmp_path: Path, name: str) -> None:
    """The error names the alternatives; transformers refuses it, too."""
    make, words = REFUSED[name]

    def init() -> Any:
        return make()

    with pytest.raises(ConfigurationError, match=words):
        small_trainer(tmp_path, parts={"model": make()})
    with pytest.raises(ConfigurationError, match=words):
        small_trainer(tmp_path, parts={"model_init": init})
    with pytest.raises(ValueError, match="fine-tun"):
        validate(make())


@pytest.mark.parametrize("name", TRAINED)
def test_a_trainable_quantized_model_trains(tmp_path: Path, name: str) -> None:
    """As in transformers."""
    validate(TRAINED[name]())
    trainer: Trainer = small_trainer(tmp_path, parts={"model": TRAINED[name]()}, max_steps=1)
    assert trainer.train().global_step == 1


# The table of methods in the documentation


@pytest.mark.parametrize("name", METHODS)
def test_the_table_has_transformers_rules(name: str) -> None:
    """What the table says of a method is what its quantizer says, with the options of the condition and without."""
    method = METHODS[name]
    kind: Any = AUTO_QUANTIZER_MAPPING[name]

    def says(options: dict[str, Any]) -> tuple[bool, bool]:
        quantizer: Any = object.__new__(kind)
        quantizer.quantization_config = SimpleNamespace(**options)
        vars(quantizer).update({key: value for key, value in options.items() if key == "use_fp8_kernel"})
        return bool(quantizer.is_trainable), bool(quantizer.is_qat_trainable)

    if method.trains is not None:
        assert says({}) == (method.trains, method.aware)
    elif method.trained_with:
        assert says(dict(method.trained_with)) == (True, method.aware)
        assert not says(dict(method.refused_with))[0]
    elif name == "torchao":
        eight, four = (type(each, (), {})() for each in ("Int8WeightOnlyConfig", "Int4WeightOnlyConfig"))
        assert says({"quant_type": eight})[0]
        assert not says({"quant_type": four})[0]
    else:  # the version of a package decides
        with pytest.raises(PackageNotFoundError):
            says({})


def test_the_table_is_complete() -> None:
    """It has every method that transformers knows, and the page has the table."""
    assert METHODS.keys() == AUTO_QUANTIZER_MAPPING.keys()
    assert table() in PAGE.read_text()
