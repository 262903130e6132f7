"""Names, values and defaults equal those of transformers."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import re
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments as ReferenceArguments
from transformers import trainer_utils, training_args
from transformers.debug_utils import DebugOption as ReferenceDebugOption

from hexloop.app.arguments import choices
from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.arguments.base import SEQ2SEQ_ARGUMENTS
from hexloop.app.arguments.hexloop_only import HexloopArguments
from hexloop.app.arguments.legacy import DISCOURAGED_ARGUMENTS, LEGACY_ARGUMENTS

OURS = {field.name: field for field in dataclasses.fields(TrainingArguments)}
OWN = {
    name for owner in (HexloopArguments, *HexloopArguments.__bases__) for name in inspect.get_annotations(owner)
} | DISCOURAGED_ARGUMENTS.keys()
THEIRS = {field.name: field for field in dataclasses.fields(ReferenceArguments)}
TABLE = Path(__file__).parents[2] / "reference" / "arguments.tsv"
API = TABLE.with_name("api.md")


def table() -> dict[str, dict[str, str]]:
    """Return the table's rows by argument, those of sequence-to-sequence arguments included."""
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {row["name"]: row for row in csv.DictReader(lines, delimiter="\t")}


def in_present_release(row: dict[str, str]) -> bool:
    return row["default in 5.23"] != "-"


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Enum):
        return value.value
    return [plain(item) for item in value] if isinstance(value, list) else value


def default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@pytest.mark.parametrize("name", sorted(OURS.keys() - OWN))
def test_default_equals_the_installed_transformers(name: str) -> None:
    """Each argument has the default of the installed transformers."""
    assert name in THEIRS
    assert plain(default(OURS[name])) == plain(default(THEIRS[name]))


@pytest.mark.parametrize("name", sorted(OURS.keys() - OWN))
def test_default_equals_the_table(name: str) -> None:
    """Each argument has the default listed in the table of transformers' releases."""
    expected = table()[name]["default in 5.23"]
    if expected == "factory":
        assert OURS[name].default_factory is list
    elif expected == "default_optim":
        assert OURS[name].default == "adamw_torch_fused"
    else:
        assert repr(plain(OURS[name].default)) == expected


def test_every_name_of_transformers_is_known() -> None:
    """Each name of any release of transformers is an argument, an old name, or another class's argument."""
    rows = table()
    accepted = OURS.keys() - OWN
    present = {name for name, row in rows.items() if in_present_release(row)}
    assert present == accepted | SEQ2SEQ_ARGUMENTS
    assert not accepted & SEQ2SEQ_ARGUMENTS
    assert rows.keys() - present == LEGACY_ARGUMENTS.keys() | DISCOURAGED_ARGUMENTS.keys()


def test_derived_defaults_equal_transformers(tmp_path: Path) -> None:
    """A default construction derives the same values as in transformers."""
    ours = TrainingArguments(str(tmp_path), use_cpu=True)
    theirs = ReferenceArguments(str(tmp_path), use_cpu=True)
    for name in OURS.keys() - OWN:
        assert plain(getattr(ours, name)) == plain(getattr(theirs, name)), name


DERIVING: list[dict[str, Any]] = [
    {"eval_strategy": "steps", "logging_steps": 7},
    {"eval_strategy": "steps", "eval_steps": 0, "logging_steps": 20.0},
    {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
    {"eval_strategy": "steps", "eval_steps": 0.1, "save_steps": 0.2, "load_best_model_at_end": True},
    {"metric_for_best_model": "accuracy"},
    {"metric_for_best_model": "eval_loss"},
    {"metric_for_best_model": "accuracy", "greater_is_better": False},
    {"eval_strategy": "epoch", "lr_scheduler_type": "reduce_lr_on_plateau"},
    {"report_to": "tensorboard"},
    {"report_to": ["none"]},
    {"include_num_input_tokens_seen": True},
    {"include_num_input_tokens_seen": False},
    {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": False}},
    {"lr_scheduler_kwargs": '{"num_cycles": "2", "flag": "true", "deep": {"rate": "0.5"}}'},
    {"save_steps": 0.25, "logging_steps": 1, "warmup_steps": 0.1},
    {"output_dir": "~/somewhere"},
    {"torch_compile": True},
    {"torch_compile_mode": "max-autotune"},
    {"torch_compile_backend": "aot_eager"},
    {"num_train_epochs": 2, "max_steps": 10, "weight_decay": 1},
]


@pytest.mark.parametrize("given", DERIVING, ids=" ".join)
def test_derived_values_equal_transformers(given: dict[str, Any]) -> None:
    """Unset values are derived from the others as in transformers."""
    named = {"output_dir": "out", "use_cpu": True, **given}
    ours, theirs = TrainingArguments(**named), ReferenceArguments(**named)
    for name in OURS.keys() - OWN:
        assert plain(getattr(ours, name)) == plain(getattr(theirs, name)), name


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
def test_both_names_of_activation_checkpointing_work() -> None:
    """The older name sets the newer one, which takes precedence if both are given."""
    older: dict[str, Any] = {"gradient_checkpointing": True}
    both: dict[str, Any] = {"gradient_checkpointing": False, "activation_checkpointing": True}
    for given in (older, both):
        ours, theirs = TrainingArguments("out", **given), ReferenceArguments("out", use_cpu=True, **given)
        assert ours.activation_checkpointing is theirs.activation_checkpointing is True
        assert ours.gradient_checkpointing is theirs.gradient_checkpointing is True


ENUMERATIONS = [
    (choices.IntervalStrategy, trainer_utils.IntervalStrategy),
    (choices.SaveStrategy, trainer_utils.SaveStrategy),
    (choices.HubStrategy, trainer_utils.HubStrategy),
    (choices.SchedulerType, trainer_utils.SchedulerType),
    (choices.OptimizerNames, training_args.OptimizerNames),
    (choices.ParallelMode, training_args.ParallelMode),
    (choices.DebugOption, ReferenceDebugOption),
    (choices.FSDPOption, trainer_utils.FSDPOption),
    (choices.HPSearchBackend, trainer_utils.HPSearchBackend),
]


@pytest.mark.parametrize(("ours", "theirs"), ENUMERATIONS, ids=lambda kind: str(kind.__name__))
def test_enumerations_equal_transformers(ours: type[Enum], theirs: type[Enum]) -> None:
    """Each enumeration has the members and values of that in transformers; `best` is one more choice of hexloop's."""
    own = {"BEST": "best"} if ours is choices.HubStrategy else {}
    assert {member.name: member.value for member in ours} == {member.name: member.value for member in theirs} | own


# set_save also accepts `best`, as its type shows; in transformers the methods' annotations omit the returned object.
SETTERS = [name for name in vars(ReferenceArguments) if name.startswith("set_")]
OF_EARLIER_RELEASES = {"jit_mode", "warmup_ratio"}


@pytest.mark.parametrize("name", SETTERS)
def test_setters_have_the_signature_of_transformers(name: str) -> None:
    """Each grouped setter has the parameters and defaults of that in transformers, and old ones by name."""
    signatures = [inspect.signature(getattr(kind, name)) for kind in (TrainingArguments, ReferenceArguments)]
    ours, theirs = (
        [(each.name, each.default) for each in signature.parameters.values() if each.name not in OF_EARLIER_RELEASES]
        for signature in signatures
    )
    assert ours == theirs


SET: list[tuple[str, dict[str, Any]]] = [
    ("set_training", {}),
    ("set_training", {"learning_rate": 1e-3, "batch_size": 4, "num_epochs": 1.5, "activation_checkpointing": True}),
    ("set_evaluate", {"strategy": "steps", "steps": 50, "delay": 2, "accumulation_steps": 3, "loss_only": True}),
    ("set_testing", {"batch_size": 32}),
    ("set_save", {"strategy": "epoch", "steps": 7, "total_limit": 2, "on_each_node": True}),
    ("set_logging", {}),
    ("set_logging", {"strategy": "epoch", "steps": 3, "level": "info", "first_step": True}),
    ("set_optimizer", {}),
    ("set_optimizer", {"name": "sgd", "beta1": 0.8, "epsilon": 1e-6, "args": "momentum=0.9"}),
    ("set_lr_scheduler", {"name": "cosine", "warmup_steps": 0.05, "max_steps": 9}),
    ("set_push_to_hub", {"model_id": "me/model", "strategy": "end", "token": "x", "revision": "main"}),
    ("set_dataloader", {"num_workers": 2, "prefetch_factor": 4, "sampler_seed": 3, "drop_last": True}),
]


@pytest.mark.parametrize(("name", "given"), SET, ids=str)
def test_setters_equal_transformers(name: str, given: dict[str, Any]) -> None:
    """A grouped setter sets the same values as in transformers and returns the object."""
    ours, theirs = TrainingArguments("out", use_cpu=True), ReferenceArguments("out", use_cpu=True)
    assert getattr(ours, name)(**given) is ours
    getattr(theirs, name)(**given)
    for field in OURS.keys() - OWN - {"report_to"}:
        assert plain(getattr(ours, field)) == plain(getattr(theirs, field)), field


def test_every_public_member_of_transformers_exists() -> None:
    """Each member in the API list of transformers exists."""
    section = API.read_text().split("\n## TrainingArguments\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"^- `(\w+)\(", section, flags=re.MULTILINE))
    assert len(listed) > 20
    assert {name for name in listed if not hasattr(TrainingArguments, name)} == set()


def test_enumerations_print_as_their_values() -> None:
    """A member equals its value in messages, f-strings and comparisons."""
    strategy = TrainingArguments("out").save_strategy
    assert strategy == "steps"
    assert f"{strategy}" == str(strategy) == "steps"
