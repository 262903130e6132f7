"""`repr` of a Trainer says what it trains and where it is; it makes nothing and never fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexloop import Seq2SeqTrainer, SFTTrainer, Trainer
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer


class Mine(Trainer[Any]):
    pass


class Unsized:
    def __len__(self) -> int:
        raise ZeroDivisionError


def test_a_trainer_shows_its_model_data_and_step(tmp_path: Path) -> None:
    """Before a run, and after it."""
    trainer = small_trainer(tmp_path, kind=Mine, parts={"eval_dataset": {"a": rows(8), "b": rows(2000)}})
    start = "<Mine: model=Net, train_dataset=list of 16, eval_dataset={'a': list of 8, 'b': list of 2,000}, "
    assert repr(trainer) == f"{start}output_dir={str(tmp_path)!r}, device='cpu'>"
    trainer.train()
    assert repr(trainer) == f"{start}output_dir={str(tmp_path)!r}, device='cpu', step=4 of 4>"


@pytest.mark.parametrize("kind", [Trainer, Seq2SeqTrainer, SFTTrainer, Mine])
def test_a_trainer_that_is_not_constructed_has_a_form(kind: type[Any]) -> None:
    """As a debugger shows it, within the constructor."""
    made = object.__new__(kind)
    assert repr(made) == f"<{kind.__name__}: not constructed>"
    assert vars(made) == {}


def test_a_length_that_raises_is_left_out(tmp_path: Path) -> None:
    """A user's class may raise anything."""
    trainer = small_trainer(tmp_path)
    trainer.train_dataset = Unsized()
    assert "train_dataset=Unsized," in repr(trainer)


def test_a_password_in_a_folder_s_url_is_hidden(tmp_path: Path) -> None:
    """As in messages."""
    trainer = small_trainer(tmp_path)
    trainer.args.output_dir = "s3://me:secretsecret@host/run"
    assert "secretsecret" not in repr(trainer)


def test_the_class_takes_the_type_of_the_model(tmp_path: Path) -> None:
    """At run time as well, for annotations and base classes."""
    assert issubclass(Mine, Trainer)
    trainer = small_trainer(tmp_path, kind=Trainer[Any])
    assert type(trainer) is Trainer
    assert trainer.train().global_step == 4
