"""Environment variables that are heeded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexloop.app.arguments import TrainingArguments
from hexloop.domain.errors import ConfigurationError


@pytest.mark.parametrize(("value", "on_the_processor"), [("true", True), ("1", True), ("False", False), ("", False)])
def test_the_processor_may_be_asked_for(monkeypatch: pytest.MonkeyPatch, value: str, on_the_processor: bool) -> None:
    """ACCELERATE_USE_CPU trains on the processor where it is a word for true."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", value)
    arguments = TrainingArguments("out")
    assert (arguments.device.type, arguments.n_gpu) == (("cpu", 0) if on_the_processor else ("cuda", 1))


def test_a_word_that_is_no_truth_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable, its value and what to set."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "perhaps")
    with pytest.raises(ConfigurationError, match="ACCELERATE_USE_CPU='perhaps', but it takes a truth value; set true"):
        TrainingArguments("out").device  # noqa: B018


def test_a_device_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCELERATE_TORCH_DEVICE names the device, which use_cpu overrules."""
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    assert TrainingArguments("out").device == torch.device("meta")
    assert TrainingArguments("out", use_cpu=True).device == torch.device("cpu")


def test_the_number_format_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """ACCELERATE_MIXED_PRECISION is the number format where the arguments give none."""
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
def test_compilation_may_be_set(
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    given: dict[str, Any],
    compiling: tuple[bool, str | None, str | None],
) -> None:
    """ACCELERATE_DYNAMO_BACKEND and _MODE compile the model where the arguments do not."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    made = TrainingArguments("out", **given)
    assert (made.torch_compile, made.torch_compile_backend, made.torch_compile_mode) == compiling
