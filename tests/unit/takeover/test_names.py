"""The tables of names agree with both libraries."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import transformers

import hexloop
from hexloop.app.takeover import names


@pytest.mark.parametrize("table", [names.FAMILY, names.EQUIVALENTS])
def test_every_name_is_defined_in_both_libraries(table: Any) -> None:
    """In transformers, the module that the table says defines each name, and hexloop exports it."""
    for relative, listed in table.items():
        module = import_module(names.module_name(relative))
        for name in listed:
            assert vars(module)[name].__module__ == module.__name__, name
            assert getattr(hexloop, name).__module__.startswith("hexloop."), name


def test_former_names_are_hexloops_alone() -> None:
    """They are gone from transformers; each can be imported, and says what to use instead, if anything."""
    for relative, listed in names.FORMER.items():
        module = import_module(names.module_name(relative))
        for name in listed:
            assert not hasattr(module, name), name
            assert getattr(hexloop, name).__module__.startswith("hexloop."), name
    assert {option.value for option in hexloop.ShardedDDPOption} == {
        "simple", "zero_dp_2", "zero_dp_3", "offload", "auto_wrap",
    }  # fmt: skip
    for call, remedy in (
        (hexloop.TFTrainer, "train a model of torch with Trainer"),
        (hexloop.TFTrainingArguments, "use TrainingArguments"),
        (lambda: hexloop.default_hp_space_sigopt(None), "search with optuna"),
    ):
        with pytest.raises(ImportError, match=remedy):
            call()


def test_hexloop_has_no_further_class_of_the_family() -> None:
    """Every name of hexloop that a replaced module of transformers defines too is in one of the tables."""
    defined = {
        name
        for relative in names.FAMILY
        for name, value in vars(import_module(names.module_name(relative))).items()
        if getattr(value, "__module__", None) == names.module_name(relative)
    }
    assert {name for name in hexloop.__all__ if name in defined} <= names.OWN_NAMES
    assert not names.FAMILY_NAMES - defined


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("5.0.0", True),
        ("5.23.1", True),
        ("5.16.0.dev0", True),
        ("4.57.1", False),
        ("5.24.0", True),
        ("5.25.0", False),
        ("6.0", False),
        ("unknown", False),
    ],
)
def test_tested_releases(release: str, expected: bool) -> None:
    """A release counts as tested by its major and minor number."""
    assert names.is_tested(release) == expected


def test_the_installed_release_is_tested() -> None:
    """The tests run with a release in the range that they state."""
    assert names.is_tested(transformers.__version__)
