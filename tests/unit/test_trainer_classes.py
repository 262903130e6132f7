"""The classes of the Trainer stand side by side, and code asks for facts instead of overrides and names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Generic

import pytest
from attrs import asdict

from hexloop.app.hooks import Hooks
from hexloop.app.rules import OWN, RULES, TRANSFORMERS
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.app.trainer.trainer import Trainer

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "adapters", "domain", "ports")


def files_with(pattern: str, *but: str) -> set[str]:
    """Return the source files whose code matches, except for those whose paths begin with one of `but`."""
    found = set()
    for folder in FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            if not path.startswith(but) and re.search(pattern, file.read_text(encoding="utf-8")):
                found.add(path)
    return found


@pytest.mark.parametrize("kind", [each for each in Trainer.__bases__ if each is not Generic])
def test_each_class_of_the_trainer_inherits_from_its_attributes_alone(kind: type) -> None:
    """Three classes in a chain. mypy shows that none uses what another one of them defines."""
    assert kind.__mro__ == (kind, TrainerAttributes, object)


def test_overrides_are_asked_about_by_the_wrappers_alone() -> None:
    """The standard path asks for facts about the user's methods, which `Hooks` has."""
    assert files_with(r"\.overridden\b", "app/overrides/", "app/hooks.py", "app/trainer/") == set()


def test_what_is_reproduced_is_asked_by_the_rules_alone() -> None:
    """Further: the argument's own checks, the engine that averages gradients, and the way of the argument there."""
    allowed = {
        "app/arguments/hexloop_only.py",
        "app/rules.py",
        "adapters/engines/ddp/engine.py",
        "app/takeover/replacing.py",
        "app/command_line/run.py",
    }
    assert files_with(r"\.reproduce\b") <= allowed


def test_the_rules_differ_in_everything() -> None:
    """A field in which both agree would be no rule."""
    assert RULES == {None: OWN, "transformers": TRANSFORMERS}
    one, other = asdict(OWN), asdict(TRANSFORMERS)
    assert all(one[name] != other[name] for name in one)


def test_a_hook_that_no_method_is_marked_as_is_an_error() -> None:
    """A misspelt name does not count as one that is not overridden."""
    hooks = Hooks.of(Trainer.__new__(Trainer))
    assert not hooks.compute_loss.overridden
    with pytest.raises(AttributeError, match="compute_los'"):
        hooks.compute_los  # noqa: B018
