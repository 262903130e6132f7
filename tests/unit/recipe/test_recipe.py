"""Recipes put together: what is made of them, in which state of the random generators, and what goes wrong then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hexloop import Trainer
from hexloop.app.recipe import read_recipe
from hexloop.domain.errors import ConfigurationError
from tests.unit.recipe.small_project import RECIPE, Project


def made(project: Project, text: str, name: str) -> Any:
    """The part `name` of a recipe."""
    return read_recipe(project.recipe(text), ()).make(name)


def test_a_recipe_trains(project: Project) -> None:
    """The Trainer that a recipe makes learns from the recipe's data."""
    trainer = read_recipe(project.recipe()).make_trainer(("train_dataset",))
    before = abs(float(trainer.model.slope.detach()) - 2.0)
    trainer.train()
    assert trainer.state.global_step == 4
    assert abs(float(trainer.model.slope.detach()) - 2.0) < before


def test_what_is_called_is_given_calls_objects_and_plain_values(project: Project) -> None:
    """A call's keywords may be plain values, lists and mappings of any depth, further calls, and objects by path."""
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


def test_a_plain_path_is_the_object_itself(project: Project) -> None:
    """A part given by its import path alone is that object."""
    model = made(project, "model: project.instance\n", "model")
    metrics = made(project, "compute_metrics: project.error\n", "compute_metrics")
    assert isinstance(model, torch.nn.Module)
    assert metrics.__name__ == "error"


def test_callbacks_are_a_list_and_held_out_data_may_be_several(project: Project) -> None:
    """Callbacks may be classes, objects and calls; eval_dataset may be a mapping of names to data sets."""
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


def test_a_trainer_of_the_users_own_is_used(project: Project) -> None:
    """`trainer` names the class that trains."""
    trainer = read_recipe(project.recipe(f"trainer: project.Mine\n{RECIPE}")).make_trainer(("train_dataset",))
    assert isinstance(trainer, Trainer)
    assert type(trainer).__name__ == "Mine"


def test_only_the_data_that_are_wanted_are_made(project: Project) -> None:
    """Evaluating does not read the training data."""
    text = "model: project.instance\ntrain_dataset: {call: project.fails}\n"
    assert read_recipe(project.recipe(text)).make_trainer(()).train_dataset is None


def test_each_part_is_made_from_the_seed(project: Project) -> None:
    """Equal seeds make equal parts, whatever else was made before; another seed makes others."""

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


def test_what_the_users_code_raises_is_told_with_the_part_and_the_line(project: Project) -> None:
    """An exception of the user's own code passes through, with a note on what was being made."""
    path = project.recipe("arguments: {use_cpu: true}\nmodel: {call: project.fails}\n")
    with pytest.raises(LookupError) as caught:
        read_recipe(path).make("model")
    assert caught.value.__notes__ == [f"{path}, line 2: This was raised while model was being made."]


@pytest.mark.parametrize(
    ("text", "name", "told"),
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
def test_a_part_that_turns_out_to_be_none_is_refused(project: Project, text: str, name: str, told: str) -> None:
    """A call that returns None, or no function where one is needed, is told with its line."""
    with pytest.raises(ConfigurationError, match=told):
        made(project, text, name)


def test_a_decorator_may_take_more_than_it_shows(project: Project) -> None:
    """A call that only a decorator understands is not refused beforehand."""
    assert len(made(project, "train_dataset: {call: project.fewer, count: 2, extra: 1}\n", "train_dataset")) == 2
