"""What editors and type checkers read of the arguments is in step with their declarations."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from typing import Any

import pytest

from hexloop import SFTConfig, TrainingArguments
from hexloop.app.arguments import choices
from hexloop.app.arguments.declaration import GROUP, declarations
from hexloop.domain.wording import RefusalError
from tests.unit.arguments.docstrings import CLASSES, section, source

OPEN = {"optim", "fsdp"}
"""Arguments of which type checkers accept any text: installed packages add choices, or it has several words."""

ABSURD = "\x00 no such choice"


def literals() -> dict[str, set[str]]:
    """The texts of each type that only type checkers see."""
    tree = ast.parse(inspect.getsource(choices))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        statement.targets[0].id: {
            each.value
            for each in ast.walk(statement.value)
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        }
        for statement in checked.body
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    }


def spelled(name: str) -> str:
    """The type of an argument as it is written in the source."""
    for owner in SFTConfig.__mro__:
        if name in vars(owner).get(GROUP, {}):
            return str(inspect.get_annotations(owner)[name])
    raise AssertionError(name)


def options_of(name: str) -> set[str] | None:
    """The texts that an argument takes, as its refusal of another one lists them; None if it takes any."""
    declaration, kind = declarations(SFTConfig)[name]
    try:
        declaration.accepted(ABSURD, kind)
    except RefusalError as refusal:
        listed = re.match(r"choose (one of )?(.*)", refusal.remedy)
        if listed is None or "there is no such choice" not in str(refusal):
            return None
        return set(listed[2].split(", ")) if listed[1] else set(re.findall(r"'([^']*)'", listed[2]))
    return None


CHOOSING = [name for name in declarations(SFTConfig) if options_of(name) is not None]


@pytest.mark.parametrize("name", CHOOSING)
def test_the_choices_of_an_argument_are_those_of_its_type(name: str) -> None:
    """Each argument that takes one of a few texts has a type that names them all, and no other."""
    known = [each for each in literals() if re.search(rf"\b{each}\b", spelled(name))]
    if name in OPEN or "list" in spelled(name):
        assert known in ([], ["ShardingText"])
        return
    (used,) = known
    assert literals()[used] == options_of(name)
    assert getattr(choices, used) is str


def test_most_choices_are_covered() -> None:
    """A change of the messages does not empty the test above."""
    assert {"save_strategy", "lr_scheduler_type", "journal", "log_level", "on_nonfinite"} <= set(CHOOSING)


@pytest.mark.parametrize("cls", CLASSES)
def test_docstrings_have_the_help_of_each_argument(cls: type[Any]) -> None:
    """They are up to date; `python -m tests.unit.arguments.docstrings` writes them."""
    _, text, current = source(cls)
    assert text == current
    assert section(cls) in text
    for field in dataclasses.fields(cls):
        assert "\n" not in field.metadata["help"]
        assert f"{field.name}: {field.metadata['help']}\n" in (inspect.getdoc(cls) or "")


def test_enumerations_of_transformers_are_accepted() -> None:
    """By value, as type checkers are told."""
    from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType

    made = TrainingArguments(
        "out",
        save_strategy=SaveStrategy.EPOCH,
        eval_strategy=IntervalStrategy.NO,
        lr_scheduler_type=SchedulerType.COSINE,
        hub_strategy=HubStrategy.END,
    )
    assert (made.save_strategy, made.lr_scheduler_type) == (choices.SaveStrategy.EPOCH, choices.SchedulerType.COSINE)
