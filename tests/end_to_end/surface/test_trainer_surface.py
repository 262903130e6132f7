"""Attributes and behaviours of transformers' Trainer that libraries rely on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from hexloop import Trainer, TrainerControl, TrainerState, TrainingArguments
from hexloop.app.trainer.compatibility import ATTRIBUTES_INSTEAD, INSTEAD
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer


def test_every_attribute_of_a_trainer_exists_or_names_the_public_way(tmp_path: Path) -> None:
    """The methods of the class, and the attributes of a constructed Trainer."""
    args = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    theirs = transformers.Trainer(nn.Linear(1, 1), args)
    ours = small_trainer(tmp_path)
    names = {name for name in (*dir(type(theirs)), *vars(theirs)) if not name.startswith("__")}

    missing = {name for name in names if not hasattr(ours, name)}
    assert missing <= INSTEAD.keys() | ATTRIBUTES_INSTEAD.keys()
    for name in missing:
        with pytest.raises(AttributeError, match=f"has no attribute {name!r}: "):
            getattr(ours, name)


def test_the_docs_list_every_refused_override() -> None:
    """With the advice of the error."""
    page = (Path(__file__).parents[3] / "docs" / "while-training.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- refused overrides -->")[2].partition("<!-- end -->")[0].strip().splitlines()

    assert listed[2:] == [f"| `{name}` | {instead} |" for name, instead in sorted(INSTEAD.items())]


def test_state_and_control_have_the_methods_of_transformers(tmp_path: Path) -> None:
    """Intervals below 1 are fractions of the run; each switch is cleared by its own method."""
    state, control = TrainerState(), TrainerControl(True, True, True, True, True)
    state.compute_steps(TrainingArguments(str(tmp_path), logging_steps=0.15, save_steps=7), 10)
    state.init_training_references(small_trainer(tmp_path), 10, 3, None)
    control._new_step()
    after_step = TrainerControl(should_training_stop=True, should_epoch_stop=True)

    assert (state.logging_steps, state.save_steps, state.max_steps, state.num_train_epochs) == (2, 7, 10, 3)
    assert control == after_step
    control._new_epoch()
    control._new_training()
    assert control == TrainerControl()


class Embedding(nn.Module):
    """A model whose forward takes no labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Contrasting(Trainer):
    """Computes the loss from the inputs alone, as trainers of embeddings do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.can_return_loss = True

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(inputs["x"])
        loss = (outputs - inputs["target"]).square().mean()
        return (loss, {"embedding": outputs}) if return_outputs else loss


def test_an_overridden_loss_without_labels_evaluates(tmp_path: Path) -> None:
    """The evaluation calls `compute_loss`, and not the model with the whole batch."""
    data = [{"x": row["x"], "target": row["labels"]} for row in rows(8)]
    parts = {"model": Embedding(), "train_dataset": data, "eval_dataset": data}
    trainer = small_trainer(tmp_path, Contrasting, parts, remove_unused_columns=False)
    trainer.train()

    assert trainer.evaluate()["eval_loss"] < 10


def test_batches_may_be_lists(tmp_path: Path) -> None:
    """With a collate function that returns the samples, the user's loss reads them; counters count none."""

    class Reading(Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            assert isinstance(inputs, list)
            x = torch.stack([row["x"] for row in inputs])
            return model(x, torch.stack([row["labels"] for row in inputs]))["loss"]

    parts = {"data_collator": lambda samples: samples}
    trainer = small_trainer(tmp_path, Reading, parts, include_num_input_tokens_seen="all")
    trainer.train()

    assert trainer.state.global_step == 4
    assert trainer.state.num_input_tokens_seen == 0
