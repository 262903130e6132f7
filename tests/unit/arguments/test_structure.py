"""Building arguments and other classes from dictionaries and files, with the line of each problem."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.documents import (
    Document,
    SourceLocation,
    from_document,
    read_yaml,
)
from hexloop.domain.errors import ConfigurationError
from tests.unit.arguments.sources import from_dict, from_json_file, from_yaml_file


class Colour(str, Enum):  # noqa: UP042 - the older way to write it has to work as well
    RED = "red"


class Level(IntEnum):
    LOW = 1


@attrs.frozen
class Component:
    name: str
    settings: dict[str, Any] = attrs.Factory(dict)


@attrs.frozen
class Recipe:
    model: Component
    training: TrainingArguments
    extras: list[Component] = attrs.Factory(list)
    ratio: float | None = None
    colour: Colour = Colour.RED
    level: Level = Level.LOW


@dataclasses.dataclass
class Mine(TrainingArguments):
    alphas: list[float] = dataclasses.field(default_factory=list)
    model: Component | None = None
    amount: int | None = None


@attrs.frozen
class Picky:
    size: int = attrs.field(validator=attrs.validators.lt(10))


@dataclasses.dataclass
class Holder(TrainingArguments):
    picky: Picky | None = None

    def __post_init__(self) -> None:
        if self.run_name == "unlucky":
            raise TypeError("no luck")
        super().__post_init__()


@dataclasses.dataclass
class Needing(TrainingArguments):
    needed: int = dataclasses.field(kw_only=True)


def write(tmp_path: Path, text: str, name: str = "recipe.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def problems_of_yaml(cls: type[Any], tmp_path: Path, text: str) -> list[str]:
    """Return the problems of a file without its folder."""
    with pytest.raises(ConfigurationError) as caught:
        from_yaml_file(cls, write(tmp_path, text))
    return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_yaml_scalars(tmp_path: Path) -> None:
    """`no` is a string, `1e-4` a number at any depth, `010` ten, a date text; yes and on are booleans."""
    text = """
        output_dir: out
        eval_strategy: no
        learning_rate: 1e-4
        lr_scheduler_kwargs: {min_lr: 1e-6, cycles: 0x10, ratio: .5, off: ~, big: 1E3, many: 0o17, yes: true}
        bf16: yes
        logging_steps: "10"
        seed: 010
        run_name: 2024-01-02
        include_for_metrics: [loss]
        eval_steps: null
    """
    made = from_yaml_file(TrainingArguments, write(tmp_path, text))
    assert (made.eval_strategy, made.learning_rate, made.bf16, made.logging_steps) == ("no", 1e-4, True, 10)
    assert made.lr_scheduler_kwargs == {
        "min_lr": 1e-6,
        "cycles": 16,
        "ratio": 0.5,
        "off": None,
        "big": 1000.0,
        "many": 15,
        "yes": True,
    }
    assert (made.seed, made.run_name, made.include_for_metrics, made.eval_steps) == (10, "2024-01-02", ["loss"], None)


def test_all_problems_of_a_file_are_reported_with_their_lines(tmp_path: Path) -> None:
    """One error lists misspelt keys, wrong types, bad values and contradictions."""
    text = (
        "output_dir: out\nlearning_rat: 1e-4\n\nseed: many\nfp16: true\nmax_steps: 0\nbf16: true\nlearning_rate: .nan\n"
    )
    assert problems_of_yaml(TrainingArguments, tmp_path, text) == [
        "recipe.yaml, line 2: You chose learning_rat=0.0001, but there is no argument of that name; "
        "did you mean learning_rate?",
        "recipe.yaml, line 6: You chose max_steps=0, but that yields zero training steps; "
        "give 1 or more, or -1 to use num_train_epochs.",
        "recipe.yaml, line 8: You chose learning_rate=nan, but it must be finite; give a finite number.",
        "recipe.yaml, line 4: You chose seed='many', but it takes a whole number; give one.",
        "recipe.yaml, lines 5 and 7: You chose fp16=True and bf16=True, but a run trains in one precision; "
        "set only one of them.",
    ]


def test_nested_problems_are_reported_with_their_lines(tmp_path: Path) -> None:
    """Problems in nested attrs classes and dataclasses have their path and line."""
    text = """\
model:
  nam: net
training:
  max_steps: 0
  wramup_steps: 3
extras:
- name: a
- name: 7
  setings: {}
ratio: much
colour: rad
level: 2
modle: x
"""
    reported = problems_of_yaml(Recipe, tmp_path, text)
    assert reported == [
        "recipe.yaml, line 1: model.name is missing; give it a value.",
        "recipe.yaml, line 2: You chose nam='net', but there is no such key; did you mean name?",
        "recipe.yaml, line 5: You chose wramup_steps=3, but there is no argument of that name; "
        "did you mean warmup_steps?",
        "recipe.yaml, line 4: You chose max_steps=0, but that yields zero training steps; "
        "give 1 or more, or -1 to use num_train_epochs.",
        "recipe.yaml, line 8: You chose extras.1.name=7, but it takes text; put it in quotes.",
        "recipe.yaml, line 9: You chose setings={}, but there is no such key; did you mean settings?",
        "recipe.yaml, line 10: You chose ratio='much', but it takes a number; give one.",
        "recipe.yaml, line 11: You chose colour='rad', but there is no such choice; did you mean 'red'?",
        "recipe.yaml, line 12: You chose level=2, but there is no such choice; choose '1'.",
        "recipe.yaml, line 13: You chose modle='x', but there is no such key; did you mean model?",
    ]


def test_valid_recipe_is_built(tmp_path: Path) -> None:
    """In a recipe of nested classes every value has its type, arguments included."""
    text = (
        "model: {name: net, settings: {depth: 3}}\ntraining: {output_dir: out, max_steps: 5}\nratio: 1e-1\nlevel: 1\n"
    )
    made = from_yaml_file(Recipe, write(tmp_path, text))
    assert made == Recipe(
        Component("net", {"depth": 3}), TrainingArguments("out", max_steps=5), ratio=0.1, level=Level.LOW
    )
    assert type(made.colour) is Colour
    assert type(made.level) is Level
    ready = from_dict(Recipe, {"model": made.model, "training": made.training})
    assert ready.training is made.training


def test_error_of_a_user_class_is_reported(tmp_path: Path) -> None:
    """An error raised by a user's class is reported with value and line."""
    (reported,) = problems_of_yaml(Holder, tmp_path, "seed: 1\npicky: {size: 12}\n")
    assert reported.startswith("recipe.yaml, line 2: You chose picky={'size': 12}, but its class refuses it: ")
    assert "must be < 10" in reported
    (reported,) = problems_of_yaml(Holder, tmp_path, "run_name: unlucky\n")
    assert reported.endswith("its class refuses it: no luck")


def test_fields_of_a_subclass_are_converted(tmp_path: Path) -> None:
    """Fields of a subclass are converted by type, and their problems are reported with the others."""
    made = from_dict(Mine, {"output_dir": "out", "alphas": ["1e-1", 2], "model": {"name": "net"}, "amount": "3"})
    assert (made.alphas, made.model, made.amount) == ([0.1, 2], Component("net"), 3)
    text = "alphas: [1, x]\nmodel: {name: 3}\namount: none\nseed: -1\n"
    assert problems_of_yaml(Mine, tmp_path, text) == [
        "recipe.yaml, line 1: You chose alphas.1='x', but it takes a number; give one.",
        "recipe.yaml, line 2: You chose model.name=3, but it takes text; put it in quotes.",
        "recipe.yaml, line 4: You chose seed=-1, but seeds range from 0 to 4294967295; give a seed in that range.",
    ]


def test_missing_or_rejected_required_field_is_reported_once(tmp_path: Path) -> None:
    """A required field is reported if it is missing, and only once if its value is rejected."""
    (reported,) = problems_of_yaml(Needing, tmp_path, "needed: x\n")
    assert reported == "recipe.yaml, line 1: You chose needed='x', but it takes a whole number; give one."
    assert problems_of_yaml(Needing, tmp_path, "seed: 1\n") == ["needed is missing; give it a value."]
    assert from_dict(Needing, {"needed": "5"}).needed == 5


def test_duplicate_key_is_a_problem(tmp_path: Path) -> None:
    """A key given twice in one mapping is reported with both lines at any depth."""
    text = "seed: 1\nseed: 2\nlr_scheduler_kwargs:\n  seed: 3\n  seed: 4\n"
    reported = problems_of_yaml(TrainingArguments, tmp_path, text)
    assert [line.split(":")[0] for line in reported] == ["recipe.yaml, lines 1 and 2", "recipe.yaml, lines 4 and 5"]


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """Aliases and merged mappings work as in YAML, and aliased values have a line."""
    text = "model: &m {name: a}\nextras: [*m, {<<: *m, name: b}]\ntraining: {output_dir: x}\n"
    made = from_yaml_file(Recipe, write(tmp_path, text))
    assert [extra.name for extra in made.extras] == ["a", "b"]


BROKEN = [
    ("a: [1\nb: 2\n", "line 2: Invalid YAML"),
    ("a: {[]: 1}\n? [b]\n: 2\n", "Invalid YAML"),
    ("a: \x00\n", "Invalid YAML"),
    ("a: &x [*x]\n", "an alias stands for a collection that contains it"),
    ("- 1\n", "it takes a mapping"),
    ("7\n", "it takes a mapping"),
    ("1: 2\n", "no argument of that name"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN, ids=[text for text, _ in BROKEN])
def test_invalid_file_is_rejected(tmp_path: Path, text: str, said: str) -> None:
    """Text that is not YAML, or not a mapping, raises one configuration error."""
    assert any(said in reported for reported in problems_of_yaml(TrainingArguments, tmp_path, text))


def test_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    """An empty file gives the defaults."""
    assert from_yaml_file(TrainingArguments, write(tmp_path, "# nothing\n")) == TrainingArguments()


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    """An unreadable file raises a configuration error with the reason."""
    with pytest.raises(ConfigurationError, match="No such file"):
        from_yaml_file(TrainingArguments, tmp_path / "none.yaml")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not UTF-8 text"):
        from_json_file(TrainingArguments, tmp_path / "binary.json")


def test_json_is_read_with_lines(tmp_path: Path) -> None:
    """A JSON file, tabs included, gives the arguments, or problems with their lines."""
    good = '{\n\t"output_dir": "out",\n\t"learning_rate": 1e-4\n}'
    assert from_json_file(TrainingArguments, write(tmp_path, good)).learning_rate == 1e-4
    for bad, said in (
        ('{\n\t"seed": 1,\n\t"sede": 2\n}', "line 3: You chose sede=2"),
        ('{"seed": 1,\n"seed": 2}', "lines 1 and 2: You gave 'seed' twice"),
        ('{"seed": 1,\n}', "line 2: Invalid JSON"),
        ('{"learning_rate":\n NaN}', "line 1: You chose learning_rate=nan"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            from_json_file(TrainingArguments, write(tmp_path, bad, "bad.json"))


def test_overrides_replace_values_of_a_file(tmp_path: Path) -> None:
    """An override replaces a document's value and is reported with its own source."""
    document = read_yaml(write(tmp_path, "training:\n  seed: 1\n  lr_scheduler_kwargs: {a: 1}\n"))
    document.put(("training", "seed"), "-5", SourceLocation("--seed"))
    document.put(("training", "lr_scheduler_kwargs"), "{}", SourceLocation("--lr_scheduler_kwargs"))
    document.put(("model", "name"), "net", SourceLocation("--model"))
    with pytest.raises(ConfigurationError) as caught:
        from_document(Recipe, document)
    assert caught.value.problems[0].startswith("--seed: You chose seed='-5'")
    document.put(("training", "seed"), 5, SourceLocation("--seed"))
    assert from_document(Recipe, document).training.seed == 5
    assert from_document(Component, Document({"name": "x"})) == Component("x")


def test_overrides_require_a_mapping(tmp_path: Path) -> None:
    """An override fills an empty value of a file, and is not applied to values other than mappings."""
    document = read_yaml(write(tmp_path, "model: {name: a}\ntraining: 5\n"))
    document.put(("training", "seed"), 1, SourceLocation("--seed"))
    with pytest.raises(ConfigurationError, match="line 2: You chose training=5, but it takes a mapping"):
        from_document(Recipe, document)
    document = read_yaml(write(tmp_path, "model: {name: a}\ntraining:\n"))
    document.put(("training", "seed"), 1, SourceLocation("--seed"))
    assert from_document(Recipe, document).training.seed == 1
    assert document.at(("training", "seed", "none")) is None


VALID = st.fixed_dictionaries(
    {"output_dir": st.text("ab/ é'\"#:{", min_size=1).filter(lambda text: not text.startswith("~"))},
    optional={
        "learning_rate": st.floats(0, 1e3),
        "max_steps": st.integers(1, 10**9),
        "warmup_steps": st.floats(0, 1, exclude_max=True) | st.integers(1, 100),
        "logging_steps": st.integers(1, 1000) | st.floats(1e-6, 1, exclude_max=True),
        "bf16": st.booleans(),
        "eval_strategy": st.sampled_from(["no", "steps", "epoch"]),
        "lr_scheduler_kwargs": st.dictionaries(st.text("abc", min_size=1), st.integers() | st.floats(-1e6, 1e6)),
        "label_names": st.lists(st.text("xyz")) | st.none(),
        "run_name": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Nd"])) | st.none(),
        "eval_accumulation_steps": st.integers(1, 9) | st.none(),
        "report_to": st.lists(st.sampled_from(["tensorboard", "wandb"])),
    },
)


@given(values=VALID)
def test_round_trip_through_dictionary_json_and_yaml(
    values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The dictionary of any arguments gives equal arguments, directly and through JSON and YAML."""
    made = TrainingArguments(**values)
    folder = tmp_path_factory.getbasetemp()
    (folder / "a.json").write_text(made.to_json_string(), encoding="utf-8")
    (folder / "a.yaml").write_text(yaml.safe_dump(made.to_dict(), allow_unicode=True), encoding="utf-8")
    assert from_dict(TrainingArguments, made.to_dict()) == made
    assert from_json_file(TrainingArguments, folder / "a.json") == made
    assert from_yaml_file(TrainingArguments, folder / "a.yaml") == made


@given(values=VALID)
def test_all_values_may_be_strings(values: dict[str, Any]) -> None:
    """Any value given as text, lists and mappings as JSON, is read as the value itself."""
    text = {
        name: json.dumps(value) if isinstance(value, list | dict) else str(value)
        for name, value in values.items()
        if value is not None
    }
    plain = {name: value for name, value in values.items() if value is not None}
    assert from_dict(TrainingArguments, text) == TrainingArguments(**plain)
