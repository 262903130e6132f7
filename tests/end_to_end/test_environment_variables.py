"""The effect of each environment variable on a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from hexloop import TrainingArguments
from hexloop.adapters.device.torch.kinds import KINDS, import_error, is_installed
from hexloop.app.environment import VARIABLES, Launched, launched
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
    assert "The device meta cannot be used" in refusal(folder, use_cpu=False)
    environment.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert small_trainer(folder, use_cpu=False).adapters.device.name == "cpu"


def without_xla(folder: Path, environment: pytest.MonkeyPatch) -> None:
    """A torch_xla that cannot be imported is told, unless it is turned off."""
    folder.mkdir(exist_ok=True)
    (folder / "torch_xla.py").write_text("raise ImportError('built for another torch')")
    environment.syspath_prepend(folder)
    for each in (import_error, is_installed):
        each.cache_clear()
    try:
        found = KINDS["xla"].broken()
        assert found is not None
        assert "built for another torch" in found.reason
        environment.setenv("USE_TORCH_XLA", "false")
        assert KINDS["xla"].broken() is None
        assert not KINDS["xla"].is_available()
    finally:
        for each in (import_error, is_installed):
            each.cache_clear()


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
    for name, value in {"WORLD_SIZE": 6, "RANK": 5, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        environment.setenv(name, str(value))
    environment.setenv("MASTER_ADDR", "node7")
    environment.setenv("MASTER_PORT", "4711")
    assert launched() == Launched("torchrun", 5, 6, 1, 2, "node7", 4711)
    arguments = TrainingArguments(str(folder), use_cpu=True)
    assert (arguments.world_size, arguments.process_index, arguments.local_process_index) == (6, 5, 1)
    environment.setenv("RANK", "6")
    assert "RANK=6 and WORLD_SIZE=6, but ranks count from 0" in refusal(folder)
    environment.setenv("RANK", "first")
    assert "RANK is 'first', but a launcher" in refusal(folder)
    environment.delenv("RANK")
    environment.delenv("WORLD_SIZE")
    environment.setenv("ACCELERATE_USE_CPU", "true")
    environment.setenv("ACCELERATE_DYNAMO_BACKEND", "no")
    assert "`accelerate launch` was asked for several processes, but it started this one only" in refusal(folder)
    environment.setenv("RANK", "0")
    environment.setenv("WORLD_SIZE", "1")
    environment.setenv("LOCAL_RANK", "0")
    small_trainer(folder)


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
    "USE_TORCH_XLA": without_xla,
    "ACCELERATE_MIXED_PRECISION": number_format,
    "ACCELERATE_DYNAMO_BACKEND": compilation,
    "ACCELERATE_DYNAMO_MODE": compilation,
    "TENSORBOARD_LOGGING_DIR": tensorboard_folder,
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), launcher),
    "ACCELERATE_USE_DEEPSPEED": deepspeed,
    "ACCELERATE_USE_FSDP": engine("ACCELERATE_USE_FSDP", "FSDP"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": engine("ACCELERATE_USE_PARALLELISM_CONFIG", "multi-dimensional device meshes"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_has_its_effect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each variable in the list changes a run, or is refused."""
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    OBSERVATIONS[name](tmp_path, monkeypatch)
