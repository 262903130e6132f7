"""The arguments of the loss, also in classes that give one of their names another meaning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from hexloop import TrainingArguments
from hexloop.app.arguments.losses import LossWanted, loss_wanted
from hexloop.domain.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, LossWanted()),
        ({"loss_type": "nll"}, LossWanted("nll")),
        ({"chunked_loss": True}, LossWanted(chunked=True)),
        ({"loss_type": "chunked_nll"}, LossWanted("nll", chunked=True)),
        ({"loss_type": "dft"}, LossWanted("dft")),
        ({"loss_type": "dft", "chunked_loss": True}, LossWanted("dft", chunked=True)),
    ],
)
def test_the_loss_that_is_chosen(given: dict[str, Any], wanted: LossWanted) -> None:
    """`chunked_nll` is `nll` in chunks."""
    assert loss_wanted(TrainingArguments("out", **given)) == wanted


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"loss_type": "cross_entropy"}, "choose 'nll', 'chunked_nll' or 'dft'"),
        ({"loss_type": "dft", "label_smoothing_factor": 0.1}, "each of them changes the loss of a label"),
        ({"chunked_loss": True, "reproduce": "transformers"}, "leave chunked_loss and loss_type out"),
        ({"log_token_accuracy": True, "reproduce": "transformers"}, "leave log_token_accuracy out"),
    ],
)
def test_values_that_are_refused(given: dict[str, Any], problem: str) -> None:
    """On construction, with the remedy."""
    with pytest.raises(ConfigurationError, match=problem):
        TrainingArguments("out", **given)


@dataclass
class Preferences(TrainingArguments):
    """Arguments whose `loss_type` is a list of names of their own, as trl's are."""

    loss_type: list[str] = field(default_factory=lambda: ["sigmoid"])


@dataclass
class Further(Preferences):
    """Derived from those."""

    beta: float = 0.1


@dataclass
class Longer(TrainingArguments):
    """Arguments that leave `loss_type` as it is."""

    beta: float = 0.1


@pytest.mark.parametrize("kind", [Preferences, Further])
def test_a_subclass_may_give_the_name_another_meaning(kind: type[Any]) -> None:
    """Its values are not checked, and choose nothing; `chunked_loss` keeps its meaning."""
    assert kind("out").loss_type == ["sigmoid"]
    assert loss_wanted(kind("out", loss_type=["dft"])) == LossWanted()
    assert loss_wanted(kind("out", chunked_loss=True)) == LossWanted(chunked=True)
    assert loss_wanted(kind("out", label_smoothing_factor=0.1, loss_type=["dft"])) == LossWanted()


def test_other_subclasses_have_the_argument() -> None:
    """With its values."""
    assert loss_wanted(Longer("out", loss_type="dft")) == LossWanted("dft")
    with pytest.raises(ConfigurationError, match="there is no such choice"):
        Longer("out", loss_type="sigmoid")
