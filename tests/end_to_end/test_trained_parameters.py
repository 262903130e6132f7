"""Parameters that leave the optimizer, or are not the model's, are refused or reported, with the way out."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import hexloop
from hexloop.domain.errors import RunStateError
from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import small_trainer

EVENTS = (
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
)


def at(event: str, change: Any) -> Any:
    """Return a callback that makes a change once, at the second step, or when the run starts."""
    done: list[int] = []

    def once(_self: Any, _args: Any, state: Any, _control: Any, **named: Any) -> None:
        if not done and (state.global_step == 1 or event in EVENTS[:2]):
            done.append(1)
            change(**named)

    return type("Mine", (hexloop.TrainerCallback,), {event: once})()


def grow(optimizer: Any, **_: Any) -> None:
    """Add a group of a parameter that is not the model's."""
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


def shrink(optimizer: Any, **_: Any) -> None:
    """Take a parameter out of a group."""
    optimizer.param_groups[0]["params"].pop()


@pytest.mark.parametrize("change", [grow, shrink])
@pytest.mark.parametrize("event", EVENTS)
def test_groups_that_change_are_refused_with_the_way_out(event: str, change: Any, tmp_path: Path) -> None:
    """At every event, at the next boundary of a step; nothing that was saved is lost."""
    trainer = small_trainer(
        tmp_path, parts={"callbacks": [at(event, change)]}, save_strategy="steps", save_steps=1, max_steps=4
    )
    with pytest.raises(RunStateError, match="Override create_optimizer"):
        trainer.train()
    assert trainer.state.global_step <= 2
    if event not in (*EVENTS[:2], "on_step_end"):  # which come before the first save
        assert (tmp_path / "checkpoint-1" / "manifest.json").is_file()


def test_unfreezing_what_an_optimizer_of_the_user_lacks_is_reported(tmp_path: Path, caplog: Any) -> None:
    """Once, with the name of the parameter; it is not trained, as in transformers."""
    model = net()
    first: Any = model.layers[0]
    first.requires_grad_(False)
    before = first.weight.detach().clone()
    callback = at("on_step_end", lambda **_: first.requires_grad_(True))
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1)
    parts = {"model": model, "callbacks": [callback], "optimizers": (optimizer, None)}
    with caplog.at_level(logging.WARNING, "hexloop"):
        small_trainer(tmp_path, parts=parts, max_steps=4).train()
    told = [each.getMessage() for each in caplog.records if "requires_grad" in each.getMessage()]
    assert len(told) == 1
    assert "layers.0.weight and layers.0.bias" in told[0]
    assert torch.equal(first.weight, before)


def test_unfreezing_what_the_optimizer_has_takes_effect(tmp_path: Path, caplog: Any) -> None:
    """The way out of the message: an optimizer of all parameters skips those that are frozen."""
    model = net()
    first: Any = model.layers[0]
    first.requires_grad_(False)
    before = first.weight.detach().clone()
    callback = at("on_step_end", lambda **_: first.requires_grad_(True))
    parts = {"model": model, "callbacks": [callback], "optimizers": (torch.optim.SGD(model.parameters(), 0.1), None)}
    with caplog.at_level(logging.WARNING, "hexloop"):
        small_trainer(tmp_path, parts=parts, max_steps=4).train()
    assert not any("requires_grad" in each.getMessage() for each in caplog.records)
    assert not torch.equal(first.weight, before)


def exchange(optimizer: Any, **_: Any) -> None:
    """Put another parameter in the place of one."""
    optimizer.param_groups[0]["params"][0] = torch.nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize("event", EVENTS)
def test_parameters_that_are_exchanged_are_refused(event: str, tmp_path: Path) -> None:
    """Groups of the same sizes are not the same groups; no save has them."""
    trainer = small_trainer(
        tmp_path, parts={"callbacks": [at(event, exchange)]}, save_strategy="steps", save_steps=2, max_steps=4
    )
    with pytest.raises(RunStateError, match="other parameters than when the run started"):
        trainer.train()
    assert not (tmp_path / "checkpoint-2").exists()


@pytest.mark.parametrize("saving", [{"save_strategy": "no"}, {"save_strategy": "steps", "save_steps": 2}])
def test_a_module_that_is_replaced_is_reported(saving: dict[str, Any], tmp_path: Path, caplog: Any) -> None:
    """Once: the optimizer has the parameters of the old one, so that the new one keeps its values."""
    model = net()
    old: Any = model.layers[0]
    new = torch.nn.Linear(old.in_features, old.out_features)
    before = new.weight.detach().clone()

    def replace(**_: Any) -> None:
        model.layers[0] = new

    with caplog.at_level(logging.WARNING, "hexloop"):
        parts = {"model": model, "callbacks": [at("on_step_end", replace)]}
        small_trainer(tmp_path, parts=parts, num_train_epochs=2, max_steps=-1, **saving).train()
    (told,) = [each.getMessage() for each in caplog.records if "became other objects" in each.getMessage()]
    assert told.startswith("layers.0.weight and layers.0.bias of the model")
    assert torch.equal(new.weight, before)
