"""Reading recipe files, and reporting all problems of a file at once."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from hexloop import Seq2SeqTrainingArguments, Trainer
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.parser import add_arguments
from hexloop.app.recipe import read_recipe
from hexloop.domain.errors import ConfigurationError
from tests.unit.recipe.small_project import RECIPE, Project


def problems_of(path: Path, *needed: str) -> list[str]:
    """Return the problems of a recipe without its file name."""
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(path, needed or ("model",))
    return [problem.replace(f"{path}", "file") for problem in caught.value.problems]


def test_recipe_is_read_without_calls(project: Project) -> None:
    """Modules beside the recipe are imported and arguments built, but no user code is called."""
    recipe = read_recipe(project.recipe("model: {call: project.fails}\narguments: {seed: 3}\n"))
    assert set(recipe.parts) == {"model"}
    assert recipe.arguments.seed == 3
    assert recipe.trainer_class is Trainer
    with pytest.raises(LookupError, match="no such file"):
        recipe.make("model")


def test_all_problems_are_reported_with_their_lines(project: Project) -> None:
    """One error lists misspelt keys, unresolvable paths, calls that do not match, and bad arguments."""
    path = project.recipe("""\
        modle: {call: project.Line}
        learning_rate: 3
        model: {call: project.Lime}
        train_dataset:
          call: project.points
          cuont: 3
        eval_dataset: {call: projct.points}
        data_collator: project.Line
        compute_metrics: {call: project.error}
        processing_class: project
        model_init: project.empty
        callbacks:
          - hexloop.EarlyStoppingCallbak
          - 3
          - project.error
        trainer: project.Line
        arguments:
          learning_rat: 3
          seed: x
        """)
    assert problems_of(path, "model", "train_dataset") == [
        "file, line 16: You chose trainer='project.Line', but that is not a subclass of hexloop.Trainer; name a class "
        "that is derived from it.",
        "file, line 1: You chose modle={'call': 'project.Line'}, but recipes have no such key; did you mean model?",
        "file, line 2: You chose learning_rate=3, but recipes have no such key; learning_rate is an argument, so put "
        "it under arguments.",
        "file, lines 3 and 11: model and model_init are both given; remove one of them.",
        "file, line 3: You chose model.call='project.Lime', but the module project has no Lime; did you mean Line?",
        "file, line 6: You chose train_dataset.cuont=3, but points has no parameter cuont; did you mean count?",
        "file, line 5: You chose train_dataset.call='project.points', but points also needs count; add what is missing "
        "as keys next to call.",
        "file, line 7: You chose eval_dataset.call='projct.points', but there is no module projct; did you mean "
        "project?",
        "file, line 8: You chose data_collator='project.Line', but that is a class, and a function is needed; to call "
        "it, write '{call: project.Line}'.",
        "file, line 9: You chose compute_metrics.call='project.error', but error also needs prediction; to pass it "
        "without calling it, write 'compute_metrics: project.error'.",
        "file, line 10: You chose processing_class='project', but that is a module; name something in it, as in "
        "project.MyModel.",
        "file, line 11: You chose model_init='project.empty', but that is None; name something else.",
        "file, line 13: You chose callbacks.0='hexloop.EarlyStoppingCallbak', but the module hexloop has no "
        "EarlyStoppingCallbak; did you mean EarlyStoppingCallback?",
        "file, line 14: You chose callbacks.1=3, but it takes an import path; give one, or a mapping whose key call "
        "has one.",
        "file, line 15: You chose callbacks.2='project.error', but that is a function, and a class or an instance of "
        "one is needed; to call it, write '{call: project.error}'.",
        "file, line 18: You chose learning_rat=3, but there is no argument of that name; did you mean learning_rate?",
        "file, line 19: You chose seed='x', but it takes a whole number; give one.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["file: The recipe is empty; give it at least a model and a train_dataset."]),
        ("# nothing but this\n", ["file: The recipe is empty; give it at least a model and a train_dataset."]),
        ("- model\n", ["file: The recipe is not a mapping of keys to values; write 'model: ...'."]),
        ("arguments: {max_steps: 3}\n", ["file: model is missing; add it, as in 'model: {call: my_module."]),
        ("model:\n", ["file: model is missing;"]),
        ("model: {width: 3}\n", ["file, line 1: You chose model={'width': 3}, but it takes an import path; give one"]),
        ("model: {call: [a]}\n", ["file, line 1: You chose model.call=['a'], but it takes an import path; give one."]),
        (
            "model: {call: project.number}\n",
            ["file, line 1: You chose model.call='project.number', but number cann"],
        ),
        ("model: project.Line\n", ["file, line 1: You chose model='project.Line', but that is a class, and an object"]),
        (
            "model: project.instance\ncallbacks: hexloop.X\n",
            ["file, line 2: You chose callbacks='hexloop.X', but it t"],
        ),
        (
            "model: project.instance\narguments: [1]\n",
            ["file, line 2: You chose arguments=[1], but it takes a mapping"],
        ),
        ("model: project.instance\nmodel: 3\n", ["file, lines 1 and 2: You gave 'model' twice", "file, line 2: "]),
        (
            "model: project.instance\ntrainer: {call: project.fails}\n",
            ["file, line 2: You chose trainer={'call': 'project.fails'}, but that is not a subclass of "],
        ),
        (
            "model: project.instance\narguments: {report_to: unknown, use_cpu: true}\n",
            ["report_to='unknown' is not a tracker that hexloop knows"],
        ),
    ],
)
def test_invalid_recipes_are_rejected(project: Project, text: str, expected: list[str]) -> None:
    """Empty files, lists, missing models, invalid calls and unknown adapters are reported."""
    found = problems_of(project.recipe(text))
    assert len(found) == len(expected), found
    for sentence, beginning in zip(found, expected, strict=True):
        assert sentence.startswith(beginning)


def test_tab_in_yaml_is_reported(project: Project) -> None:
    """YAML indented with tabs is reported with the line."""
    expected = problems_of(project.recipe("model:\n\tcall: project.Line\n"))
    assert len(expected) == 1
    assert expected[0].startswith("file, line 2: ")
    assert expected[0].endswith("YAML is indented with spaces, not with tabs.")


def test_missing_file_is_reported(tmp_path: Path) -> None:
    """A missing recipe is reported by name."""
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml' cannot be read \(No such file"):
        read_recipe(tmp_path / "nowhere.yaml")


def test_error_of_a_module_is_the_cause(project: Project) -> None:
    """Errors of the recipe's modules are kept with their tracebacks."""
    project.write("fails_early.py", "x = 1 / 0\n")
    with pytest.raises(ConfigurationError, match="ZeroDivisionError") as caught:
        read_recipe(project.recipe("model: {call: fails_early.Net}\n"))
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)
    assert isinstance(caught.value.__cause__.exceptions[0], ZeroDivisionError)


def test_options_override_the_recipe(project: Project) -> None:
    """Command-line options override the recipe, and their problems are reported by option."""
    parser = argparse.ArgumentParser()
    add_arguments(parser, TrainingArguments)
    path = project.recipe()
    recipe = read_recipe(path, options=parser.parse_args(["--max_steps", "9"]))
    assert (recipe.arguments.max_steps, recipe.arguments.save_strategy) == (9, "no")
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(path, options=parser.parse_args(["--seed", "x"]), unknown=["--sede", "3"])
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "You gave --sede 3, but there is no option of that name; did you mean --seed?",
        "--seed",
    ]


def test_extra_checks_are_reported_with_other_problems(project: Project) -> None:
    """A command's own checks get the arguments and the recipe's parts."""

    def check(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        yield f"{arguments.max_steps} {sorted(given)}"

    with pytest.raises(ConfigurationError) as caught:
        read_recipe(project.recipe(), ("model", "test_dataset"), check=check)
    assert len(caught.value.problems) == 2
    assert caught.value.problems[1] == "4 ['model', 'train_dataset']"


def test_model_init_replaces_model(project: Project) -> None:
    """A recipe with model_init needs no model."""
    assert "model_init" in read_recipe(project.recipe("model_init: project.Line\n")).parts


ARGUMENTS_OF_ITS_OWN = """
import attrs
import hexloop


@attrs.define(slots=False, kw_only=True)
class Further(hexloop.TrainingArguments):
    temperature: float = 1.0


class Tempered(hexloop.Trainer):
    arguments_class = Further
"""


def test_trainer_selects_the_class_of_arguments(project: Project) -> None:
    """Arguments of the trainer's class are accepted in the recipe and on the command line."""
    project.write("tempered.py", ARGUMENTS_OF_ITS_OWN)
    text = f"trainer: tempered.Tempered\n{RECIPE.replace('use_cpu: true', 'use_cpu: true, temperature: 0.5')}"
    path = project.recipe(text)
    recipe = read_recipe(path)
    assert type(recipe.arguments).__name__ == "Further"
    assert recipe.arguments.temperature == 0.5  # type: ignore[attr-defined]
    trainer = recipe.make_trainer(("train_dataset",))
    assert trainer.args is recipe.arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser, TrainingArguments)
    options, unknown = parser.parse_known_args(["--max_steps", "9", "--temperature", "0.25"])
    recipe = read_recipe(path, options=options, unknown=unknown)
    assert (recipe.arguments.max_steps, recipe.arguments.temperature) == (9, 0.25)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"--temprature .*did you mean --temperature"):
        read_recipe(path, options=options, unknown=["--temprature", "3"])


def test_generation_arguments_require_the_sequence_trainer(project: Project) -> None:
    """Generation arguments are accepted with Seq2SeqTrainer, and the error names it otherwise."""
    text = RECIPE.replace("use_cpu: true", "use_cpu: true, predict_with_generate: true, generation_max_length: 7")
    recipe = read_recipe(project.recipe(f"trainer: hexloop.Seq2SeqTrainer\n{text}"))
    assert isinstance(recipe.arguments, Seq2SeqTrainingArguments)
    assert recipe.arguments.generation_max_length == 7
    with pytest.raises(ConfigurationError, match="predict_with_generate") as caught:
        read_recipe(project.recipe(text))
    assert any("Seq2Seq" in problem for problem in caught.value.problems)
