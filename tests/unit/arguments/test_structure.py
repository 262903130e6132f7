"""Arguments, and other classes, out of dictionaries and files, with the line of every problem."""

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
    from_dict,
    from_document,
    from_json_file,
    from_yaml_file,
    read_yaml,
)
from hexloop.domain.errors import ConfigurationError


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
    """What the file is refused for, with its folder left out of the sentences."""
    with pytest.raises(ConfigurationError) as caught:
        from_yaml_file(cls, write(tmp_path, text))
    return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]


def test_yaml_words_and_numbers_mean_what_they_look_like(tmp_path: Path) -> None:
    """`no` is a word, `1e-4` a number at any depth, `010` ten, a date text, and truth values may be yes and on."""
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


def test_every_problem_of_a_file_is_told_with_its_line(tmp_path: Path) -> None:
    """A typo in a key, a wrong type, a bad value and a contradiction are told together, each with its line."""
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


def test_problems_deep_in_a_recipe_are_told_with_their_lines(tmp_path: Path) -> None:
    """In classes of the user's own, attrs or dataclass, problems at any depth have their path and line."""
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
    told = problems_of_yaml(Recipe, tmp_path, text)
    assert told == [
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


def test_a_good_recipe_is_built(tmp_path: Path) -> None:
    """A recipe of nested classes comes out with every value of its type, the arguments among them."""
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


def test_what_a_class_itself_refuses_is_told(tmp_path: Path) -> None:
    """An error that a class of the user's own raises is told with its value and line."""
    (told,) = problems_of_yaml(Holder, tmp_path, "seed: 1\npicky: {size: 12}\n")
    assert told.startswith("recipe.yaml, line 2: You chose picky={'size': 12}, but its class refuses it: ")
    assert "must be < 10" in told
    (told,) = problems_of_yaml(Holder, tmp_path, "run_name: unlucky\n")
    assert told.endswith("its class refuses it: no luck")


def test_fields_that_a_subclass_adds_are_converted_too(tmp_path: Path) -> None:
    """Plain fields of a subclass are converted by their types, and their problems are told with those of arguments."""
    made = from_dict(Mine, {"output_dir": "out", "alphas": ["1e-1", 2], "model": {"name": "net"}, "amount": "3"})
    assert (made.alphas, made.model, made.amount) == ([0.1, 2], Component("net"), 3)
    text = "alphas: [1, x]\nmodel: {name: 3}\namount: none\nseed: -1\n"
    assert problems_of_yaml(Mine, tmp_path, text) == [
        "recipe.yaml, line 1: You chose alphas.1='x', but it takes a number; give one.",
        "recipe.yaml, line 2: You chose model.name=3, but it takes text; put it in quotes.",
        "recipe.yaml, line 4: You chose seed=-1, but seeds range from 0 to 4294967295; give a seed in that range.",
    ]


def test_a_required_field_that_is_missing_or_refused_is_told(tmp_path: Path) -> None:
    """A field without a default is told when it is left out, and only once when its value is refused."""
    (told,) = problems_of_yaml(Needing, tmp_path, "needed: x\n")
    assert told == "recipe.yaml, line 1: You chose needed='x', but it takes a whole number; give one."
    assert problems_of_yaml(Needing, tmp_path, "seed: 1\n") == ["needed is missing; give it a value."]
    assert from_dict(Needing, {"needed": "5"}).needed == 5


def test_a_key_that_occurs_twice_is_a_problem(tmp_path: Path) -> None:
    """A key given twice in one mapping is told with both lines, at any depth; elsewhere the same key is fine."""
    text = "seed: 1\nseed: 2\nlr_scheduler_kwargs:\n  seed: 3\n  seed: 4\n"
    told = problems_of_yaml(TrainingArguments, tmp_path, text)
    assert [line.split(":")[0] for line in told] == ["recipe.yaml, lines 1 and 2", "recipe.yaml, lines 4 and 5"]


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """Aliases and merged mappings mean what YAML says, and a value that came by an alias has a line."""
    text = "model: &m {name: a}\nextras: [*m, {<<: *m, name: b}]\ntraining: {output_dir: x}\n"
    made = from_yaml_file(Recipe, write(tmp_path, text))
    assert [extra.name for extra in made.extras] == ["a", "b"]


BROKEN = [
    ("a: [1\nb: 2\n", "line 2: Invalid YAML"),
    ("a: {[]: 1}\n? [b]\n: 2\n", "Invalid YAML"),
    ("a: \x00\n", "Invalid YAML"),
    ("a: &x [*x]\n", "no argument of that name"),
    ("- 1\n", "it takes a mapping"),
    ("7\n", "it takes a mapping"),
    ("1: 2\n", "no argument of that name"),
]


@pytest.mark.parametrize(("text", "said"), BROKEN, ids=[text for text, _ in BROKEN])
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """Text that is no YAML, or no mapping, is one configuration error."""
    assert any(said in told for told in problems_of_yaml(TrainingArguments, tmp_path, text))


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    """A file in which nothing stands gives the defaults."""
    assert from_yaml_file(TrainingArguments, write(tmp_path, "# nothing\n")) == TrainingArguments()


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read is a configuration error that says why."""
    with pytest.raises(ConfigurationError, match="No such file"):
        from_yaml_file(TrainingArguments, tmp_path / "none.yaml")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not UTF-8 text"):
        from_json_file(TrainingArguments, tmp_path / "binary.json")


def test_json_is_read_with_lines_too(tmp_path: Path) -> None:
    """A JSON file, tabs and all, gives the arguments, or its problems with their lines."""
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


def test_values_may_be_put_over_those_of_a_file(tmp_path: Path) -> None:
    """What is put over a value of a document counts instead, and is told with its own place."""
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


def test_values_cannot_be_put_into_what_is_no_mapping(tmp_path: Path) -> None:
    """What is put into an empty place of a file is all there is; into something else than a mapping it is not put."""
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
def test_what_is_written_out_reads_back_equal(values: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    """The dictionary of any arguments reads back as equal arguments, straight, as JSON and as YAML."""
    made = TrainingArguments(**values)
    folder = tmp_path_factory.getbasetemp()
    (folder / "a.json").write_text(made.to_json_string(), encoding="utf-8")
    (folder / "a.yaml").write_text(yaml.safe_dump(made.to_dict(), allow_unicode=True), encoding="utf-8")
    assert from_dict(TrainingArguments, made.to_dict()) == made
    assert from_json_file(TrainingArguments, folder / "a.json") == made
    assert from_yaml_file(TrainingArguments, folder / "a.yaml") == made


@given(values=VALID)
def test_values_may_all_be_text(values: dict[str, Any]) -> None:
    """Any value written as text, a list or mapping as JSON, is read as the value itself."""
    text = {
        name: json.dumps(value) if isinstance(value, list | dict) else str(value)
        for name, value in values.items()
        if value is not None
    }
    plain = {name: value for name, value in values.items() if value is not None}
    assert from_dict(TrainingArguments, text) == TrainingArguments(**plain)
