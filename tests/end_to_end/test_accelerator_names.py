"""`trainer.accelerator` has the names and the plain values of transformers' `trainer.accelerator`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator as RealAccelerator
from accelerate.state import AcceleratorState

import hexloop
from hexloop.domain.errors import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer

NAMES = [
    "_clip_grad_norm_dtensor_aware",
    "_custom_objects",
    "_dataloaders",
    "_do_sync",
    "_get_devices",
    "_get_named_parameters",
    "_load_model_state_pre_hook",
    "_models",
    "_optimizers",
    "_prepare_ao",
    "_prepare_cp",
    "_prepare_deepspeed",
    "_prepare_device_mesh",
    "_prepare_fsdp2",
    "_prepare_megatron_lm",
    "_prepare_msamp",
    "_prepare_one",
    "_prepare_te",
    "_prepare_tp",
    "_save_model_state_pre_hook",
    "_schedulers",
    "accumulate",
    "ao_recipe_handler",
    "autocast_handler",
    "check_trigger",
    "clear",
    "clip_grad_value_",
    "context_parallel_rank",
    "data_parallel_rank",
    "data_parallel_shard_rank",
    "dataloader_config",
    "ddp_handler",
    "deepspeed_plugin",
    "deepspeed_ulysses_dl_adapter",
    "delayed_fp8_autocast",
    "device_placement",
    "dispatch_batches",
    "distributed_type",
    "end_training",
    "even_batches",
    "flag_tensor",
    "fp8_backend",
    "fp8_enabled",
    "fp8_recipe_handler",
    "get_state_dict",
    "get_tracker",
    "gradient_accumulation_steps",
    "gradient_state",
    "has_fp8_handler",
    "has_lomo_optimizer",
    "init_handler",
    "init_trackers",
    "is_composable_parallelism_enabled",
    "is_fsdp2",
    "is_last_process",
    "join_uneven_inputs",
    "load_state",
    "local_main_process_first",
    "log",
    "log_with",
    "logging_dir",
    "lomo_backward",
    "main_process_first",
    "maybe_context_parallel",
    "msamp_recipe_handler",
    "multi_device",
    "native_amp",
    "no_sync",
    "non_blocking",
    "on_last_process",
    "on_local_main_process",
    "on_local_process",
    "on_main_process",
    "on_process",
    "optimizer_step_was_skipped",
    "parallelism_config",
    "pipeline_parallel_rank",
    "prepare_data_loader",
    "prepare_optimizer",
    "prepare_scheduler",
    "profile",
    "profile_handler",
    "project_configuration",
    "project_dir",
    "register_for_checkpointing",
    "register_load_state_pre_hook",
    "register_save_state_pre_hook",
    "rng_types",
    "save",
    "save_iteration",
    "save_model",
    "save_state",
    "scaler",
    "scaler_handler",
    "set_trigger",
    "should_save_model",
    "skip_first_batches",
    "split_batches",
    "split_between_processes",
    "state",
    "step",
    "step_scheduler_with_optimizer",
    "te_recipe_handler",
    "tensor_parallel_rank",
    "torch_device_mesh",
    "trackers",
    "trigger_sync_in_backward",
    "unscale_gradients",
    "use_distributed",
    "use_seedable_sampler",
    "use_stateful_dataloader",
    "verify_device_map",
]
UNCONFIGURED = (
    "tensor_parallel_rank",
    "pipeline_parallel_rank",
    "context_parallel_rank",
    "data_parallel_rank",
    "data_parallel_shard_rank",
)
"""Names that raise an error without a mesh."""


def value(accelerator: Any, name: str) -> Any:
    """Return a comparable value: plain data as it is, an error or another object as its type."""
    try:
        found = getattr(accelerator, name)
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    plain = isinstance(found, bool | int | float | str | type(None)) or (isinstance(found, list) and not found)
    if plain:
        return found
    return "callable" if callable(found) else type(found)


def test_every_name_of_transformers_is_present_with_its_value(tmp_path: Path) -> None:
    """All 112 names exist; plain values and types are transformers'."""
    transformers = pytest.importorskip("transformers")
    arguments: dict[str, Any] = {"use_cpu": True, "report_to": "none", "save_strategy": "no"}
    theirs = transformers.Trainer(
        net(), transformers.TrainingArguments(str(tmp_path), **arguments), train_dataset=rows(8)
    ).accelerator
    expected = {name: value(theirs, name) for name in NAMES}
    ours = hexloop.Trainer(net(), hexloop.TrainingArguments(str(tmp_path), **arguments), train_dataset=rows(8))
    assert {name: value(ours.accelerator, name) for name in NAMES} == expected
    assert all(issubclass(expected[name], Exception) for name in UNCONFIGURED)


def test_a_configured_state_is_used_and_must_match(tmp_path: Path) -> None:
    """use_configured_state takes the state that exists, and refuses a missing or a different one."""
    configured: dict[str, Any] = {"accelerator_config": {"use_configured_state": True}}
    AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ConfigurationError, match="there is none"):
        small_trainer(tmp_path, **configured)
    state = RealAccelerator(cpu=True).state
    trainer = small_trainer(tmp_path, **configured)
    assert vars(trainer.accelerator.state) is vars(state)
    trainer.train()
    with pytest.raises(ConfigurationError, match="bf16"):
        small_trainer(tmp_path, **configured, bf16=True)


def test_an_assigned_accelerator_is_used_and_must_match(tmp_path: Path) -> None:
    """An assigned Accelerator becomes the real one; one with another precision is refused."""
    trainer, own = small_trainer(tmp_path), RealAccelerator(cpu=True, mixed_precision="no")
    trainer.accelerator = own
    assert trainer.accelerator.real is own
    trainer.train()
    AcceleratorState._reset_state(reset_partial_state=True)
    half = RealAccelerator(cpu=True, mixed_precision="bf16")
    with pytest.raises(ConfigurationError, match="mixed precision"):
        trainer.accelerator = half
    assert trainer.accelerator.real is own
