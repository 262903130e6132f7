"""The section `search`: its space, its options, and its problems with their lines."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.arguments.documents import Document
from hexloop.app.recipe import read_recipe
from hexloop.app.recipe.parts import PartReader
from hexloop.app.recipe.search import Parameter, SearchSection, read_search_section, space_of
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.search.space import Choices, Floats, Integers, SpaceTrial
from tests.unit.recipe.small_project import Project

RECIPE = """\
model: {call: project.Line, slope: 0.5}
train_dataset: {call: project.points, count: 3}
eval_dataset: {call: project.points, count: 3}
arguments: {use_cpu: true, eval_strategy: epoch}
"""


def problems(project: Project, text: str) -> list[str]:
    """Return the problems of a recipe with a section, without the name of its file."""
    path = project.recipe(RECIPE + text)
    with pytest.raises(ConfigurationError) as caught:
        read_recipe(path, ("model", "train_dataset"))
    return [problem.removeprefix(f"{path}, ").removeprefix(f"{path}: ") for problem in caught.value.problems]


def section(project: Project, text: str) -> SearchSection:
    """Return the section of a recipe."""
    found = read_recipe(project.recipe(RECIPE + text), ("model", "train_dataset")).search
    assert found is not None
    return found


def test_a_section(project: Project) -> None:
    """Every key, and every kind of parameter."""
    found = section(
        project,
        """\
search:
  trials: 12
  timeout: 60
  backend: random
  objective: accuracy
  direction: maximize
  evaluation: last
  seed: 3
  keep_trials: 2
  sampler: {call: project.any_of, a: 1}
  pruner: {call: project.any_of, b: 2}
  options: {study_name: a, given: {call: project.any_of, c: 3}}
  space:
    learning_rate: {low: 1e-5, high: 1e-2, log: true}
    num_train_epochs: {low: 1, high: 5}
    weight_decay: {low: 0, high: 0.3, step: 0.1}
    lr_scheduler_type: [linear, cosine]
    lr_scheduler_kwargs.num_cycles: {choices: [0.5, 1.0], when: {lr_scheduler_type: cosine}}
    model.slope: [1.0, 2.0]
""",
    )
    assert (found.trials, found.timeout, found.backend, found.seed, found.keep_trials) == (12, 60.0, "random", 3, 2)
    assert (found.objectives, found.directions, found.evaluation) == (("accuracy",), ("maximize",), "last")
    assert found.sampler is not None
    assert found.pruner is not None
    assert (found.sampler(), found.pruner()) == ({"a": 1}, {"b": 2})
    assert {name: make() for name, make in found.options.items()} == {"study_name": "a", "given": {"c": 3}}
    assert list(found.space) == [
        Parameter("learning_rate", Floats(1e-5, 1e-2, True)),
        Parameter("num_train_epochs", Integers(1, 5)),
        Parameter("weight_decay", Floats(0.0, 0.3, False, 0.1)),
        Parameter("lr_scheduler_type", Choices(("linear", "cosine"))),
        Parameter("lr_scheduler_kwargs.num_cycles", Choices((0.5, 1.0)), ("lr_scheduler_type", ("cosine",))),
        Parameter("model.slope", Choices((1.0, 2.0))),
    ]


def test_defaults(project: Project) -> None:
    """Less is better, and whatever is not given is left to the command."""
    found = section(project, "search: {space: {learning_rate: [0.1]}}")
    assert found == SearchSection([Parameter("learning_rate", Choices((0.1,)))])
    assert (found.trials, found.directions, found.objectives) == (None, ("minimize",), ())
    assert read_recipe(project.recipe(RECIPE)).search is None


def test_a_trial_has_its_values_in_the_recipe(project: Project) -> None:
    """As arguments, entries of arguments, and keys of parts; an alias of a part is not changed with it."""
    text = """\
model: {call: project.Line, slope: 0.5}
train_dataset: &data {call: project.points, count: 3, slope: 2.0, noise: 0.0}
eval_dataset: *data
arguments: {use_cpu: true, learning_rate: 0.5, lr_scheduler_kwargs: {num_cycles: 1}}
search: {space: {learning_rate: [0.1]}}
"""
    values = {
        "learning_rate": 0.25,
        "arguments.warmup_steps": 3,
        "lr_scheduler_type": "cosine",
        "lr_scheduler_kwargs.num_cycles": 2,
        "model.slope": 4.0,
        "train_dataset.count": 5,
    }
    recipe = read_recipe(project.recipe(text), values=values)
    args = recipe.arguments
    assert (args.learning_rate, args.warmup_steps, args.lr_scheduler_kwargs) == (0.25, 3, {"num_cycles": 2})
    assert float(recipe.make("model").slope.detach()) == 4
    assert (len(recipe.make("train_dataset")), len(recipe.make("eval_dataset"))) == (5, 3)
    with pytest.raises(ConfigurationError, match="the trial: You chose warmup_steps=-4"):
        read_recipe(project.recipe(text), values={"warmup_steps": -4})
    with pytest.raises(ConfigurationError, match="there is no such argument"):
        read_recipe(project.recipe(text), values={"lerning_rat": 1})


def test_all_problems_have_their_lines(project: Project) -> None:
    """Of keys, values, names and parts at once."""
    found = problems(
        project,
        """\
search:
  trails: 3
  trials: 0
  keep_trials: all
  direction: up
  sampler: {call: project.any_off}
  space:
    lerning_rate: [0.1]
    learning_rate: {low: 1, high: 0.1}
    warmup_steps: {lo: 1, high: 2}
    weight_decay: 0.1
    lr_scheduler_type: [linear, cosinus]
    num_train_epochs: {low: 1, high: five}
    model.slop: [1.0]
    modle.slope: [1.0]
    compute_metrics.a: [1]
    max_steps: []
    seed: [1, 1]
""",
    )
    text = "\n".join(found)
    assert "line 6: You chose search.trails=3, but the section has no such key; did you mean trials?" in found
    assert "line 7: You chose search.trials=0, but it takes a whole number of at least 1; give one." in found
    assert "line 8: You chose search.keep_trials='all', but it takes a whole number of at least 1; give one." in found
    assert "line 9: You chose search.direction='up', but it takes minimize or maximize; choose one of them." in found
    assert "line 10: You chose search.sampler.call='project.any_off', but the module project has no any_off; did you mean any_of?" in found  # fmt: skip  # noqa: E501
    assert "line 12: You chose search.space.lerning_rate=[0.1], but there is no such argument, nor such a key in the recipe; did you mean learning_rate?" in found  # fmt: skip  # noqa: E501
    assert "line 13" in text
    assert "low must be at most high" in text
    assert "line 14" in text
    assert "did you mean low?" in text
    assert "line 15: You chose search.space.weight_decay=0.1, but it takes a list of values, or a mapping with a range" in text  # fmt: skip  # noqa: E501
    assert any("line 16" in each and "cosinus" in each for each in found)
    assert "low, high and step are numbers" in text
    assert "line 18: You chose model.slop=1.0, but Line has no parameter slop; did you mean slope?" in found
    assert any("line 19" in each and "modle.slope" in each for each in found)
    assert any("line 20" in each for each in found)
    assert "line 21: You chose search.space.max_steps=[], but choices are a list of values; give at least one." in found
    assert "line 22: You chose search.space.seed=[1, 1], but it has the choice 1 twice; remove one." in found
    assert len(found) == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("search: []", "it takes a mapping"),
        ("search: {}", "search.space is missing or empty"),
        ("search: {space: {}}", "search.space is missing or empty"),
        ("search: {objective: accuracy, space: {seed: [1]}}", "search.direction is missing"),
        ("search: {objective: [a, b], direction: maximize, space: {seed: [1]}}", "1 directions for 2 objectives"),
        ("search: {objective: [], space: {seed: [1]}}", "the list is empty"),
        ("search: {timeout: soon, space: {seed: [1]}}", "a number of seconds above 0"),
        ("search: {options: 3, space: {seed: [1]}}", "options of the backend by name"),
        ("search: {space: {seed: [[1]]}}", "is not a single value"),
        ("search: {space: {seed: {low: 1, high: 2, choices: [1]}}}", "both choices and a range"),
        ("search: {space: {seed: {low: 1}}}", "needs both low and high"),
        ("search: {space: {seed: {low: 0, high: 2, log: true}}}", "has no logarithm"),
        ("search: {space: {seed: {choices: [1], when: 3}}}", "when takes one name of the space"),
        ("search: {space: {seed: {choices: [1], when: {optim: sgd}}}}", "there is no optim of its condition"),
        ("search: {space: {seed: {choices: [1], when: {optim: sgd}}, optim: [sgd]}}", "put optim before seed"),
        ("search: {space: {optim: [sgd], seed: {choices: [1], when: {optim: adamw}}}}", "is not a choice of optim"),
        ("search: {space: {seed: {low: 1, high: 2}, data_seed: {choices: [1], when: {seed: 1}}}}", "has no choices"),
        ("search: {space: {per_device_train_batch_size: [8, abc]}}", "it takes a whole number"),
        ("search: {space: {learning_rate..a: [1]}}", "that is not a name"),
        ("search: {space: {learning_rate: [.inf]}}", "is not finite"),
    ],
)
def test_one_problem(project: Project, text: str, words: str) -> None:
    """Each says what is wrong, and on which line."""
    (found,) = problems(project, text)
    assert words in found
    assert "line" in found


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5)
)
RANGES = st.one_of(
    st.builds(lambda low, more: {"low": low, "high": low + more}, st.integers(-99, 99), st.integers(0, 99)),
    st.builds(lambda low, more: {"low": low, "high": low + more}, st.floats(-9, 9), st.floats(0.01, 9)),
    st.builds(lambda low, more: {"low": low, "high": low * more, "log": True}, st.floats(1e-6, 9), st.floats(1.5, 99)),
    st.builds(
        lambda low, steps, step: {"low": low, "high": low + steps * step, "step": step},
        st.integers(-9, 9), st.integers(1, 9), st.integers(1, 9),
    ),
)  # fmt: skip
CHOICES = st.lists(SCALARS, min_size=1, max_size=6, unique_by=lambda value: (type(value), value))


def read(space: dict[str, Any]) -> tuple[list[Parameter], list[str]]:
    """Return the parameters of a space, with the names of letters as arguments, and its problems."""
    document = Document({"search": {"space": space}})
    found = read_search_section(PartReader(document), "arguments", ("a", "b", "c"))
    return list(found.space) if found is not None else [], document.problems


@given(CHOICES, RANGES, st.integers(0, 999))
def test_what_is_drawn_is_in_the_space(choices: list[Any], bounds: dict[str, Any], seed: int) -> None:
    """Of choices and ranges; one with a condition is there exactly if that holds. Written again, it is equal."""
    space = {"a": choices, "b": bounds, "c": {"choices": [1, 2], "when": {"a": choices[:1]}}}
    parameters, found = read(space)
    assert found == []
    draws = random.Random(seed)
    drawn = space_of(parameters)(SpaceTrial(0, lambda name, distribution: distribution.at(draws.random())))
    assert any(type(each) is type(drawn["a"]) and each == drawn["a"] for each in choices)
    assert bounds["low"] <= drawn["b"] <= bounds["high"]
    if "step" in bounds:
        assert (drawn["b"] - bounds["low"]) % bounds["step"] == 0
    is_first = type(drawn["a"]) is type(choices[0]) and drawn["a"] == choices[0]
    assert ("c" in drawn) is is_first
    assert read({each.name: each.as_data() for each in parameters}) == (parameters, [])


@given(
    st.recursive(
        st.one_of(SCALARS, st.sampled_from(["low", "high", "when", "choices"])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(st.one_of(st.sampled_from(["low", "high", "log", "step", "when", "choices", "a"])), inner),
        ),
        max_leaves=12,
    )
)
def test_any_entry_is_read_or_refused(entry: Any) -> None:
    """Nothing else is raised."""
    parameters, found = read({"a": ["x", 1], "b": entry})
    assert (len(parameters) == 2) is (found == [])
