"""What each batch adds to the loss of its window, where some batches have nothing that can be counted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hexloop.adapters.trainable.torch.trainable import IGNORED_LABEL, LOCAL_ITEM_SUM, ItemSum, TorchTrainable
from hexloop.ports.batches import Padding

TWO = ItemSum(2, lambda items: torch.as_tensor(items).clone() * 2)
"""The other process counts what this one does."""


def trainable(model: nn.Module, compute_loss: Any, world: ItemSum = LOCAL_ITEM_SUM, **how: Any) -> TorchTrainable:
    return TorchTrainable(model, torch.optim.SGD(model.parameters(), 0.1), compute_loss, item_sum=world, **how)


def gradient_of(parameter: Tensor) -> list[float]:
    assert parameter.grad is not None
    numbers: list[float] = parameter.grad.flatten().tolist()
    return numbers


def added(subject: TorchTrainable, window: Sequence[Any]) -> tuple[float, list[float]]:
    """The loss of a window and the gradients of it."""
    items = subject.count_items(window)
    total = 0.0
    for batch in window:
        loss = subject.loss(batch, items)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, [number for each in subject.model.parameters() for number in gradient_of(each)]


def mean_of_a_field(model: Any, batch: Any) -> Tensor:
    loss: Tensor = (model.weight * batch.x).mean()
    return loss


@pytest.mark.parametrize(("world", "processes"), [(LOCAL_ITEM_SUM, 1), (TWO, 2)])
def test_batches_without_rows_or_labels_weigh_the_same(world: ItemSum, processes: int) -> None:
    """A window's loss is the plain mean of theirs, over the processes as well."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    subject = trainable(model, mean_of_a_field, world)
    window = [SimpleNamespace(x=torch.tensor([1.0, 3.0])), SimpleNamespace(x=torch.tensor([6.0]))]

    assert added(subject, window) == (4.0 / processes, [4.0 / processes])


def mean_over_labels(model: Any, batch: Any, num_items_in_batch: Any = None) -> Tensor:
    logits = model(batch["x"])
    if num_items_in_batch is None:
        return cross_entropy(logits, batch["labels"])
    total: Tensor = cross_entropy(logits, batch["labels"], reduction="sum") / num_items_in_batch
    return total


def rows(*labels: int, kind: type[dict[str, Any]] = dict) -> Any:
    return kind(x=torch.arange(2.0 * len(labels)).reshape(-1, 2), labels=torch.tensor(labels))


NONE = IGNORED_LABEL


def taking_the_labels_out(model: Any, batch: Any) -> Tensor:
    labels = batch.pop("labels")
    return cross_entropy(model(batch["x"]), labels)


@pytest.mark.parametrize("world", [LOCAL_ITEM_SUM, TWO])
def test_labels_that_a_loss_takes_out_of_its_batch_are_counted(world: ItemSum) -> None:
    """A batch weighs by the labels that it came with, not by what is left of it."""
    model = nn.Linear(2, 3)
    windows = [[rows(0, NONE, NONE), rows(1, 2, 0)] for _ in range(2)]
    expected = added(trainable(model, mean_over_labels, world), windows[0])
    model.zero_grad()

    assert added(trainable(model, taking_the_labels_out, world), windows[1]) == expected


@pytest.mark.parametrize("world", [LOCAL_ITEM_SUM, TWO])
@pytest.mark.parametrize("normalises", [False, True])
def test_a_window_of_which_no_label_counts_changes_nothing(world: ItemSum, normalises: bool) -> None:
    """Its loss is 0, and so are its gradients."""
    subject = trainable(nn.Linear(2, 3), mean_over_labels, world, normalises=normalises)
    loss, gradients = added(subject, [rows(NONE, NONE), rows(NONE)])

    assert loss == 0.0
    assert gradients == [0.0] * 9


@pytest.mark.parametrize("world", [LOCAL_ITEM_SUM, TWO])
@pytest.mark.parametrize("without", [rows(NONE, NONE), rows(NONE, kind=Padding)], ids=["no label", "padding"])
def test_a_batch_of_which_nothing_counts_leaves_the_others_alone(world: ItemSum, without: Any) -> None:
    """The mean over no label, which is not a number, adds nothing to the mean over those of the others."""
    subject = trainable(nn.Linear(2, 3), mean_over_labels, world)
    expected = added(subject, [rows(0, 2), rows(1)])
    subject.clear_gradients()

    assert added(subject, [rows(0, 2), without, rows(1)]) == expected


def test_a_loss_that_is_not_a_number_is_shown() -> None:
    """Where labels count, it is no share of nothing."""
    subject = trainable(nn.Linear(2, 3), lambda model, batch: model(batch["x"]).sum() * math.nan)

    assert math.isnan(added(subject, [rows(0, 2), rows(1)])[0])
