"""The names of earlier releases keep working, and say what to write today."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.data import AcceleratorConfig
from hexloop.app.arguments.documents import from_dict, from_json_file, from_yaml_file
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS, LEGACY_ARGUMENTS
from hexloop.app.arguments.parser import parse
from hexloop.domain.errors import ConfigurationError

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
    ("fp16_opt_level", "O2", {}),
    ("save_safetensors", True, {}),
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
    ("xpu_backend", "ccl", {"ddp_backend": "ccl"}),
    ("tpu_metrics_debug", True, {"debug": ["tpu_metrics_debug"]}),
    ("tpu_num_cores", None, {}),
    ("mp_parameters", "", {}),
    ("ray_scope", "last", {}),
    ("use_ipex", True, {}),
    ("jit_mode_eval", False, {}),
    ("use_legacy_prediction_loop", True, {}),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("evaluation_strategy", "sometimes", "choose 'no', 'steps' or 'epoch'"),
    ("per_gpu_train_batch_size", -1, "give 1 or more"),
    ("warmup_ratio", 1.5, "a ratio is between 0 and 1; give warmup_steps a number of steps"),
    ("no_cuda", "perhaps", "give true or false"),
    ("fp16_backend", "apex", "set fp16=True alone, or bf16=True"),
    ("half_precision_backend", "apex", "set fp16=True alone, or bf16=True"),
    ("half_precision_backend", "amq", "did you mean 'amp'?"),
    ("fp16_opt_level", "O7", "choose 'O0', 'O1', 'O2' or 'O3'"),
    ("save_safetensors", False, "leave it out: weights are written as safetensors"),
    ("tpu_num_cores", 8, "train on GPUs or a CPU"),
    ("mp_parameters", "partitions=2", "run the script by itself"),
    ("sharded_ddp", "zero_dp_4", "did you mean 'zero_dp_3'?"),
    ("ray_scope", "all", "leave it out"),
    ("jit_mode_eval", True, "set torch_compile=True"),
]


def told_by(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What is made, and the FutureWarnings on the way, each of which must point at this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
    assert {each.filename for each in caught} <= {__file__}
    return made, [str(each.message) for each in caught if each.category is FutureWarning]


def changed(arguments: TrainingArguments) -> dict[str, Any]:
    """What differs from arguments that were told nothing."""
    plain = TrainingArguments("out")
    return {
        field.name: getattr(arguments, field.name)
        for field in dataclasses.fields(TrainingArguments)
        if getattr(arguments, field.name) != getattr(plain, field.name)
    }


@pytest.mark.parametrize(("name", "value", "modern"), RENAMED)
def test_an_old_name_has_its_modern_effect_and_a_warning(name: str, value: Any, modern: dict[str, Any]) -> None:
    """An old name does what it did, by today's arguments, and one warning at the caller's line names what to write."""
    given: dict[str, Any] = {name: value}
    made, told = told_by(lambda: TrainingArguments("out", **given))
    assert changed(made) == modern
    assert told == [f"{name} is an argument of earlier releases; {LEGACY_ARGUMENTS[name].write}."]


@pytest.mark.parametrize(("name", "value", "said"), REFUSED)
@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_what_is_no_more_is_refused_with_the_way_out(name: str, value: Any, said: str) -> None:
    """A value that asks for something that is no more, or is none, is refused under the name that was written."""
    with pytest.raises(ConfigurationError) as caught:
        TrainingArguments("out", **{name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(f"You chose {name}={value!r}, but ")
    assert said in problem


def test_every_old_name_is_tried() -> None:
    """The tables above try every old name."""
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
def test_subclasses_take_old_names(kind: type[Any]) -> None:
    """A dataclass, an attrs class and a class with a constructor of its own take old names as their base does."""
    made, told = told_by(lambda: kind("out", evaluation_strategy="epoch", no_cuda=True))
    assert (made.eval_strategy, made.use_cpu, len(told)) == ("epoch", True, 2)


def test_a_subclass_may_use_an_old_name_itself() -> None:
    """A field that a subclass calls like an old argument is its own, and nobody warns."""

    @dataclasses.dataclass
    class Own(TrainingArguments):
        ray_scope: str = "mine"
        group_by_length: bool = False

    made, told = told_by(lambda: Own("out", ray_scope="anything", group_by_length=True))
    assert (made.ray_scope, made.group_by_length, made.train_sampling_strategy, told) == (
        "anything",
        True,
        "random",
        [],
    )


def test_a_subclass_may_say_an_old_name_before_the_checks() -> None:
    """An old name that a subclass sets in its `__post_init__` has its modern effect."""

    @dataclasses.dataclass
    class Earlier(TrainingArguments):
        def __post_init__(self) -> None:
            self.evaluation_strategy = "epoch"
            super().__post_init__()

    made, told = told_by(lambda: Earlier("out"))
    assert (made.eval_strategy, len(told)) == ("epoch", 1)


def test_old_names_come_from_files_and_command_lines(tmp_path: Path) -> None:
    """YAML, JSON, a dictionary and a command line may use old names, whose values may be text."""
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
def test_a_refused_old_name_is_told_with_its_place(tmp_path: Path) -> None:
    """A file's line, or an option, is named with the old name that was written there."""
    path = tmp_path / "a.yaml"
    path.write_text("output_dir: out\nfp16_backend: apex\n")
    with pytest.raises(ConfigurationError, match="line 2: You chose fp16_backend='apex'"):
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
def test_an_old_and_a_new_name_may_not_contradict_each_other(given: dict[str, Any]) -> None:
    """Of an old name and the one that replaced it, with different values, neither wins."""
    with pytest.raises(ConfigurationError, match=r"leave one of the two out|write hub_model_id alone") as caught:
        TrainingArguments("out", **given)
    assert caught.value.problems[0].startswith(f"You chose {next(iter(given))}=")


def test_a_token_is_shown_in_no_message() -> None:
    """What is told of two tokens does not tell the tokens."""
    with pytest.warns(FutureWarning) as told, pytest.raises(ConfigurationError) as caught:
        TrainingArguments("out", push_to_hub_token="secret1", hub_token="secret2")  # type: ignore[call-arg]
    (problem,) = caught.value.problems
    assert problem.startswith("You chose push_to_hub_token='<hidden>', but hub_token is '<hidden>'")
    assert not [each for each in told if "secret" in str(each.message)]


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
def test_an_old_and_a_new_name_may_agree(given: dict[str, Any], modern: dict[str, Any]) -> None:
    """Both names may be given where they say the same, one of them says nothing, or one adds to the other."""
    made = TrainingArguments("out", **given)
    assert {name: getattr(made, name) for name in modern} == modern


@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_all_defaults_of_an_earlier_release_ask_for_nothing() -> None:
    """A dictionary of everything that an earlier release had, at its defaults, changes nothing."""
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
def test_an_old_name_can_be_assigned(name: str, value: Any, modern: dict[str, Any]) -> None:
    """Assigning an old name, as scripts do between two runs, has its modern effect as well."""
    made = TrainingArguments("out")
    setattr(made, name, value)
    made.check()
    assert changed(made) == modern


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
    ("save_safetensors", {}, True),
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
    ("jit_mode_eval", {}, False),
    ("use_legacy_prediction_loop", {}, False),
]


@pytest.mark.parametrize(("name", "given", "value"), READ)
def test_an_old_name_can_be_read(name: str, given: dict[str, Any], value: Any) -> None:
    """Reading an old name gives what today's arguments amount to under it, without a warning."""
    assert getattr(TrainingArguments("out", **given), name) == value


def test_every_old_name_is_read() -> None:
    """The table above reads every old name; another name is no attribute."""
    assert {row[0] for row in READ} == LEGACY_ARGUMENTS.keys()
    with pytest.raises(AttributeError, match="'TrainingArguments' object has no attribute 'nothing'"):
        TrainingArguments("out").nothing  # type: ignore[attr-defined]  # noqa: B018


SETTERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("set_lr_scheduler", {"name": "cosine", "warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
    ("set_lr_scheduler", {"warmup_ratio": 0.0, "warmup_steps": 7}, {"warmup_steps": 7}),
    ("set_evaluate", {"strategy": "epoch", "jit_mode": False}, {"eval_strategy": "epoch"}),
    ("set_testing", {"batch_size": 3, "jit_mode": False}, {"per_device_eval_batch_size": 3}),
]


@pytest.mark.parametrize(("name", "given", "modern"), SETTERS, ids=str)
def test_setters_take_what_they_took(name: str, given: dict[str, Any], modern: dict[str, Any]) -> None:
    """A keyword that a setter of an earlier release had warns and has its modern effect."""
    made, told = told_by(lambda: getattr(TrainingArguments("out"), name)(**given))
    assert {each: getattr(made, each) for each in modern} == modern
    assert len(told) == 1


@pytest.mark.filterwarnings("ignore:.* is an argument of earlier releases:FutureWarning")
def test_a_setter_refuses_what_is_no_more() -> None:
    """A keyword of an earlier release that asks for what is no more is refused, and nothing is set."""
    made = TrainingArguments("out")
    with pytest.raises(ConfigurationError, match=r"jit_mode_eval=True.*torch_compile"):
        made.set_evaluate(strategy="epoch", jit_mode=True)
    assert changed(made) == {}


KEPT_VALUES: dict[str, Any] = {"logging_dir": "logs", "overwrite_output_dir": True, "past_index": 1}


@pytest.mark.parametrize("name", DISCOURAGED_ARGUMENTS)
def test_an_old_argument_that_nothing_replaced_is_kept(name: str) -> None:
    """An old argument without a successor is an argument still; it warns where it asks for something."""
    value, default = KEPT_VALUES[name], TrainingArguments.__dataclass_fields__[name].default
    made, told = told_by(lambda: TrainingArguments("out", **{name: value}))
    assert getattr(made, name) == value
    assert len(told) == 1
    assert DISCOURAGED_ARGUMENTS[name] in told[0]
    assert told_by(lambda: TrainingArguments("out", **{name: default}))[1] == []
