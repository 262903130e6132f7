"""The arguments behave as a dataclass, and both dataclasses and attrs classes may derive from them."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import attrs
import pytest
from transformers import HfArgumentParser

from hexloop.app.arguments.arguments import TrainingArguments
from hexloop.app.environment import DistributedEnvironment
from hexloop.domain.errors import ConfigurationError


@dataclass
class Plain(TrainingArguments):
    extra: int = 3


@dataclass
class Elaborate(TrainingArguments):
    """A subclass as other libraries write it: new defaults and types, and values derived before the checks."""

    learning_rate: float = 1e-3
    logging_steps: float = 10
    bf16: bool | None = None  # type: ignore[assignment]
    beta: float = field(default=0.1, metadata={"help": "how much"})
    names: list[str] = field(default_factory=lambda: ["a"])
    seen: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.bf16 = not self.fp16 if self.bf16 is None else self.bf16
        super().__post_init__()
        self.seen.append(type(self.save_strategy).__name__)


@attrs.define(slots=False)
class Attrs(TrainingArguments):
    extra: int = 3
    learning_rate: float = 1e-3


@attrs.define(slots=False)
class Validated(TrainingArguments):
    count: int = attrs.field(default=1, kw_only=True, validator=attrs.validators.gt(0))
    items: list[int] = attrs.field(factory=list, kw_only=True, converter=list)


@dataclass
class Deeper(Plain):
    still: str = "x"


DERIVED: list[type[Any]] = [Plain, Elaborate, Attrs, Validated, Deeper]


def test_dataclass_functions_work_on_the_class_itself() -> None:
    """`is_dataclass`, `fields`, `replace` and `asdict` work; the first field is output_dir."""
    arguments = TrainingArguments("out", learning_rate=1e-3, include_for_metrics=["loss"])
    assert dataclasses.is_dataclass(TrainingArguments)
    assert dataclasses.is_dataclass(arguments)
    assert dataclasses.fields(arguments)[0].name == "output_dir"
    assert dataclasses.fields(TrainingArguments) == dataclasses.fields(arguments)
    changed = dataclasses.replace(arguments, max_steps=5)
    assert type(changed) is TrainingArguments
    assert (changed.max_steps, changed.learning_rate, arguments.max_steps) == (5, 1e-3, -1)
    as_dict = dataclasses.asdict(arguments)
    assert as_dict["include_for_metrics"] == ["loss"]
    assert as_dict["include_for_metrics"] is not arguments.include_for_metrics
    assert TrainingArguments(**as_dict) == arguments
    with pytest.raises(ConfigurationError, match="learning_rate=-1"):
        dataclasses.replace(arguments, learning_rate=-1)


def test_attrs_functions_work_on_the_class() -> None:
    """`attrs.fields`, `has` and `evolve` work on the arguments."""
    arguments = TrainingArguments("out")
    assert attrs.has(TrainingArguments)
    assert {each.name for each in attrs.fields(TrainingArguments)} == {
        each.name for each in dataclasses.fields(TrainingArguments)
    }
    evolved = attrs.evolve(arguments, seed=7)  # type: ignore[misc]  # mypy's attrs plugin takes it for a dataclass
    assert evolved.seed == 7


def test_fields_have_types_help_and_class_level_defaults() -> None:
    """A dataclass field has its type and help, and its default is also a class attribute."""
    by_name = {each.name: each for each in dataclasses.fields(TrainingArguments)}
    assert by_name["learning_rate"].type is float
    assert by_name["eval_accumulation_steps"].type == int | None
    assert TrainingArguments.learning_rate == 5e-5
    assert by_name["include_for_metrics"].default_factory is list
    for name, each in by_name.items():
        assert len(each.metadata["help"]) > 15, name
        assert "%" not in each.metadata["help"], name


def test_dataclass_subclass_inherits_fields_and_order() -> None:
    """A derived dataclass accepts output_dir first and all other fields by name."""
    made = Plain("out", learning_rate=0.5, extra=4)
    assert (made.output_dir, made.learning_rate, made.extra) == ("out", 0.5, 4)
    assert Deeper("out", extra=5, still="y").still == "y"
    assert {each.name for each in dataclasses.fields(Plain)} == {
        "extra",
        *(each.name for each in dataclasses.fields(TrainingArguments)),
    }
    assert dataclasses.replace(made, extra=9).extra == 9
    assert dataclasses.asdict(made)["extra"] == 4


def test_dataclass_subclass_may_derive_values_before_the_checks() -> None:
    """A subclass's `__post_init__` may set values before it calls the checks, and sees enumerations afterwards."""
    made = Elaborate("out")
    assert (made.learning_rate, made.logging_steps, made.bf16, made.names) == (1e-3, 10, True, ["a"])
    assert made.seen == ["SaveStrategy"]
    assert Elaborate("out", fp16=True).bf16 is False
    with pytest.raises(ConfigurationError, match="fp16=True and bf16=True"):
        Elaborate("out", fp16=True, bf16=True)
    assert "seen" not in made.to_dict()


def test_attrs_subclass_inherits_fields() -> None:
    """A derived attrs class accepts all fields and is a dataclass with its own fields too."""
    kind: Any = Attrs  # mypy's attrs plugin does not see the fields of what it takes for a dataclass
    made = kind("out", extra=4, seed=1)
    assert (made.output_dir, made.extra, made.seed, made.learning_rate) == ("out", 4, 1, 1e-3)
    assert dataclasses.replace(made, extra=5).extra == 5
    assert dataclasses.asdict(made)["extra"] == 4
    assert Attrs.learning_rate == 1e-3


@pytest.mark.parametrize("kind", DERIVED)
def test_subclasses_check_on_construction(kind: type[Any]) -> None:
    """Each kind of subclass is validated on construction, reports all problems, and rejects unknown names."""
    with pytest.raises(ConfigurationError) as caught:
        kind("out", learning_rate=float("nan"), seed=-1, fp16_full_eval=True, bf16_full_eval=True, wramup_steps=2)
    assert len(caught.value.problems) == 4
    assert "did you mean warmup_steps?" in str(caught.value)


@pytest.mark.parametrize("kind", DERIVED)
def test_subclasses_check_on_assignment(kind: type[Any]) -> None:
    """Each kind of subclass validates and converts assigned values, also with a new default."""
    made = kind("out")
    for name, bad in (("learning_rate", -1), ("eval_strategy", "sometimes"), ("seed", "x")):
        before = getattr(made, name)
        with pytest.raises(ConfigurationError, match=name):
            setattr(made, name, bad)
        assert getattr(made, name) == before
    made.learning_rate = "1e-2"
    assert made.learning_rate == 0.01


def test_hooks_of_an_attrs_subclass_keep_working() -> None:
    """Converters and validators of a subclass's fields run on construction and on assignment."""
    made = Validated("out", items=(1, 2))  # type: ignore[call-arg, arg-type]
    assert made.items == [1, 2]
    made.items = (3,)  # type: ignore[assignment]
    assert made.items == [3]
    with pytest.raises(ValueError, match="count"):
        made.count = 0
    with pytest.raises(ConfigurationError):
        made.seed = -1


@pytest.mark.parametrize("kind", [TrainingArguments, Plain, Attrs])
def test_copies_are_equal_and_validated(kind: type[Any]) -> None:
    """Shallow and deep copies are equal, independent, and validate assignments."""
    made = kind("out", include_for_metrics=["loss"])
    for copied in (copy.copy(made), copy.deepcopy(made)):
        assert copied == made
        copied.seed = 1
        assert made.seed == 42
        assert copied != made
        with pytest.raises(ConfigurationError):
            copied.seed = -1


def test_custom_constructor_may_have_other_parameters() -> None:
    """A hand-written `__init__` may have parameters that are not arguments."""

    class Custom(TrainingArguments):
        def __init__(self, folder: str, **named: Any) -> None:
            super().__init__(folder, **named)
            self.folder = folder

    made = Custom(folder="out", seed=1)
    assert (made.output_dir, made.folder, made.seed) == ("out", "out", 1)


def test_unresolvable_annotations_are_accepted() -> None:
    """A subclass may use types local to a function, and its arguments are still validated."""

    class Local:
        pass

    @dataclass
    class Hidden(TrainingArguments):
        local: Local | None = None
        seed: int = 7

    made = Hidden("out", local=Local())
    assert made.seed == 7
    with pytest.raises(ConfigurationError):
        made.seed = -1


def test_default_computed_from_the_object_requires_attrs() -> None:
    """An attrs subclass may compute a default from the object; a derived dataclass requires the value."""

    @attrs.define(slots=False)
    class Computing(TrainingArguments):
        doubled: int = attrs.field(kw_only=True, default=attrs.Factory(lambda self: 2 * self.seed, takes_self=True))

    @dataclass
    class Dependent(Computing):
        pass

    kind: Any = Computing
    assert kind("out", seed=4).doubled == 8
    dependent: Any = Dependent
    assert dependent("out", doubled=5).doubled == 5
    with pytest.raises(TypeError, match="give doubled"):
        dependent("out")


def test_other_attributes_may_be_set() -> None:
    """Attributes that are not arguments may be set on the object; `distributed_environment` is one."""
    arguments = TrainingArguments("out")
    arguments.note = "mine"  # type: ignore[attr-defined]  # checkers report it, as for any class
    assert arguments.note == "mine"  # type: ignore[attr-defined]
    arguments.distributed_environment = DistributedEnvironment(world_size=2)
    assert arguments.world_size == 2
    assert "distributed_environment" not in arguments.to_dict()


def test_parser_of_transformers_accepts_the_arguments() -> None:
    """HfArgumentParser of transformers builds the arguments and their subclasses."""
    line = "--output_dir out --learning_rate 1e-3 --bf16 --gradient_checkpointing --report_to tensorboard --extra 5"
    (made,) = HfArgumentParser(Plain).parse_args_into_dataclasses(  # type: ignore[arg-type]
        [*line.split(), "--lr_scheduler_kwargs", '{"num_cycles": 2}'], look_for_args_file=False
    )
    assert isinstance(made, Plain)
    assert (made.learning_rate, made.bf16, made.gradient_checkpointing, made.extra) == (1e-3, True, True, 5)
    assert made.lr_scheduler_kwargs == {"num_cycles": 2}
    assert made.report_to == ["tensorboard"]
