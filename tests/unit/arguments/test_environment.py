"""Environment variables that set arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError


@pytest.mark.parametrize(("value", "on_the_processor"), [("true", True), ("1", True), ("False", False), ("", False)])
def test_use_cpu_variable(monkeypatch: pytest.MonkeyPatch, value: str, on_the_processor: bool) -> None:
    """ACCELERATE_USE_CPU selects the CPU if it is a true value."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", value)
    arguments = TrainingArguments("out")
    assert (arguments.device.type, arguments.n_gpu) == (("cpu", 0) if on_the_processor else ("cuda", 1))


def test_invalid_boolean_variable_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable, its value and the accepted values."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "perhaps")
    with pytest.raises(ConfigurationError, match="ACCELERATE_USE_CPU='perhaps', but it takes a truth value; set true"):
        TrainingArguments("out").device  # noqa: B018


def test_device_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCELERATE_TORCH_DEVICE selects the device unless use_cpu is set."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    assert TrainingArguments("out").device == torch.device("meta")
    assert TrainingArguments("out", use_cpu=True).device == torch.device("cpu")


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("rocket", "hexloop has no adapter for it"),
        ("mlu:0", "torch does not find it on this machine"),
        ("cpu:x", "what follows the colon must be a number, as in cuda:0"),
        ("cuda:", "what follows the colon must be a number, as in cuda:0"),
        ("cuda:-1", "what follows the colon must be a number, as in cuda:0"),
    ],
)
def test_a_device_that_torch_does_not_have(monkeypatch: pytest.MonkeyPatch, named: str, reason: str) -> None:
    """The message says why it is missing."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", named)
    with pytest.raises(ConfigurationError, match=f"^The device {named} cannot be used: {reason}\\. Choose another"):
        TrainingArguments("out").device  # noqa: B018


def test_mixed_precision_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCELERATE_MIXED_PRECISION sets the precision if the arguments do not."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert TrainingArguments("out").mixed_precision == "bf16"
    assert TrainingArguments("out", fp16=True).mixed_precision == "fp16"


COMPILING: list[tuple[dict[str, str], dict[str, Any], tuple[bool, str | None, str | None]]] = [
    ({}, {}, (False, None, None)),
    ({"ACCELERATE_DYNAMO_BACKEND": "no"}, {}, (False, None, None)),
    ({"ACCELERATE_DYNAMO_BACKEND": "EAGER", "ACCELERATE_DYNAMO_MODE": "default"}, {}, (True, "eager", None)),
    (
        {"ACCELERATE_DYNAMO_BACKEND": "inductor", "ACCELERATE_DYNAMO_MODE": "max-autotune"},
        {},
        (True, "inductor", "max-autotune"),
    ),
    ({"ACCELERATE_DYNAMO_BACKEND": "inductor"}, {"torch_compile_backend": "eager"}, (True, "eager", None)),
]


@pytest.mark.parametrize(("variables", "given", "compiling"), COMPILING, ids=str)
def test_dynamo_variables(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    given: dict[str, Any],
    compiling: tuple[bool, str | None, str | None],
) -> None:
    """ACCELERATE_DYNAMO_BACKEND and _MODE turn on compilation if the arguments do not."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = TrainingArguments("out", **given)
    assert (made.torch_compile, made.torch_compile_backend, made.torch_compile_mode) == compiling
