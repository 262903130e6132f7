"""Building the parts of a recipe, their random states and their errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexloop import Trainer
from hexloop.app.recipe import read_recipe
from hexloop.domain.errors import ConfigurationError
from tests.unit.recipe.small_project import RECIPE, Project


def made(project: Project, text: str, name: str) -> Any:
    """Build the part `name` of a recipe."""
    return read_recipe(project.recipe(text), ()).make(name)


def test_recipe_trains(project: Project) -> None:
    """The Trainer built from a recipe trains on the recipe's data."""
    trainer = read_recipe(project.recipe()).make_trainer(("train_dataset",))
    before = abs(float(trainer.model.slope.detach()) - 2.0)
    trainer.train()
    assert trainer.state.global_step == 4
    assert abs(float(trainer.model.slope.detach()) - 2.0) < before


def test_keywords_may_be_calls_objects_and_plain_values(project: Project) -> None:
    """Keywords of a call may be values, lists and mappings of any depth, calls, and import paths."""
    text = """\
        train_dataset:
          call: project.any_of
          plain: project.Line
          number: 1e-3
          nested: [{call: project.points, count: 1, noise: 0.0}, {inner: {object: project.Line}}]
          same: {object: project.Line, beside: 1}
        """
    found = made(project, text, "train_dataset")
    import project as module  # type: ignore[import-not-found]  # the recipe's folder is on the path now

    assert found == {
        "plain": "project.Line",
        "number": 1e-3,
        "nested": [[{"x": 1.0, "labels": 2.0}], {"inner": module.Line}],
        "same": {"object": "project.Line", "beside": 1},
    }


def test_plain_path_is_the_object(project: Project) -> None:
    """A part given by its import path alone is that object."""
    model = made(project, "model: project.instance\n", "model")
    metrics = made(project, "compute_metrics: project.error\n", "compute_metrics")
    assert isinstance(model, torch.nn.Module)
    assert metrics.__name__ == "error"


def test_callbacks_and_several_eval_datasets(project: Project) -> None:
    """Callbacks may be classes, objects and calls; eval_dataset may be a mapping of data sets."""
    text = f"""{RECIPE}
eval_dataset:
  few: {{call: project.points, count: 2}}
  many: {{call: project.points, count: 3}}
callbacks:
  - hexloop.TrainerCallback
  - {{call: hexloop.EarlyStoppingCallback, early_stopping_patience: 3}}
"""
    trainer = read_recipe(project.recipe(text)).make_trainer(("train_dataset", "eval_dataset"))
    assert {name: len(data) for name, data in trainer.eval_dataset.items()} == {"few": 2, "many": 3}
    kinds = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
    assert kinds[-3:-1] == ["TrainerCallback", "EarlyStoppingCallback"]


def test_custom_trainer_is_used(project: Project) -> None:
    """`trainer` selects the trainer class."""
    trainer = read_recipe(project.recipe(f"trainer: project.Mine\n{RECIPE}")).make_trainer(("train_dataset",))
    assert isinstance(trainer, Trainer)
    assert type(trainer).__name__ == "Mine"


def test_only_requested_data_is_built(project: Project) -> None:
    """Evaluating does not read the training data."""
    text = "model: project.instance\ntrain_dataset: {call: project.fails}\n"
    assert read_recipe(project.recipe(text)).make_trainer(()).train_dataset is None


def test_each_part_is_built_from_the_seed(project: Project) -> None:
    """Equal seeds give equal parts, independent of the parts built before."""

    def slope(seed: int, before: bool) -> float:
        text = (
            f"model: {{call: project.Line}}\ntrain_dataset: {{call: project.points, count: 3}}\n"
            f"arguments: {{seed: {seed}, use_cpu: true}}\n"
        )
        recipe = read_recipe(project.recipe(text))
        if before:
            recipe.make("train_dataset")
        return float(recipe.make("model").slope.detach())

    assert slope(1, before=False) == slope(1, before=True) != slope(2, before=False)


def test_error_in_user_code_notes_the_part_and_line(project: Project) -> None:
    """An exception of user code is raised with a note on the part being built."""
    path = project.recipe("arguments: {use_cpu: true}\nmodel: {call: project.fails}\n")
    with pytest.raises(LookupError) as caught:
        read_recipe(path).make("model")
    assert caught.value.__notes__ == [f"{path}, line 2: This was raised while model was being made."]


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (
            "model: {call: project.nothing}\n",
            "model",
            "line 1: You chose model, but the result is None; let what",
        ),
        (
            "compute_metrics: {call: project.points, count: 1}\n",
            "compute_metrics",
            "You chose compute_metrics, but the result of the call is a list, not a function",
        ),
    ],
)
def test_part_that_is_none_is_rejected(project: Project, text: str, name: str, expected: str) -> None:
    """A call that returns None, or not a function if one is needed, is reported with its line."""
    with pytest.raises(ConfigurationError, match=expected):
        made(project, text, name)


def test_call_of_a_decorated_function_is_not_checked(project: Project) -> None:
    """A call that only its decorator understands is not rejected in advance."""
    assert len(made(project, "train_dataset: {call: project.fewer, count: 2, extra: 1}\n", "train_dataset")) == 2
