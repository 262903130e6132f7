"""Every name that code written for transformers reaches for, compared with transformers' after the same short run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import hexloop
from hexloop.app.arguments.base import INSTEAD
from hexloop.app.trainer.legacy_names import ATTRIBUTES_INSTEAD
from tests.end_to_end.accelerators.looks import plain
from tests.end_to_end.small.models import net, rows

ACCELERATOR = [
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
"""Of `trainer.accelerator`."""

TRAINER = [
    "_created_lr_scheduler",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
    "_loggers_initialized",
    "_loss_shifts_labels",
    "_memory_tracker",
    "_mixed_mesh_grads",
    "_signature_columns",
    "_total_loss_scalar",
    "_tr_loss",
    "_trial",
    "current_flos",
    "deepspeed",
    "gather_function",
    "hp_search_backend",
    "hub_model_id",
    "is_deepspeed_enabled",
    "is_distributed_loading_by_transformers",
    "is_fsdp_enabled",
    "is_fsdp_xla_enabled",
    "is_fsdp_xla_v1_enabled",
    "is_fsdp_xla_v2_enabled",
    "neftune_noise_alpha",
]
"""Instance attributes of a Trainer."""

ARGUMENTS = [
    "_VALID_DICT_FIELDS",
    "_apply_legacy_fsdp_to_config",
    "_dict_dtype_to_str",
    "_n_gpu",
    "_no_sync_in_gradient_accumulation",
    "_process_fsdp_args",
    "_setup_devices",
    "_validate_args",
    "deepspeed_plugin",
    "default_optim",
    "distributed_state",
    "fsdp_plugin_args",
    "is_torch_greater_or_equal_than_2_8",
]
"""Of TrainingArguments."""

DIFFERENT = {
    "_dataloaders": "what accelerate prepared; the loaders of the run are not among them",
    "_models": "likewise",
    "_optimizers": "likewise",
    "is_fsdp_xla_enabled": "False instead of None",
    "is_fsdp_xla_v1_enabled": "likewise",
    "is_fsdp_xla_v2_enabled": "likewise",
    "_tr_loss": "the losses since the last log are on the device, in the run",
    "_memory_tracker": "a class of the same methods",
    "_signature_columns": "None until they are assigned, or _set_signature_columns_if_needed is called",
    "current_flos": "always 0, because state.total_flos contains them",
    "_total_loss_scalar": "of a live run",
    "_globalstep_last_logged": "of a live run",
}
"""Names whose value differs, and why."""


def short_run(library: Any, folder: Path) -> Any:
    """Return the Trainer of a run of four steps."""
    own = {"reproduce": "transformers"} if library is hexloop else {}
    args = library.TrainingArguments(
        str(folder), use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=2,
        per_device_train_batch_size=2, dataloader_pin_memory=False, **own,
    )  # fmt: skip
    trainer = library.Trainer(net(), args, train_dataset=rows(8))
    trainer.train()
    return trainer


def value_of(owner: Any, name: str) -> Any:
    """Return a comparable value of an attribute; an error as its type, an object or a callable as such."""
    try:
        found = getattr(owner, name)
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        return type(error).__name__
    if callable(found):
        return "callable"
    compared = plain(found)
    return "object" if isinstance(compared, str) and ":" in compared else compared


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The Trainers of both libraries after the run."""
    folder = tmp_path_factory.mktemp("runs")
    theirs = short_run(transformers, folder / "transformers")
    listed = (
        ("accelerator", theirs.accelerator, ACCELERATOR),
        ("trainer", theirs, TRAINER),
        ("args", theirs.args, ARGUMENTS),
    )
    found = {(kind, name): value_of(owner, name) for kind, owner, names in listed for name in names}
    return short_run(hexloop, folder / "hexloop"), found


def compare(kind: str, owner: Any, names: list[str], expected: dict[tuple[str, str], Any], absent: Any) -> None:
    seen = {}
    for name in names:
        if name in absent:
            with pytest.raises(AttributeError, match=absent[name][:20]):
                getattr(owner, name)
            continue
        seen[name] = value_of(owner, name)
    assert not [name for name in seen if seen[name] == "AttributeError" != expected[kind, name]]
    different = {
        name: (value, expected[kind, name])
        for name, value in seen.items()
        if value != expected[kind, name] and expected[kind, name] != "AttributeError" and name not in DIFFERENT
    }
    assert not different


def test_names_of_the_accelerator(trainers: tuple[Any, Any]) -> None:
    """All are present, with the values of transformers'."""
    ours, expected = trainers
    compare("accelerator", ours.accelerator, ACCELERATOR, expected, {})


def test_attributes_of_a_trainer(trainers: tuple[Any, Any]) -> None:
    """All are present, or absent with an error that names the public way."""
    ours, expected = trainers
    compare("trainer", ours, TRAINER, expected, ATTRIBUTES_INSTEAD)


def test_names_of_the_arguments(trainers: tuple[Any, Any]) -> None:
    """All are present, or absent with an error that names the public way."""
    ours, expected = trainers
    compare("args", ours.args, ARGUMENTS, expected, INSTEAD)


def test_every_attribute_of_a_trainer_may_be_assigned(tmp_path: Path) -> None:
    """As in transformers: a subclass with a loop of its own sets them itself."""
    trainer = short_run(hexloop, tmp_path)
    for name in TRAINER:
        if name not in ATTRIBUTES_INSTEAD:
            before = value_of(trainer, name)
            setattr(trainer, name, getattr(trainer, name))
            assert value_of(trainer, name) == before
