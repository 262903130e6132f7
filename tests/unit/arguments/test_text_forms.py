"""`repr` of arguments shows what differs from the defaults, `str` shows all of them; neither shows secrets."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import attrs
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from hexloop import Seq2SeqTrainingArguments, SFTConfig, TrainingArguments
from hexloop.app.environment import DistributedEnvironment


@dataclass
class Plain(TrainingArguments):
    extra: int = 3
    seed: int = 7
    names: list[str] = field(default_factory=list)


@attrs.define(slots=False)
class Attrs(TrainingArguments):
    extra: int = 3


class Own(TrainingArguments):
    def __repr__(self) -> str:
        return "mine"


@dataclass
class Inheriting(Own):
    extra: int = 3


@pytest.mark.parametrize("kind", [TrainingArguments, Seq2SeqTrainingArguments, SFTConfig, Plain, Attrs])
def test_repr_shows_what_differs(kind: type[Any]) -> None:
    """In the order of the fields; values that follow from others are left out, as are converted defaults."""
    assert repr(kind("out")) == f"{kind.__name__}(output_dir='out')"
    assert repr(kind()) == f"{kind.__name__}()"
    shown = repr(kind("out", save_steps=7, save_strategy="epoch", report_to=["tensorboard"], bf16=True))
    assert shown == (
        f"{kind.__name__}(output_dir='out', save_strategy='epoch', save_steps=7, report_to=['tensorboard'], bf16=True)"
    )


def test_repr_follows_assignments() -> None:
    """Also to a value that was derived, and back to the default."""
    made = TrainingArguments("out")
    made.learning_rate, made.disable_tqdm = 1e-3, True
    assert repr(made) == "TrainingArguments(output_dir='out', learning_rate=0.001, disable_tqdm=True)"
    made.check()
    made.learning_rate = 5e-5
    assert repr(made) == "TrainingArguments(output_dir='out', disable_tqdm=True)"
    assert repr(copy.deepcopy(made)) == repr(made)


@pytest.mark.parametrize("kind", [TrainingArguments, Plain, Attrs])
def test_text_forms_show_no_secret(kind: type[Any]) -> None:
    """Decorators would write a `repr` of all fields."""
    made = kind("out", hub_token="hf_secretsecret", checkpoint_key="0123456789secret")
    for text in (repr(made), str(made), f"{made}"):
        assert "secret" not in text
        assert "hub_token='<HUB_TOKEN>'" in text


def test_a_subclass_may_have_its_own() -> None:
    """Written by hand, in it or in a base."""
    assert repr(Own("out")) == "mine"
    assert repr(Inheriting("out")) == "mine"


def test_str_is_that_of_transformers() -> None:
    """Every argument, one a line, as scripts log it with `f"{training_args}"`."""
    ours = str(TrainingArguments("out", seed=3)).splitlines()
    theirs = str(transformers.TrainingArguments("out", seed=3)).splitlines()
    assert ours[0] == theirs[0] == "TrainingArguments("
    assert {line.split("=")[0].strip() for line in theirs[1:-1]} <= {line.split("=")[0].strip() for line in ours[1:-1]}
    assert ours[-1] == theirs[-1] == ")"
    assert "    seed=3," in ours


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "learning_rate": st.floats(0, 1),
            "max_steps": st.integers(1, 100),
            "bf16": st.booleans(),
            "save_strategy": st.sampled_from(["no", "steps", "epoch"]),
            "run_name": st.none() | st.text("abc'\"\\", max_size=5),
            "label_names": st.none() | st.lists(st.sampled_from("ab"), max_size=2),
        },
    )
)
def test_repr_makes_an_equal_object(given_values: dict[str, Any]) -> None:
    """Of plain values, it is the call that makes the arguments again."""
    made = TrainingArguments("out", **given_values)
    assert eval(repr(made)) == made


def test_the_environment_is_not_shown() -> None:
    """It is not an argument."""
    made = TrainingArguments("out")
    made.distributed_environment = DistributedEnvironment(world_size=4)
    assert repr(made) == "TrainingArguments(output_dir='out')"
