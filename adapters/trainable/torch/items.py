"""How many items a loss is the mean of (label tokens where there are labels, rows otherwise), and what it adds then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hexloop.ports.batches import Padding

IGNORED_LABEL = -100
"""The label that torch's cross entropy leaves out."""


def row_count(batch: Any) -> int:
    """The length of the first dimension of the first tensor in `batch`; 0 where there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 0
    values: Sequence[Any] = ()
    if isinstance(batch, Mapping):
        values = tuple(batch.values())
    elif isinstance(batch, list | tuple):
        values = batch
    for value in values:
        if rows := row_count(value):
            return rows
    return 0


def item_count(batch: Any, label_names: Sequence[str], shifted: bool) -> Tensor | int:
    """The number of labels in `batch` other than -100, as a scalar on the device; its rows where it has no labels;
    0 where it is padding. 1 where it has no rows either, so that batches of which nobody knows more weigh the same.

    `shifted` says that the loss compares each position with the label after it, so that the first label of a row is
    never compared with anything; labels that come under `shift_labels` are shifted already.
    """
    if not isinstance(batch, Mapping):
        return row_count(batch) or 1
    if isinstance(batch, Padding):
        return 0
    if isinstance(batch.get("shift_labels"), Tensor):
        return _valid(batch["shift_labels"])
    found = [batch[name] for name in label_names if isinstance(batch.get(name), Tensor)]
    if not found:
        return row_count(batch) or 1
    if shifted and found[0].ndim > 1:
        return _valid(found[0][..., 1:])
    return _valid(found[0])


def number_on_host(items: Tensor | int) -> Tensor | int:
    """A count as a plain number where nobody has to wait for a device to know it."""
    return int(items) if isinstance(items, Tensor) and items.device.type == "cpu" else items


def at_least_one(items: Tensor | int) -> Tensor | int:
    """A count to divide by: 1 where nothing counts, without waiting for the device."""
    return items.clamp(min=1) if isinstance(items, Tensor) else max(items, 1)


def share(loss: Tensor, items: Tensor | int, total: Any) -> Tensor:
    """A mean over `items` of `total` as a part of the mean over all; 0 where it is one over nothing, which is nan."""
    if isinstance(items, int) and not items:
        return nothing(loss)
    if isinstance(items, Tensor):
        loss = torch.where(items.to(loss.device) > 0, loss, 0.0)
        total = at_least_one(total)
    weighed: Tensor = loss * (items / total)
    return weighed


def nothing(loss: Tensor) -> Tensor:
    """0 instead of the loss, whatever that is, with its graph."""
    return loss.nan_to_num(0.0, 0.0, 0.0) * 0.0


def _valid(labels: Tensor) -> Tensor:
    return torch.count_nonzero(labels != IGNORED_LABEL)
