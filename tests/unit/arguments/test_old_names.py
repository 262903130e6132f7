"""Arguments of earlier releases keep working, with a warning that names the replacement."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.choices import OptimizerNames, ShardedDDPOption
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS, LEGACY_ARGUMENTS, ONLY_IF_GIVEN
from hexloop.domain.errors import ConfigurationError
from tests.unit.arguments.sources import from_dict, from_json_file, from_yaml_file, parse

ALMOST_ONE = 0.9999999999999999

RENAMED: list[tuple[str, Any, dict[str, Any]]] = [
    ("evaluation_strategy", "epoch", {"eval_strategy": "epoch", "do_eval": True}),
    ("per_gpu_train_batch_size", 4, {"per_device_train_batch_size": 4}),
    ("per_gpu_eval_batch_size", 4, {"per_device_eval_batch_size": 4}),
    ("no_cuda", True, {"use_cpu": True, "dataloader_pin_memory": False}),
    ("no_cuda", False, {}),
    ("use_mps_device", True, {}),
    ("warmup_ratio", 0.1, {"warmup_steps": 0.1}),
    ("warmup_ratio", 0.0, {}),
    ("warmup_ratio", 1.0, {"warmup_steps": ALMOST_ONE}),
    ("adafactor", True, {"optim": "adafactor"}),
    ("group_by_length", True, {"train_sampling_strategy": "group_by_length"}),
    ("include_inputs_for_metrics", True, {"include_for_metrics": ["inputs"]}),
    ("include_tokens_per_second", True, {"include_num_input_tokens_seen": "all"}),
    ("torchdynamo", "eager", {"torch_compile": True, "torch_compile_backend": "eager"}),
    ("fp16_backend", "cuda_amp", {}),
    ("half_precision_backend", "auto", {}),
    ("half_precision_backend", "apex", {}),
    ("fp16_backend", "apex", {}),
    ("fp16_opt_level", "O2", {}),
    ("fp16_opt_level", "01", {}),
    ("save_safetensors", True, {}),
    ("save_safetensors", False, {}),
    ("push_to_hub_token", "secret", {"hub_token": "secret"}),
    ("push_to_hub_model_id", "me/model", {"hub_model_id": "me/model"}),
    ("push_to_hub_organization", "us", {"hub_model_id": "us/out"}),
    ("dispatch_batches", True, {"accelerator_config": AcceleratorConfig(dispatch_batches=True)}),
    ("split_batches", True, {"accelerator_config": AcceleratorConfig(split_batches=True)}),
    ("fsdp_min_num_params", 100, {"fsdp_config": {"min_num_params": 100}}),
    (
        "fsdp_transformer_layer_cls_to_wrap",
        "Block",
        {"fsdp_config": {"transformer_layer_cls_to_wrap": "Block"}},
    ),
    ("sharded_ddp", "zero_dp_3 auto_wrap", {"fsdp": "full_shard auto_wrap"}),
    ("sharded_ddp", "simple", {"fsdp": "shard_grad_op"}),
    ("sharded_ddp", True, {"fsdp": "shard_grad_op"}),
    ("sharded_ddp", False, {}),
    ("sharded_ddp", ["zero_dp_2", "cpu_offload"], {"fsdp": "shard_grad_op offload"}),
    ("sharded_ddp", [ShardedDDPOption.ZERO_DP_3, ShardedDDPOption.AUTO_WRAP], {"fsdp": "full_shard auto_wrap"}),
    ("sharded_ddp", ShardedDDPOption.SIMPLE, {"fsdp": "shard_grad_op"}),
    ("xpu_backend", "ccl", {"ddp_backend": "ccl"}),
    ("tpu_metrics_debug", True, {"debug": ["tpu_metrics_debug"]}),
    ("tpu_num_cores", None, {}),
    ("tpu_num_cores", 8, {}),
    ("mp_parameters", "", {}),
    ("mp_parameters", "{}", {}),
    ("mp_parameters", {}, {}),
    ("ray_scope", "last", {}),
    ("use_ipex", True, {}),
    ("use_legacy_prediction_loop", True, {}),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("evaluation_strategy", "sometimes", "choose 'no', 'steps' or 'epoch'"),
    ("per_gpu_train_batch_size", -1, "give 1 or more"),
    ("warmup_ratio", 1.5, "a ratio is between 0 and 1; give warmup_steps a number of steps"),
    ("no_cuda", "perhaps", "give true or false"),
    ("fp16_backend", "apx", "did you mean 'apex'?"),
    ("half_precision_backend", "amq", "did you mean 'amp'?"),
    ("fp16_opt_level", "O7", "choose 'O0', 'O1', 'O2' or 'O3'"),
    ("mp_parameters", "partitions=2", "shard the model by fsdp or deepspeed"),
    ("mp_parameters", {"partitions": 2}, "shard the model by fsdp or deepspeed"),
    ("torchdynamo", "nvfuser", "choose 'inductor'"),
    ("torchdynamo", "fx2trt-fp16", "choose 'tensorrt'"),
    ("torchdynamo", "aot_cudagraphs", "choose 'cudagraphs'"),
    ("sharded_ddp", "zero_dp_4", "did you mean 'zero_dp_3'?"),
    ("ray_scope", "all", "leave it out"),
]


def warnings_of(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Return the object and the FutureWarnings raised while building it, which must point at this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
    assert {each.filename for each in caught} <= {__file__}
    return made, [str(each.message) for each in caught if each.category is FutureWarning]


def changed(arguments: TrainingArguments) -> dict[str, Any]:
    """Return the differences from default arguments."""
    plain = TrainingArguments("out")
    return {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(TrainingArguments)
        if getattr(arguments, field.name) != getattr(plain, field.name)
    }


@pytest.mark.parametrize(("name", "value", "modern"), RENAMED)
def test_old_name_sets_its_replacement_with_a_warning(name: str, value: Any, modern: dict[str, Any]) -> None:
    """An old name sets today's arguments, with one warning at the caller's line."""
    given: dict[str, Any] = {name: value}
    made, warned = warnings_of(lambda: TrainingArguments("out", **given))
    assert changed(made) == modern
    assert warned == [f"{name} is an argument of earlier releases; {LEGACY_ARGUMENTS[name].write}."]


@pytest.mark.parametrize(("name", "value", "said"), REFUSED)
@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_removed_features_are_rejected_with_a_replacement(name: str, value: Any, said: str) -> None:
    """Unsupported and invalid values are rejected under the name that was used."""
    with pytest.raises(ConfigurationError) as caught:
        TrainingArguments("out", **{name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"You chose {name}={value!r}, but ")
    assert said in problem


def test_tables_cover_every_old_name() -> None:
    """The tables above contain every old name."""
    assert {row[0] for row in RENAMED} | {row[0] for row in REFUSED} == LEGACY_ARGUMENTS.keys()


@dataclasses.dataclass
class Plain(TrainingArguments):
    extra: int = 3


@attrs.define(slots=False)
class Attrs(TrainingArguments):
    extra: int = 3


class Custom(TrainingArguments):
    def __init__(self, folder: str, **named: Any) -> None:
        super().__init__(folder, **named)


@pytest.mark.parametrize("kind", [Plain, Attrs, Custom])
def test_subclasses_accept_old_names(kind: type[Any]) -> None:
    """Derived dataclasses, attrs classes and classes with their own constructor accept old names."""
    made, warned = warnings_of(lambda: kind("out", evaluation_strategy="epoch", no_cuda=True))
    assert (made.eval_strategy, made.use_cpu, len(warned)) == ("epoch", True, 2)


def test_subclass_may_define_an_old_name() -> None:
    """A subclass's field with an old name is its own and gives no warning."""

    @dataclasses.dataclass
    class Own(TrainingArguments):
        ray_scope: str = "mine"
        group_by_length: bool = False

    made, warned = warnings_of(lambda: Own("out", ray_scope="anything", group_by_length=True))
    assert (made.ray_scope, made.group_by_length, made.train_sampling_strategy, warned) == (
        "anything",
        True,
        "random",
        [],
    )


def test_subclass_may_set_an_old_name_before_the_checks() -> None:
    """An old name set in `__post_init__` sets its replacement."""

    @dataclasses.dataclass
    class Earlier(TrainingArguments):
        def __post_init__(self) -> None:
            self.evaluation_strategy = "epoch"
            super().__post_init__()

    made, warned = warnings_of(lambda: Earlier("out"))
    assert (made.eval_strategy, len(warned)) == ("epoch", 1)


@pytest.mark.parametrize(("old", "today"), [("adamw_hf", "adamw_torch"), ("adamw_apex_fused", "adamw_torch_fused")])
def test_an_optimizer_of_an_earlier_release_is_torchs_own_with_a_warning(old: str, today: str) -> None:
    """Written as text or as a member of an enumeration, which has an alias for it."""
    made, warned = warnings_of(lambda: TrainingArguments("out", optim=old))
    assert (made.optim, warned) == (today, [f"optim={old!r} is a choice of earlier releases; write {today!r}."])
    with pytest.warns(FutureWarning, match=f"write '{today}'"):
        assert parse(TrainingArguments, ["--output_dir", "out", "--optim", old]).optim == today
    assert OptimizerNames[old.upper()] is OptimizerNames(today)
    with pytest.warns(FutureWarning, match=f"write '{today}'"):
        made.optim = old
    assert made.optim == today


def test_sharded_ddp_needs_no_value_on_a_command_line() -> None:
    """As in earlier releases, where the option alone means "simple"."""
    with pytest.warns(FutureWarning, match="write fsdp"):
        assert parse(TrainingArguments, ["--output_dir", "out", "--sharded_ddp"]).fsdp == "shard_grad_op"


def test_files_and_command_lines_may_use_old_names(tmp_path: Path) -> None:
    """YAML, JSON, dictionaries and command lines may use old names with text values."""
    values = {"output_dir": "out", "evaluation_strategy": "epoch", "warmup_ratio": 0.1, "no_cuda": True}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text("output_dir: out\nevaluation_strategy: epoch\nwarmup_ratio: 1e-1\nno_cuda: true\n")
    words = ["--output_dir", "out", "--evaluation_strategy", "epoch", "--warmup-ratio", "0.1", "--no_cuda"]
    makes: list[Callable[[], TrainingArguments]] = [
        lambda: from_dict(TrainingArguments, values),
        lambda: from_json_file(TrainingArguments, tmp_path / "a.json"),
        lambda: from_yaml_file(TrainingArguments, tmp_path / "a.yaml"),
        lambda: parse(TrainingArguments, words),
    ]
    for make in makes:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = make()
        assert (made.eval_strategy, made.warmup_steps, made.use_cpu) == ("epoch", 0.1, True)
        assert len(caught) == 3


@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_rejected_old_name_is_reported_with_its_source(tmp_path: Path) -> None:
    """The error names the line or the option with the old name."""
    path = tmp_path / "a.yaml"
    path.write_text("output_dir: out\nfp16_backend: apx\n")
    with pytest.raises(ConfigurationError, match="line 2: You chose fp16_backend='apx'"):
        from_yaml_file(TrainingArguments, path)
    with pytest.raises(ConfigurationError, match="--evaluation_strategy: You chose evaluation_strategy='never'"):
        parse(TrainingArguments, ["--evaluation_strategy", "never"])


CONTRADICTIONS: list[dict[str, Any]] = [
    {"evaluation_strategy": "epoch", "eval_strategy": "steps"},
    {"warmup_ratio": 0.1, "warmup_steps": 10},
    {"per_gpu_train_batch_size": 4, "per_device_train_batch_size": 16},
    {"adafactor": True, "optim": "sgd"},
    {"group_by_length": True, "train_sampling_strategy": "sequential"},
    {"torchdynamo": "eager", "torch_compile_backend": "aot_eager"},
    {"push_to_hub_token": "a", "hub_token": "b"},
    {"push_to_hub_organization": "us", "hub_model_id": "them/model"},
    {"split_batches": True, "accelerator_config": {"split_batches": False}},
]


@pytest.mark.parametrize("given", CONTRADICTIONS, ids=str)
@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_contradictory_old_and_new_names_are_rejected(given: dict[str, Any]) -> None:
    """Different values of an old name and its replacement are an error."""
    with pytest.raises(ConfigurationError, match=r"leave one of the two out|write hub_model_id alone") as caught:
        TrainingArguments("out", **given)
    assert caught.value.problems[0].startswith(f"You chose {next(iter(given))}=")


def test_messages_do_not_show_tokens() -> None:
    """The error about two tokens does not print them."""
    with pytest.warns(FutureWarning) as warned, pytest.raises(ConfigurationError) as caught:
        TrainingArguments("out", push_to_hub_token="secret1", hub_token="secret2")  # type: ignore[call-arg]
    (problem,) = caught.value.problems
    assert problem.startswith("You chose push_to_hub_token='<hidden>', but hub_token is '<hidden>'")
    assert not [each for each in warned if "secret" in str(each.message)]


AGREEING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"evaluation_strategy": "epoch", "eval_strategy": "epoch"}, {"eval_strategy": "epoch"}),
    ({"evaluation_strategy": "epoch", "eval_strategy": "no"}, {"eval_strategy": "epoch"}),
    ({"warmup_ratio": "0.1", "warmup_steps": "0"}, {"warmup_steps": 0.1}),
    ({"warmup_ratio": 0.0, "warmup_steps": 10}, {"warmup_steps": 10}),
    ({"no_cuda": False, "use_cpu": True}, {"use_cpu": True}),
    (
        {"include_inputs_for_metrics": True, "include_for_metrics": ["loss"]},
        {"include_for_metrics": ["inputs", "loss"]},
    ),
    ({"include_tokens_per_second": True, "include_num_input_tokens_seen": "non_padding"}, {}),
    (
        {"tpu_metrics_debug": True, "debug": "underflow_overflow"},
        {"debug": ["underflow_overflow", "tpu_metrics_debug"]},
    ),
    ({"push_to_hub_organization": "us", "push_to_hub_model_id": "model"}, {"hub_model_id": "us/model"}),
    ({"fsdp_min_num_params": 2, "fsdp_config": {"version": 2}}, {"fsdp_config": {"version": 2, "min_num_params": 2}}),
    ({"fsdp_min_num_params": 2, "fsdp_config": '{"version": 2}'}, {"fsdp_config": {"version": 2, "min_num_params": 2}}),
]


@pytest.mark.parametrize(("given", "modern"), AGREEING, ids=str)
@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_consistent_old_and_new_names_are_accepted(given: dict[str, Any], modern: dict[str, Any]) -> None:
    """Both names may be given if they agree, one is unset, or one adds to the other."""
    made = TrainingArguments("out", **given)
    assert {name: getattr(made, name) for name in modern} == modern


@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_defaults_of_an_earlier_release_change_nothing() -> None:
    """A dictionary with all defaults of an earlier release changes nothing."""
    nothing: dict[str, Any] = {
        name: False if old.kind is bool and name != "save_safetensors" else None
        for name, old in LEGACY_ARGUMENTS.items()
    }
    nothing |= {"fp16_backend": "auto", "fp16_opt_level": "O1", "warmup_ratio": 0.0, "fsdp_min_num_params": 0}
    nothing |= {"mp_parameters": "", "ray_scope": "last", "past_index": -1, "sharded_ddp": "", "save_safetensors": True}
    nothing |= {"dispatch_batches": None, "split_batches": None}
    assert changed(TrainingArguments("out", **nothing)) == {}


@pytest.mark.parametrize(("name", "value", "modern"), RENAMED)
@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_old_name_can_be_assigned(name: str, value: Any, modern: dict[str, Any]) -> None:
    """Assigning an old name sets its replacement."""
    made = TrainingArguments("out")
    setattr(made, name, value)
    made.check()
    assert changed(made) == modern


@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_save_safetensors_exists_only_if_it_was_given() -> None:
    """Libraries choose the format of their files by whether it exists, which it does not in transformers 5."""
    made = TrainingArguments("out")
    assert not hasattr(made, "save_safetensors")
    made.save_safetensors = False  # type: ignore[attr-defined]
    assert made.save_safetensors is False  # type: ignore[attr-defined]
    assert copy.deepcopy(made).save_safetensors is False  # type: ignore[attr-defined]
    assert "save_safetensors" not in made.to_dict()


READ: list[tuple[str, dict[str, Any], Any]] = [
    ("evaluation_strategy", {"eval_strategy": "epoch"}, "epoch"),
    ("per_gpu_train_batch_size", {"per_device_train_batch_size": 3}, 3),
    ("per_gpu_eval_batch_size", {"per_device_eval_batch_size": 3}, 3),
    ("no_cuda", {"use_cpu": True}, True),
    ("use_mps_device", {"use_cpu": True}, False),
    ("warmup_ratio", {"warmup_steps": 0.25}, 0.25),
    ("warmup_ratio", {"warmup_steps": 25}, 0.0),
    ("adafactor", {"optim": "adafactor"}, True),
    ("group_by_length", {}, False),
    ("include_inputs_for_metrics", {"include_for_metrics": ["inputs"]}, True),
    ("include_tokens_per_second", {"include_num_input_tokens_seen": "all"}, True),
    ("torchdynamo", {"torch_compile": True}, "inductor"),
    ("fp16_backend", {}, "auto"),
    ("half_precision_backend", {}, "auto"),
    ("fp16_opt_level", {}, "O1"),
    ("push_to_hub_token", {"hub_token": "x"}, "x"),
    ("push_to_hub_model_id", {"hub_model_id": "us/model"}, "model"),
    ("push_to_hub_model_id", {}, None),
    ("push_to_hub_organization", {"hub_model_id": "us/model"}, "us"),
    ("push_to_hub_organization", {"hub_model_id": "model"}, None),
    ("dispatch_batches", {"accelerator_config": {"dispatch_batches": True}}, True),
    ("split_batches", {}, False),
    ("fsdp_min_num_params", {"fsdp_config": {"min_num_params": 5}}, 5),
    ("fsdp_transformer_layer_cls_to_wrap", {}, None),
    ("sharded_ddp", {}, ""),
    ("xpu_backend", {"ddp_backend": "gloo"}, "gloo"),
    ("tpu_metrics_debug", {"debug": "tpu_metrics_debug"}, True),
    ("tpu_num_cores", {}, None),
    ("mp_parameters", {}, ""),
    ("ray_scope", {}, "last"),
    ("use_ipex", {}, False),
    ("use_legacy_prediction_loop", {}, False),
]


@pytest.mark.parametrize(("name", "given", "value"), READ)
def test_old_name_can_be_read(name: str, given: dict[str, Any], value: Any) -> None:
    """Reading an old name returns its equivalent value without a warning."""
    assert getattr(TrainingArguments("out", **given), name) == value


def test_table_reads_every_old_name() -> None:
    """The table above reads every old name; other names raise AttributeError."""
    assert {*ONLY_IF_GIVEN, *(row[0] for row in READ)} == LEGACY_ARGUMENTS.keys()
    with pytest.raises(AttributeError, match="'TrainingArguments' object has no attribute 'nothing'"):
        TrainingArguments("out").nothing  # type: ignore[attr-defined]  # noqa: B018


SETTERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("set_lr_scheduler", {"name": "cosine", "warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
    ("set_lr_scheduler", {"warmup_ratio": 0.0, "warmup_steps": 7}, {"warmup_steps": 7}),
    ("set_evaluate", {"strategy": "epoch", "jit_mode": True}, {"eval_strategy": "epoch", "jit_mode_eval": True}),
    ("set_testing", {"batch_size": 3, "jit_mode": True}, {"jit_mode_eval": True}),
]


@pytest.mark.parametrize(("name", "given", "modern"), SETTERS, ids=str)
def test_setters_accept_old_keywords(name: str, given: dict[str, Any], modern: dict[str, Any]) -> None:
    """An old keyword of a setter sets its replacement with a warning."""
    made, warned = warnings_of(lambda: getattr(TrainingArguments("out"), name)(**given))
    assert {each: getattr(made, each) for each in modern} == modern
    assert len(warned) == 1


KEPT_VALUES: dict[str, Any] = {
    "logging_dir": "logs",
    "overwrite_output_dir": True,
    "jit_mode_eval": True,
    "past_index": 1,
}


@pytest.mark.parametrize("name", DISCOURAGED_ARGUMENTS)
def test_old_argument_without_a_replacement_is_kept(name: str) -> None:
    """It remains an argument and warns if it is set to anything but its default."""
    value, default = KEPT_VALUES[name], TrainingArguments.__dataclass_fields__[name].default
    made, warned = warnings_of(lambda: TrainingArguments("out", **{name: value}))
    assert getattr(made, name) == value
    assert len(warned) == 1
    assert DISCOURAGED_ARGUMENTS[name] in warned[0]
    assert warnings_of(lambda: TrainingArguments("out", **{name: default}))[1] == []
