"""Validation of arguments: which values are rejected, and how problems are reported."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.base import Arguments
from hexloop.app.arguments.declaration import declarations
from hexloop.domain.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")

NOT_FINITE = [float("nan"), float("inf"), float("-inf")]
NUMBERS = sorted(name for name, (_, kind) in declarations(TrainingArguments).items() if kind in (int, float))


def problems(**values: Any) -> tuple[str, ...]:
    """Return the problems of constructing arguments with `values`; empty if they are accepted."""
    try:
        TrainingArguments(**{"output_dir": "out", **values})
    except ConfigurationError as error:
        return error.problems
    return ()


ALONE: list[tuple[str, Any, str]] = [
    ("learning_rate", -1e-3, "must be at least 0"),
    ("learning_rate", "fast", "takes a number"),
    ("learning_rate", None, "takes a number"),
    ("learning_rate", True, "takes a number"),
    ("weight_decay", -0.1, "must be at least 0"),
    ("max_grad_norm", -1, "must be at least 0"),
    ("adam_beta1", 1.0, "at least 0 and less than 1"),
    ("adam_beta2", -0.1, "at least 0 and less than 1"),
    ("adam_epsilon", -1e-8, "must be at least 0"),
    ("label_smoothing_factor", 1.0, "at least 0 and less than 1"),
    ("per_device_train_batch_size", 0, "must be at least 1"),
    ("per_device_eval_batch_size", 2.5, "takes a whole number"),
    ("gradient_accumulation_steps", 0, "must be at least 1"),
    ("num_train_epochs", -1, "must be at least 0"),
    ("max_steps", 0, "yields zero training steps"),
    ("max_steps", -2, "yields zero training steps"),
    ("warmup_steps", -1, "cannot be negative"),
    ("warmup_steps", 1.5, "steps, which must be whole"),
    ("save_steps", 10.5, "steps, which must be whole"),
    ("logging_steps", -5, "cannot be negative"),
    ("eval_delay", -1, "must be at least 0"),
    ("save_total_limit", 0, "must be at least 1"),
    ("eval_accumulation_steps", 0, "must be at least 1"),
    ("torch_empty_cache_steps", 0, "must be at least 1"),
    ("dataloader_num_workers", -1, "must be at least 0"),
    ("seed", -1, "seeds range from 0 to"),
    ("data_seed", 2**32, "seeds range from 0 to"),
    ("bf16", "perhaps", "takes a truth value"),
    ("bf16", 1, "takes a truth value"),
    ("output_dir", 3, "takes text"),
    ("lr_scheduler_type", "linera", "did you mean 'linear'?"),
    ("optim", "adamw_torch_fusd", "did you mean 'adamw_torch_fused'?"),
    ("eval_strategy", "best", "choose 'no', 'steps' or 'epoch'"),
    ("save_strategy", "step", "did you mean 'steps'?"),
    ("log_level", "warn", "did you mean 'warning'?"),
    ("train_sampling_strategy", "batch_rebalanced", "did you mean 'batch_rebalance'?"),
    ("dataloader_multiprocessing_context", "thread", "choose 'fork', 'spawn' or 'forkserver'"),
    ("include_for_metrics", ["input"], "did you mean 'inputs'?"),
    ("include_for_metrics", "inputs", "takes a list"),
    ("label_names", [1], "takes text"),
    ("include_num_input_tokens_seen", "some", "choose 'all', 'non_padding' or 'no'"),
    ("lr_scheduler_kwargs", "num_cycles=2", "takes a mapping"),
    ("lr_scheduler_kwargs", {"min_lr": math.nan}, "must be finite"),
    ("optim_args", "momentum", "not of the form name=value"),
    ("loss_weighting", "mean", "choose 'exact' or 'reference'"),
    ("save_async", "later", "takes a truth value"),
]


@pytest.mark.parametrize(("name", "value", "reason"), ALONE)
def test_bad_value_is_rejected_with_the_reason(name: str, value: Any, reason: str) -> None:
    """The error has name, value, reason and fix, on construction and on assignment."""
    (reported,) = problems(**{name: value})
    assert reported.startswith(f"You chose {name}=")
    assert reason in reported
    assert ";" in reported
    arguments = TrainingArguments("out")
    with pytest.raises(ConfigurationError) as caught:
        setattr(arguments, name, value)
    assert caught.value.problems == (reported,)
    assert arguments == TrainingArguments("out")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", NOT_FINITE)
def test_nan_and_infinity_are_rejected(name: str, value: float) -> None:
    """NaN and infinities are rejected by every numeric argument, also as text."""
    for spelled in (value, str(value)):
        (reported,) = problems(**{name: spelled})
        assert name in reported


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"fp16": True, "bf16": True}, "trains in one precision"),
    ({"fp16_full_eval": True, "bf16_full_eval": True}, "evaluates in one precision"),
    ({"logging_steps": 0}, "logging_steps must be greater than 0"),
    ({"save_steps": 0}, "save_steps must be greater than 0"),
    (
        {"eval_strategy": "steps", "eval_steps": 0, "logging_strategy": "no", "logging_steps": 0},
        "eval_steps must be greater than 0",
    ),
    ({"num_train_epochs": 0}, "zero training steps"),
    ({"load_best_model_at_end": True}, "only evaluation determines"),
    ({"load_best_model_at_end": True, "save_strategy": "no"}, "only evaluation determines"),
    ({"load_best_model_at_end": True, "eval_strategy": "epoch"}, "give both strategies the same value"),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 10},
        "make save_steps a multiple of eval_steps",
    ),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 0.2, "save_steps": 0.3},
        "make save_steps a multiple of eval_steps",
    ),
    (
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 0.5, "save_steps": 500},
        "make both a ratio, or both a number of steps",
    ),
    ({"save_strategy": "best", "eval_strategy": "epoch"}, "name the metric in metric_for_best_model"),
    ({"save_strategy": "best", "metric_for_best_model": "accuracy"}, "only evaluation determines"),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "follows a metric"),
    ({"lr_scheduler_type": "greedy"}, "follows a metric"),
    ({"dataloader_prefetch_factor": 2}, "only workers load batches ahead"),
    ({"dataloader_persistent_workers": True}, "no workers to keep alive"),
    ({"dataloader_multiprocessing_context": "spawn"}, "no workers to start"),
]


@pytest.mark.parametrize(("values", "reason"), TOGETHER)
def test_contradictory_values_are_rejected(values: dict[str, Any], reason: str) -> None:
    """Contradictory values are rejected on construction, and by `check` after assignments."""
    (reported,) = problems(**values)
    assert reason in reported
    arguments = TrainingArguments("out")
    for name, value in values.items():
        setattr(arguments, name, value)
    with pytest.raises(ConfigurationError) as caught:
        arguments.check()
    assert caught.value.problems == (reported,)


AGREEING: list[dict[str, Any]] = [
    {"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 0.3, "load_best_model_at_end": True},
    {"eval_strategy": "steps", "eval_steps": 100, "save_steps": 300, "load_best_model_at_end": True},
    {"eval_strategy": "steps", "save_strategy": "best", "load_best_model_at_end": True},
    {"save_strategy": "no", "save_steps": 0, "logging_strategy": "epoch", "logging_steps": 0},
    {"num_train_epochs": 0, "max_steps": 3},
    {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 4, "dataloader_persistent_workers": True},
    {"bf16": True, "fp16_full_eval": True},
    {"eval_strategy": "epoch", "lr_scheduler_type": "greedy"},
    {"learning_rate": 0, "max_grad_norm": 0, "save_total_limit": None},
]


@pytest.mark.parametrize("values", AGREEING, ids=str)
def test_consistent_values_are_accepted(values: dict[str, Any]) -> None:
    """Valid combinations are accepted."""
    assert problems(**values) == ()


def test_all_problems_are_reported_in_one_error() -> None:
    """One error lists unknown names, bad values, and contradictions between good values."""
    reported = problems(
        learning_rat=1e-4,
        predict_with_generate=True,
        ray_scope="all",
        seed=-1,
        optim="sdg",
        fp16=True,
        bf16=True,
        dataloader_prefetch_factor=2,
    )
    assert [sentence.split("=")[0].removeprefix("You chose ") for sentence in reported] == [
        "learning_rat",
        "predict_with_generate",
        "ray_scope",
        "optim",
        "seed",
        "fp16",
        "dataloader_prefetch_factor",
    ]


def test_bad_value_is_reported_once() -> None:
    """A rejected value is not reported again for a contradiction of its default."""
    (reported,) = problems(eval_strategy="stepz", load_best_model_at_end=True)
    assert reported.startswith("You chose eval_strategy='stepz'")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("learning_rat", "there is no argument of that name; did you mean learning_rate?"),
        ("output-dir", "did you mean output_dir?"),
        ("sortish_sampler", "only sequence-to-sequence training has this argument; use Seq2SeqTrainingArguments."),
        ("push_to_hubs", "did you mean push_to_hub?"),
        ("zzz", "there is no argument of that name; leave it out."),
    ],
)
def test_unknown_name_is_reported_with_a_replacement(name: str, said: str) -> None:
    """The error shows the closest name, or why a name of transformers is not supported."""
    (reported,) = problems(**{name: 1})
    assert reported.startswith(f"You chose {name}=1, but ")
    assert reported.endswith(said)


def test_assign_is_atomic() -> None:
    """`assign` and the grouped setters report every rejected value and then change nothing."""
    arguments = TrainingArguments("out")
    with pytest.raises(ConfigurationError) as caught:
        arguments.assign(seed=7, learning_rate=-1, bf16="x", sede=1)
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigurationError):
        arguments.set_training(learning_rate=0.1, batch_size=0)
    with pytest.raises(ConfigurationError, match="give steps a positive value"):
        arguments.set_save(strategy="steps", steps=0)
    assert arguments == TrainingArguments("out")


def test_check_is_idempotent_and_derives_values() -> None:
    """`check` may be repeated; after assignments it derives the unset values."""
    arguments = TrainingArguments("out")
    arguments.check()
    assert arguments == TrainingArguments("out")
    arguments.eval_strategy = "steps"
    arguments.logging_steps = 20
    arguments.check()
    assert (arguments.eval_steps, arguments.do_eval) == (20, True)


def test_both_names_of_activation_checkpointing_stay_equal() -> None:
    """Assigning either name of activation checkpointing sets the other."""
    arguments = TrainingArguments("out")
    arguments.gradient_checkpointing = True
    arguments.gradient_checkpointing_kwargs = {"use_reentrant": False}
    arguments.check()
    assert arguments.activation_checkpointing is True
    assert arguments.activation_checkpointing_kwargs == {"use_reentrant": False}
    arguments.activation_checkpointing = False
    arguments.check()
    assert arguments.gradient_checkpointing is False


def test_strings_inside_json_text_are_converted() -> None:
    """Numbers and booleans as strings are converted within JSON text, but not within a mapping."""
    given = '{"a": "1e-3", "b": "False", "c": "2nd", "d": {"e": "07"}, "f": [1, null]}'
    expected = {"a": 1e-3, "b": False, "c": "2nd", "d": {"e": 7}, "f": [1, None]}
    assert TrainingArguments("out", lr_scheduler_kwargs=given).lr_scheduler_kwargs == expected
    assert TrainingArguments("out", lr_scheduler_kwargs={"a": "1e-3"}).lr_scheduler_kwargs == {"a": "1e-3"}


def test_other_types_of_numbers_and_paths_are_accepted(tmp_path: Any) -> None:
    """NumPy scalars are accepted as numbers, whole floats as integers, and paths as text."""
    arguments = TrainingArguments(tmp_path, learning_rate=np.float32(0.5), seed=np.int64(3), max_steps=1e3)  # type: ignore[arg-type]
    assert (arguments.learning_rate, arguments.seed, arguments.max_steps) == (0.5, 3, 1000)
    assert [type(value) for value in (arguments.learning_rate, arguments.seed)] == [float, int]
    assert arguments.output_dir == str(tmp_path)


@given(
    name=st.sampled_from(sorted(declarations(TrainingArguments))),
    value=st.integers(-(2**40), 2**40) | st.floats(allow_nan=True) | st.text(max_size=5) | st.none() | st.booleans(),
)
def test_any_value_is_accepted_or_rejected_by_name(name: str, value: Any) -> None:
    """Any value is accepted or rejected with a sentence that names the argument."""
    for reported in problems(**{name: value}):
        assert name in reported


@dataclass
class Needing(TrainingArguments):
    needed: int = field(kw_only=True)


def test_unknown_name_is_reported_if_a_required_one_is_missing() -> None:
    """A misspelt name is reported even if the required one is missing because of it."""
    with pytest.raises(ConfigurationError, match="did you mean needed"):
        Needing("out", neeeded=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="needed"):
        Needing("out")  # type: ignore[call-arg]


def test_groups_are_validated_alone() -> None:
    """A class of one group of arguments is validated as the whole class is."""
    from hexloop.app.arguments.declaration import arguments_class
    from hexloop.app.arguments.hardware import PrecisionArguments

    @arguments_class
    class Formats(PrecisionArguments, Arguments):
        """Number formats."""

    assert issubclass(Formats, Arguments)
    assert Formats(bf16=True).mixed_precision == "bf16"
    with pytest.raises(ConfigurationError, match="one precision"):
        Formats(bf16=True, fp16=True)
