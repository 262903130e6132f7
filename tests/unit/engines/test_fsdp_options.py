"""Reading FSDP options from the arguments and from the launcher's variables."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from hexloop import TrainingArguments
from hexloop.adapters.engines.fsdp.options import read_options
from hexloop.adapters.engines.fsdp.units import Formats, FsdpOptions
from hexloop.adapters.trainable.torch.units import Units
from hexloop.app.environment import DistributedEnvironment
from hexloop.domain.errors import ConfigurationError


@pytest.fixture(autouse=True)
def no_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset every variable of accelerate."""
    for name in list(os.environ):
        if name.startswith(("FSDP_", "ACCELERATE_")):
            monkeypatch.delenv(name)


def read(folder: Path, **given: Any) -> FsdpOptions:
    """Return the settings for the given arguments."""
    return read_options(TrainingArguments(str(folder), use_cpu=True, report_to=[], **given))


def problems(folder: Path, **given: Any) -> list[str]:
    """Return the problems of the given arguments."""
    with pytest.raises(ConfigurationError) as refused:
        read(folder, **given)
    return list(refused.value.problems)


SAID: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"fsdp": True}, {"version": 2, "strategy": "full_shard", "offload": False, "synchronise_each": True}),
    ({"fsdp": "shard_grad_op offload auto_wrap"}, {"strategy": "shard_grad_op", "offload": True}),
    ({"fsdp": ["full_shard", "offload"]}, {"strategy": "full_shard", "offload": True}),
    ({"fsdp": True, "fsdp_config": {"reshard_after_forward": "false"}}, {"strategy": "shard_grad_op"}),
    (
        {"fsdp": True, "fsdp_config": {"fsdp_version": 1, "fsdp_reshard_after_forward": "HYBRID_SHARD"}},
        {"version": 1, "strategy": "hybrid_shard"},
    ),
    ({"fsdp": True, "fsdp_config": {"sharding_strategy": 2}}, {"strategy": "shard_grad_op"}),
    ({"fsdp": True, "fsdp_config": {"min_num_params": 2000}}, {"units": Units(least=2000)}),
    (
        {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": "A, B", "min_num_params": 0}},
        {"units": Units(("A", "B"))},
    ),
    ({"fsdp": True, "fsdp_config": {"mixed_precision": "bf16"}},
     {"formats": Formats(torch.bfloat16, torch.float32)}),
    ({"fsdp": True, "fsdp_config": {"mixed_precision": {"reduce_dtype": "torch.bfloat16"}}},
     {"formats": Formats(gradients=torch.bfloat16)}),
    (
        {"fsdp": True, "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": False}}},
        {"synchronise_each": False},
    ),
    ({"fsdp": True, "fsdp_config": {"version": 1, "backward_prefetch": "BACKWARD_POST", "limit_all_gathers": False}},
     {"backward_prefetch": "backward_post", "limit_all_gathers": False}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), SAID)
def test_equivalent_options_give_equal_settings(
    tmp_path: Path, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    """Options, keys with and without prefix, numbers and strings give the same settings."""
    settings = read(tmp_path, **given)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_fairscale_names_are_accepted_with_a_warning(tmp_path: Path) -> None:
    """Each FairScale name maps to one of torch's names, with a warning."""
    with pytest.warns(FutureWarning, match="sharded_ddp"):
        settings = read(tmp_path, sharded_ddp="zero_dp_2 offload auto_wrap")
    assert (settings.strategy, settings.offload) == ("shard_grad_op", True)
    with pytest.warns(FutureWarning, match="fsdp_min_num_params"):
        assert read(tmp_path, fsdp="full_shard", fsdp_min_num_params=7).units.least == 7


LAUNCHED: list[tuple[dict[str, str], dict[str, Any]]] = [
    (
        {"VERSION": "2", "SHARDING_STRATEGY": "FULL_SHARD", "RESHARD_AFTER_FORWARD": "false",
         "OFFLOAD_PARAMS": "true", "AUTO_WRAP_POLICY": "NO_WRAP", "MIN_NUM_PARAMS": "100000000"},
        {"version": 2, "strategy": "shard_grad_op", "offload": True, "units": Units(())},
    ),
    (
        {"SHARDING_STRATEGY": "2", "RESHARD_AFTER_FORWARD": "true", "AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
         "TRANSFORMER_CLS_TO_WRAP": "A,B", "BACKWARD_PREFETCH": "NO_PREFETCH", "IGNORED_MODULES": "None",
         "STATE_DICT_TYPE": "SHARDED_STATE_DICT", "USE_ORIG_PARAMS": "true", "ACTIVATION_CHECKPOINTING": "true"},
        {"version": 1, "strategy": "shard_grad_op", "units": Units(("A", "B")), "backward_prefetch": "no_prefetch",
         "recompute": True},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "expected"), LAUNCHED)
def test_accelerate_launcher_variables_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: dict[str, Any]
) -> None:
    """The launcher's variables configure FSDP if the arguments do not turn it on."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    for name, value in variables.items():
        monkeypatch.setenv(f"FSDP_{name}", value)
    settings = read(tmp_path)
    assert {name: getattr(settings, name) for name in expected} == expected
    assert read(tmp_path, fsdp="full_shard") == FsdpOptions()


WRONG: dict[str, Any] = {
    "min_num_parms": 3,
    "xla_fsdp_grad_ckpt": True,
    "cpu_offload": "maybe",
    "version": 3,
    "state_dict_type": "local_state_dict",
    "auto_wrap_policy": "NO_WRAP",
    "transformer_layer_cls_to_wrap": ["A"],
    "reshard_after_forward": True,
    "activation_checkpointing": True,
    "device_mesh": [0, 1],
    "mixed_precision": {"weights": "bf16"},
}
SAID_OF_IT = (
    "did you mean min_num_params",
    "it is for FSDP on XLA",
    "takes a truth value",
    "the versions 1 and 2",
    "full_state_dict",
    "names several strategies",
    "auto_wrap_policy='no_wrap'",
    "sharding_strategy='full_shard' in fsdp_config",
    "gathers weights once less",
    "two numbers",
    "no key 'weights'",
)


def test_all_problems_are_reported_in_one_error(tmp_path: Path) -> None:
    """One error lists unknown keys, invalid values and contradictions."""
    said = problems(
        tmp_path,
        fsdp="shard_grad_op no_shard",
        activation_checkpointing=True,
        fsdp_config=WRONG,
    )
    for each in SAID_OF_IT:
        assert sum(each in problem for problem in said) == 1, (each, said)
    assert len(said) == 11


def test_contradictory_options_are_rejected(tmp_path: Path) -> None:
    """Two strategies, a key in two spellings, or a mesh of another size are rejected."""
    (said,) = problems(tmp_path, fsdp=True, fsdp_config={"sharding_strategy": 1, "reshard_after_forward": False})
    assert "contradict" in said
    (said,) = problems(tmp_path, fsdp=True, fsdp_config={"cpu_offload": True, "fsdp_offload_params": False})
    assert "in another spelling" in said
    (said,) = problems(tmp_path, fsdp="hybrid_shard", fsdp_config={"device_mesh": [2, 3]})
    assert "there are 1 processes" in said
    (said,) = problems(tmp_path, fsdp=True, fsdp_config={"device_mesh": [1, 1]})
    assert "one replica" in said
    (said,) = problems(tmp_path, fsdp=True, fsdp_config={"auto_wrap_policy": "SIZE_BASED_WRAP"})
    assert "set min_num_params" in said


BY_MACHINE: dict[str, dict[str, str]] = {
    "torchrun": {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"},
    "srun": {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1",
             "SLURM_STEP_TASKS_PER_NODE": "8(x2)"},
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                 "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
    "MPICH": {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8"},
}  # fmt: skip


@pytest.mark.parametrize("launcher", BY_MACHINE)
def test_hybrid_sharding_has_one_replica_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """Each machine holds one replica; without a local world size there is one replica in all."""
    for name, value in BY_MACHINE[launcher].items():
        monkeypatch.setenv(name, value)
    assert read(tmp_path, fsdp="hybrid_shard").mesh == (2, 8)
    monkeypatch.delenv(list(BY_MACHINE[launcher])[-1])
    assert read(tmp_path, fsdp="hybrid_shard").mesh == (1, 16)


def test_hybrid_sharding_without_a_launcher_has_one_replica(tmp_path: Path) -> None:
    """If only the arguments give the world size, all processes share one replica."""
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], fsdp="hybrid_shard")
    arguments.distributed_environment = DistributedEnvironment(world_size=4)
    assert read_options(arguments).mesh == (1, 4)


def test_ineffective_options_are_warned_about(tmp_path: Path) -> None:
    """Options of the other FSDP version, and one that hexloop always sets itself, give a warning."""
    with pytest.warns(UserWarning, match="does not use use_orig_params"):
        read(tmp_path, fsdp=True, fsdp_config={"use_orig_params": False})
    with pytest.warns(UserWarning, match="keeps the model's own parameters"):
        read(tmp_path, fsdp=True, fsdp_config={"version": 1, "use_orig_params": False})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(tmp_path, fsdp=True, fsdp_config={"use_orig_params": True, "xla": False, "xla_fsdp_settings": {}})
