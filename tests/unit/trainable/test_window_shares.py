"""The share of each batch in the loss of its window, with batches that have nothing to count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hexloop.adapters.trainable.torch.trainable import LOCAL_ITEM_SUM, ItemSum, TorchTrainable
from hexloop.ports.batches import IGNORED_LABEL, Padding

TWO = ItemSum(2, lambda items: torch.as_tensor(items).clone() * 2)
"""The other process counts the same as this one."""


def trainable(model: nn.Module, compute_loss: Any, world: ItemSum = LOCAL_ITEM_SUM, **how: Any) -> TorchTrainable:
    return TorchTrainable(model, torch.optim.SGD(model.parameters(), 0.1), compute_loss, item_sum=world, **how)


def gradient_of(parameter: Tensor) -> list[float]:
    assert parameter.grad is not None
    numbers: list[float] = parameter.grad.flatten().tolist()
    return numbers


def added(subject: TorchTrainable, window: Sequence[Any]) -> tuple[float, list[float]]:
    """Return the loss of a window and its gradients."""
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
def test_batches_without_rows_or_labels_have_equal_weight(world: ItemSum, processes: int) -> None:
    """A window's loss is the plain mean of its batches, over all processes."""
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


def loss_removing_labels(model: Any, batch: Any) -> Tensor:
    labels = batch.pop("labels")
    return cross_entropy(model(batch["x"]), labels)


@pytest.mark.parametrize("world", [LOCAL_ITEM_SUM, TWO])
def test_labels_that_a_loss_removes_from_its_batch_are_counted(world: ItemSum) -> None:
    """A batch is weighted by its original labels, not by what is left of them."""
    model = nn.Linear(2, 3)
    windows = [[rows(0, NONE, NONE), rows(1, 2, 0)] for _ in range(2)]
    expected = added(trainable(model, mean_over_labels, world), windows[0])
    model.zero_grad()

    assert added(trainable(model, loss_removing_labels, world), windows[1]) == expected


@pytest.mark.parametrize("world", [LOCAL_ITEM_SUM, TWO])
@pytest.mark.parametrize("normalises", [False, True])
def test_a_window_without_counted_labels_changes_nothing(world: ItemSum, normalises: bool) -> None:
    """Its loss and its gradients are 0."""
    subject = trainable(nn.Linear(2, 3), mean_over_labels, world, normalises=normalises)
    loss, gradients = added(subject, [rows(NONE, NONE), rows(NONE)])

    assert loss == 0.0
    assert gradients == [0.0] * 9


@pytest.mark.parametrize("world", [LOCAL_ITEM_SUM, TWO])
@pytest.mark.parametrize("without", [rows(NONE, NONE), rows(NONE, kind=Padding)], ids=["no label", "padding"])
def test_a_batch_without_counted_labels_leaves_the_others_unchanged(world: ItemSum, without: Any) -> None:
    """Its NaN mean over no labels adds nothing to the mean of the others."""
    subject = trainable(nn.Linear(2, 3), mean_over_labels, world)
    expected = added(subject, [rows(0, 2), rows(1)])
    subject.clear_gradients()

    assert added(subject, [rows(0, 2), without, rows(1)]) == expected


def test_a_nan_loss_is_shown() -> None:
    """NaN is not hidden if the batch has labels to count."""
    subject = trainable(nn.Linear(2, 3), lambda model, batch: model(batch["x"]).sum() * math.nan)

    assert math.isnan(added(subject, [rows(0, 2), rows(1)])[0])
