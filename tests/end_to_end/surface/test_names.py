"""Names that code written for transformers 5.23 imports, calls and overrides: present, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import nn

import hexloop
from hexloop.app.takeover import names
from hexloop.app.trainer.legacy_names import INSTEAD
from tests.end_to_end.small.trainers import small_trainer

IMPORTABLE = {
    "training_args": """
        _convert_str_dict str_to_bool
    """,
    "trainer_utils": """
        _is_peft_model unwrap_peft_model validate_quantization_for_training seed_worker sort_checkpoints
        rotate_checkpoints BestRun default_compute_objective default_hp_space_optuna default_hp_space_ray
        default_hp_space_wandb is_main_process total_processes_number speed_metrics TrainerMemoryTracker has_length
        denumpify_detensorize number_of_arguments find_executable_batch_size RemoveColumnsCollator
        check_target_module_exists load_sharded_checkpoint compare_trainer_and_checkpoint_args _align_special_token
        align_special_tokens suppress_progress_bars
    """,
    "hf_argparser": """
        DataClass DataClassType string_to_bool make_choice_type_function
    """,
    "trainer_pt_utils": """
        get_dataloader_sampler atleast_1d torch_pad_and_concatenate numpy_pad_and_concatenate nested_concat
        find_batch_size nested_numpify nested_detach nested_xla_mesh_reduce distributed_concat nested_gather
        is_attention_mask_causal distributed_broadcast_scalars reissue_pt_warnings torch_distributed_zero_first
        DistributedSamplerWithLoop EvalLoopContainer get_tpu_sampler nested_new_like expand_like nested_truncate
        LabelSmoother get_length_grouped_indices LengthGroupedSampler DistributedLengthGroupedSampler
        BatchRebalanceSampler ShardSampler IterableDatasetShard _secs2timedelta metrics_format log_metrics
        save_metrics save_state get_num_trainable_parameters get_learning_rates get_optimizer_group
        get_model_param_count get_parameter_names get_module_class_from_name remove_dummy_checkpoint
        LayerWiseDummyOptimizer LayerWiseDummyScheduler set_rng_state_for_device safe_globals
    """,
    "data.data_collator": """
        DataCollatorMixin pad_without_fast_tokenizer_warning torch_default_data_collator numpy_default_data_collator
        DataCollatorForTokenClassification _torch_collate_batch _numpy_collate_batch DataCollatorForMultipleChoice
        DataCollatorForSeq2Seq DataCollatorForLanguageModeling to_numpy DataCollatorForPermutationLanguageModeling
        DataCollatorWithFlattening
    """,
    "optimization": """
        _get_constant_lambda _get_constant_schedule_with_warmup_lr_lambda _get_linear_schedule_with_warmup_lr_lambda
        _get_cosine_schedule_with_warmup_lr_lambda _get_cosine_with_hard_restarts_schedule_with_warmup_lr_lambda
        _get_polynomial_decay_schedule_with_warmup_lr_lambda _get_inverse_sqrt_schedule_lr_lambda
        _get_cosine_with_min_lr_schedule_with_warmup_lr_rate_lambda _get_wsd_scheduler_lambda StreamingAverage
        GreedyLR Adafactor AdafactorSchedule
    """,
}
TRAINER = """
    _build_accelerator_args _clip_grad_norm _defer_fsdp_gradient_reduction _determine_best_metric _evaluate
    _finalize_training _finish_current_push _get_collator_with_removed_columns _get_dataloader _get_grad_norm
    _get_learning_rate _get_num_items_in_batch _get_output_dir _has_mixed_mesh_grads _hp_search_setup
    _init_training_state _inner_training_loop _issue_warnings_after_load _load_callback_state _load_from_checkpoint
    _load_optimizer_and_scheduler _load_rng_state _load_scaler _mixed_mesh_grad_norm _move_model_to_device
    _prepare_context_parallel_inputs _prepare_for_training _prepare_input _push_from_checkpoint
    _remove_unused_columns _report_to_hp_search _run_epoch _save_optimizer_and_scheduler _save_rng_state
    _save_scaler _set_signature_columns_if_needed _sync_replicated_trainable_parameters _track_num_input_tokens
    _tune_save_checkpoint _update_auto_batch_size _validate_args _wrap_model
"""
STATE = """
    compute_steps init_training_references
"""
CONTROL = """
    _new_epoch _new_step _new_training
"""

PAIRS = [(relative, name) for relative, listed in IMPORTABLE.items() for name in listed.split()]
CLASSES = sorted(
    name
    for name in names.FAMILY_NAMES - {"Trainer", "Seq2SeqTrainer"}
    if isinstance(getattr(hexloop, name), type) and not issubclass(getattr(hexloop, name), Enum)
)
"""The classes of the Trainer family that have methods, apart from trainers."""


@pytest.fixture(params=["takeover", "by path"])
def package(request: pytest.FixtureRequest) -> Iterator[str]:
    """The package from which code imports: transformers that is taken over, or hexloop's stand-in."""
    if request.param == "by path":
        yield "hexloop.transformers"
        return
    with hexloop.takeover():
        yield "transformers"


@pytest.mark.filterwarnings("ignore:These modules imported classes")
def test_every_name_can_be_imported(package: str) -> None:
    """By both ways; what is transformers' own is the same object, with its signature."""
    for relative, name in PAIRS:
        found = getattr(import_module(f"{package}.{relative}"), name)
        original = vars(import_module(f"transformers.{relative}"))[name]
        stays = package == "transformers" and any(name in listed for listed in names.EQUIVALENTS.values())
        if name in names.OWN_NAMES and not stays:
            assert found is getattr(hexloop, name), name
        else:
            assert found is original, name


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [each for each in inspect.signature(function).parameters.values() if each.name != "self"]


def takes_calls_of(ours: Callable[..., Any], theirs: Callable[..., Any]) -> bool:
    """Return whether every call of the one is one of the other: by position, by name, and without optional values."""
    kinds = inspect.Parameter
    listed = [each for each in parameters(theirs) if each.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    by_position = [each.name for each in listed if each.kind is not kinds.KEYWORD_ONLY]
    required = {each.name: 0 for each in listed if each.default is kinds.empty}
    by_name = {each.name: 0 for each in listed if each.kind is not kinds.POSITIONAL_ONLY}
    open_ended = any(each.kind is kinds.VAR_KEYWORD for each in parameters(theirs))
    signature = inspect.Signature(parameters(ours))
    places = [each.name for each in parameters(ours) if each.kind is kinds.POSITIONAL_OR_KEYWORD]
    try:
        signature.bind(*by_position)
        signature.bind(**required)
        signature.bind(**by_name, **({"anything": 0} if open_ended else {}))
    except TypeError:
        return False
    return all(ours == theirs for ours, theirs in zip(places, by_position, strict=False))


def functions_of(kind: type) -> list[str]:
    """Return the names of the methods that a class or one of its bases in transformers defines."""
    bases = [each for each in kind.__mro__ if each.__module__.startswith("transformers.")]
    found = {name for base in bases for name, value in vars(base).items() if callable(getattr(kind, name))}
    return sorted(name for name in found if not name.startswith("__") or name in ("__init__", "__getitem__"))


@pytest.mark.parametrize("name", ["Trainer", "Seq2SeqTrainer"])
def test_methods_of_trainers_take_the_same_calls(name: str) -> None:
    """All methods of the class; those that are absent say what to use instead."""
    theirs, ours = getattr(transformers, name), getattr(hexloop, name)
    absent = [method for method in functions_of(theirs) if not hasattr(ours, method)]
    differing = [
        method
        for method in functions_of(theirs)
        if method not in absent and not takes_calls_of(getattr(ours, method), getattr(theirs, method))
    ]

    assert set(TRAINER.split()) <= {*functions_of(transformers.Trainer), *functions_of(theirs)}
    assert not differing
    assert set(absent) <= INSTEAD.keys()


def test_absent_methods_name_the_public_way(tmp_path: Path) -> None:
    """The error of an attribute says what to use."""
    trainer = small_trainer(tmp_path)
    absent = [name for name in TRAINER.split() if not hasattr(trainer, name)]

    assert len(absent) == len(INSTEAD) == 5
    for name in absent:
        with pytest.raises(AttributeError, match=f"has no attribute {name!r}: {INSTEAD[name]}"):
            getattr(trainer, name)


@pytest.mark.parametrize("name", CLASSES)
def test_methods_of_other_classes_take_the_same_calls(name: str) -> None:
    """Callbacks, handler, state, control, arguments, parser, results."""
    relative = next(module for module, listed in names.FAMILY.items() if name in listed)
    theirs, ours = getattr(import_module(f"transformers.{relative}"), name), getattr(hexloop, name)
    leaves_out = {"_apply_legacy_fsdp_to_config", "_process_fsdp_args"}  # errors say what to read instead
    by_name_only = {"__init__"} if issubclass(ours, hexloop.TrainingArguments) else set()
    listed = [method for method in functions_of(theirs) if method not in leaves_out | by_name_only]

    assert [method for method in listed if not hasattr(ours, method)] == []
    assert [method for method in listed if not takes_calls_of(getattr(ours, method), getattr(theirs, method))] == []


def test_state_and_control_have_the_methods() -> None:
    """On the objects of a Trainer."""
    assert all(callable(getattr(hexloop.TrainerState(), name)) for name in STATE.split())
    assert all(callable(getattr(hexloop.TrainerControl(), name)) for name in CONTROL.split())


def test_a_call_that_is_not_taken_is_noticed() -> None:
    """The comparison finds a missing, a renamed, a moved and a required parameter."""

    def theirs(one: int, two: int = 0, **others: int) -> None: ...
    def longer(one: int, two: int = 0, three: int = 0, **others: int) -> None: ...
    def missing(one: int, **others: int) -> None: ...
    def renamed(one: int, second: int = 0, **others: int) -> None: ...
    def moved(two: int, one: int = 0, **others: int) -> None: ...
    def requires(one: int, two: int, **others: int) -> None: ...
    def closed(one: int, two: int = 0) -> None: ...

    assert takes_calls_of(longer, theirs)
    for each in (missing, renamed, moved, requires, closed):
        assert not takes_calls_of(each, theirs), each


def test_helpers_of_transformers_take_objects_of_hexloop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Functions that are handed on and receive a trainer, its arguments, its state or its folder."""
    trainer_pt_utils: Any = import_module("hexloop.transformers.trainer_pt_utils")
    trainer_utils: Any = import_module("hexloop.transformers.trainer_utils")
    trainer = small_trainer(tmp_path, save_strategy="steps", save_steps=2)
    trainer.train()
    trainer_pt_utils.log_metrics(trainer, "train", {"train_loss": 0.5})
    trainer_pt_utils.save_metrics(trainer, "train", {"train_loss": 0.5})
    trainer_pt_utils.save_state(trainer)
    trainer_utils.compare_trainer_and_checkpoint_args(trainer.args, trainer.state)
    checkpoints = trainer_utils.sort_checkpoints(output_dir=str(tmp_path))

    assert "train_loss" in capsys.readouterr().out
    assert (tmp_path / "train_results.json").exists()
    assert transformers.TrainerState.load_from_json(str(tmp_path / "trainer_state.json")).global_step == 4
    assert [Path(each).name for each in checkpoints] == ["checkpoint-2", "checkpoint-4"]
    assert trainer_utils.get_last_checkpoint(str(tmp_path)) == checkpoints[-1]
    assert trainer_pt_utils.get_learning_rates(trainer) == trainer.get_learning_rates()
    assert trainer_pt_utils.get_num_trainable_parameters(trainer) == trainer.get_num_trainable_parameters()
    assert trainer_pt_utils.get_parameter_names(trainer.model, [nn.Linear]) == []
