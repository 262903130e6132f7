"""What environment variables do to a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from hexloop.app.arguments.environment import VARIABLES
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.trainers import small_trainer

Observation: TypeAlias = Callable[[Path, pytest.MonkeyPatch], None]


def refusal(folder: Path, **given: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        small_trainer(folder, **given)
    (problem,) = caught.value.problems
    return problem


def on_the_processor(folder: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    environment.setenv("ACCELERATE_USE_CPU", "true")
    assert small_trainer(folder, use_cpu=False).adapters.device.name == "cpu"


def named_device(folder: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ACCELERATE_TORCH_DEVICE", "meta")
    assert "You chose the device meta" in refusal(folder, use_cpu=False)
    environment.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert small_trainer(folder, use_cpu=False).adapters.device.name == "cpu"


def number_format(folder: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trainer, seen = small_trainer(folder), set[torch.dtype]()
    trainer.model.layers[0].register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    trainer.train()
    assert seen == {torch.bfloat16}
    environment.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    assert "the precision fp8, but the device cpu computes in" in refusal(folder)


def compilation(folder: Path, environment: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def compiled(module: nn.Module, *_: Any, **options: Any) -> nn.Module:
        asked.append(options)
        return module

    environment.setattr(torch, "compile", compiled)
    environment.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    environment.setenv("ACCELERATE_DYNAMO_MODE", "max-autotune")
    small_trainer(folder).train()
    assert [(each["backend"], each["mode"]) for each in asked] == [("eager", "max-autotune")]


def tensorboard_folder(folder: Path, environment: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    environment.setenv("TENSORBOARD_LOGGING_DIR", str(folder / "mine"))
    small_trainer(folder / "run", parts={"loggers": None}, report_to="tensorboard").train()
    assert list((folder / "mine").glob("events.*"))


def launcher(folder: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2, local_rank=-1), but hexloop trains in one process yet" in refusal(folder)
    environment.setenv("WORLD_SIZE", "1")
    small_trainer(folder)
    environment.setenv("WORLD_SIZE", "many")
    assert "WORLD_SIZE is 'many', but it takes a number of processes; unset it." in refusal(folder)


def engine(name: str, said: str) -> Observation:
    def refused(folder: Path, environment: pytest.MonkeyPatch) -> None:
        environment.setenv(name, "1")
        assert refusal(folder).startswith(f"You chose {said}")
        environment.setenv(name, "false")
        small_trainer(folder)

    return refused


def deepspeed(folder: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    environment.setenv("ACCELERATE_GRADIENT_CLIPPING", "0.25")
    assert "You chose gradient_clipping=0.25 in DeepSpeed's configuration" in refusal(folder)
    environment.setenv("ACCELERATE_USE_DEEPSPEED", "false")
    small_trainer(folder)


OBSERVATIONS: dict[str, Observation] = {
    "ACCELERATE_USE_CPU": on_the_processor,
    "ACCELERATE_TORCH_DEVICE": named_device,
    "ACCELERATE_MIXED_PRECISION": number_format,
    "ACCELERATE_DYNAMO_BACKEND": compilation,
    "ACCELERATE_DYNAMO_MODE": compilation,
    "TENSORBOARD_LOGGING_DIR": tensorboard_folder,
    "WORLD_SIZE": launcher,
    "ACCELERATE_USE_DEEPSPEED": deepspeed,
    "ACCELERATE_USE_FSDP": engine("ACCELERATE_USE_FSDP", "FSDP"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": engine("ACCELERATE_USE_PARALLELISM_CONFIG", "several dimensions of devices"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_has_its_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is listed changes what a run does, or is refused."""
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    OBSERVATIONS[name](tmp_path, monkeypatch)
