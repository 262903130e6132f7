"""The effect of each environment variable on a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from hexloop import TrainingArguments
from hexloop.adapters.device.torch.kinds import KINDS, import_error, is_installed
from hexloop.adapters.hub import MemoryHub
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
    environment.setenv("ACCELERATE_MIXED_PRECISION", "fp4")
    assert "the precision fp4, but the device cpu computes in" in refusal(folder)


def eight_bits(folder: Path, environment: pytest.MonkeyPatch) -> None:
    """Each variable is read with the options of its package; tests/unit/arguments/test_formats.py has their values."""
    environment.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    read = {}
    for variable, backend, value in EIGHT_BITS:
        environment.setenv("ACCELERATE_FP8_BACKEND", backend)
        environment.setenv(variable, value)
        read[variable] = TrainingArguments(str(folder), use_cpu=True).fp8_recipe
        environment.delenv(variable)
    assert {recipe.backend for recipe in read.values() if recipe is not None} == {"torchao", "transformer_engine"}
    assert all(recipe is not None and len(recipe.options) == 1 for recipe in read.values())


EIGHT_BITS = (
    ("ACCELERATE_FP8_PAD_INNER_DIM", "ao", "true"),
    ("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "ao", "true"),
    ("ACCELERATE_FP8_FORMAT", "te", "E4M3"),
    ("ACCELERATE_FP8_MARGIN", "te", "1"),
    ("ACCELERATE_FP8_INTERVAL", "te", "1"),
    ("ACCELERATE_FP8_AMAX_HISTORY_LEN", "te", "16"),
    ("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "te", "max"),
    ("ACCELERATE_FP8_OVERRIDE_FPROP", "te", "true"),
    ("ACCELERATE_FP8_OVERRIDE_DGRAD", "te", "true"),
    ("ACCELERATE_FP8_OVERRIDE_WGRAD", "te", "true"),
    ("ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL", "te", "true"),
    ("ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING", "te", "true"),
)
"""The variables of fp8 besides that of the package, the package of each, and a value."""


def sagemaker(folder: Path, environment: pytest.MonkeyPatch) -> None:
    """Model parallelism is refused; data parallelism becomes DDP over the processes of SageMaker's launcher."""
    environment.setenv("SM_HP_MP_PARAMETERS", '{"partitions": 2}')
    small_trainer(folder)  # which transformers also takes as long as SageMaker does not start the processes
    environment.setenv("SM_FRAMEWORK_PARAMS", '{"sagemaker_mpi_enabled": true}')
    assert "SageMaker's model parallelism" in refusal(folder)
    environment.setenv("SM_HP_MP_PARAMETERS", "{}")
    small_trainer(folder)
    environment.setenv("SM_FRAMEWORK_PARAMS", '{"sagemaker_distributed_dataparallel_enabled": true}')
    told: list[str] = []
    environment.setattr(logging.getLogger("hexloop"), "warning", lambda text, *values: told.append(text % values))
    small_trainer(folder)
    assert ["this run has 1 of its processes" in each for each in told] == [True]


def sagemakers_machines(folder: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    for name, value in (("RANK", 3), ("SIZE", 4), ("LOCAL_RANK", 1), ("LOCAL_SIZE", 2)):
        environment.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    assert launched() == Launched("Open MPI", 3, 4, 1, 2, "algo-1", 29500)
    environment.setenv("MASTER_ADDR", "node7")
    assert launched().address == "node7"


def sagemakers_marks(folder: Path, environment: pytest.MonkeyPatch) -> None:
    (folder / ".gitignore").write_text("*.log\n", encoding="utf-8")
    for name in ("model.safetensors", "model.safetensors.sagemaker-uploading", "a.sagemaker-uploaded"):
        (folder / name).touch()
    hub = MemoryHub()
    for on_sagemaker in (False, True):
        if on_sagemaker:
            environment.setenv("SM_TRAINING_ENV", "{}")
        small_trainer(folder, parts={"hub": hub}, hub_model_id="me/model").push_to_hub()
        files = hub.versions["me/model"][-1].files
        assert "model.safetensors" in files
        assert not [path for path in files if "sagemaker" in path]
        expected = b"*.log\n*.sagemaker-uploading\n*.sagemaker-uploaded\n" if on_sagemaker else None
        assert files.get(".gitignore") == expected


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
    **dict.fromkeys(("ACCELERATE_FP8_BACKEND", *(variable for variable, _, _ in EIGHT_BITS)), eight_bits),
    **dict.fromkeys(("SM_FRAMEWORK_PARAMS", "SM_HP_MP_PARAMETERS"), sagemaker),
    "SM_HOSTS": sagemakers_machines,
    "SM_TRAINING_ENV": sagemakers_marks,
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
