"""`inspect.signature` of the classes of arguments, by which programs and editors learn what a constructor takes."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import attrs
import pytest

from hexloop import Seq2SeqTrainingArguments, TrainingArguments


@dataclass
class Plain(TrainingArguments):
    extra: int = 3
    learning_rate: float = 1e-3


@attrs.define(slots=False)
class Attrs(TrainingArguments):
    extra: int = attrs.field(default=3, kw_only=True)


class Written(TrainingArguments):
    def __init__(self, *values: Any, more: int = 1, **named: Any) -> None:
        super().__init__(*values, **named)


@pytest.mark.parametrize("kind", [TrainingArguments, Seq2SeqTrainingArguments, Plain, Attrs])
def test_the_signature_names_every_argument(kind: type[Any]) -> None:
    """It has the fields of the constructor with types and defaults, and calling with its defaults is allowed."""
    parameters = inspect.signature(kind).parameters
    assert next(iter(parameters)) == "output_dir"
    assert set(parameters) == {each.name for each in attrs.fields(TrainingArguments)} | set(kind.__dataclass_fields__)
    assert parameters["learning_rate"].annotation in (float, "float")
    assert parameters["learning_rate"].default == kind.learning_rate
    assert all(each.annotation is not each.empty for each in parameters.values())
    made = kind(**{name: each.default for name, each in parameters.items()})
    assert made.include_for_metrics == []


def test_a_program_keeps_the_settings_that_the_class_takes() -> None:
    """A program that filters its configuration by the signature keeps every argument and drops the rest."""
    settings: dict[str, Any] = {"output_dir": "out", "learning_rate": 1e-3, "extra": 5, "unknown": 1}
    taken = {name: value for name, value in settings.items() if name in inspect.signature(Plain).parameters}
    assert taken == {"output_dir": "out", "learning_rate": 1e-3, "extra": 5}
    assert Plain(**taken).extra == 5


def test_a_subclass_has_the_signature_of_its_own_constructor() -> None:
    """A constructor that the user wrote is shown as it is; the text of a dataclass without one shows the fields."""
    assert str(inspect.signature(Written)).startswith("(*values: 'Any', more: 'int' = 1, **named: 'Any')")
    assert (Plain.__doc__ or "").startswith("Plain(output_dir: ")


def test_instances_have_no_signature() -> None:
    """The attribute belongs to classes, so that it is neither a field nor an argument of an object."""
    assert not hasattr(TrainingArguments("out"), "__signature__")
