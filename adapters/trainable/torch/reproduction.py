"""The loss and the training step of transformers: how items are counted, which losses are scaled, and by what.

The two rules are those of transformers 5. A loss that divides by the number of items of a window gets that number if
the batches have "labels". Any other loss is a mean, and is divided by the number of micro-batches in the window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn
from torch.nn import Parameter

from hexloop.adapters.trainable.torch.trainable import (
    LOCAL_ITEM_SUM,
    Count,
    Inputs,
    ItemSum,
    TorchTrainable,
    checked_loss,
    loss_from_outputs,
    resolved_count,
)
from hexloop.ports.batches import IGNORED_LABEL


@frozen
class WindowItems:
    """Counts the labels of a window that are not -100.

    counts: whether the model or a loss function takes the count. shifted: the first label of a row is never used.
    total: sums the counts of all ranks.
    """

    counts: bool
    shifted: bool
    total: ItemSum = LOCAL_ITEM_SUM

    def __call__(self, window: Sequence[Any]) -> Tensor | None:
        """Return the count, on the device; None if the loss takes none or the batches have no labels."""
        if not (self.counts and window and isinstance(window[0], Mapping) and "labels" in window[0]):
            return None
        try:
            items = sum(self._labels(batch).ne(IGNORED_LABEL).sum() for batch in window)
        except (TypeError, AttributeError):  # labels that are not one tensor, as in object detection
            return None
        if self.total.size > 1:
            items = resolved_count(self.total.total(items))
        return torch.as_tensor(items) / 1

    def _labels(self, batch: Mapping[str, Any]) -> Any:
        if "shift_labels" in batch:
            return batch["shift_labels"]
        return batch["labels"][..., 1:] if self.shifted else batch["labels"]


@frozen
class TransformersLoss:
    """The loss of a batch: of the user's function, of smoothed labels, or the model's own.

    passes_count: the model is called with `num_items_in_batch`. function: the user's, from outputs, labels and count.
    smoother: of the labels, and whether it shifts them. factor: by what a loss that was divided by the count is
    multiplied, if the model or the function takes the count.
    """

    passes_count: bool
    function: Callable[..., Tensor] | None = None
    smoother: Callable[..., Tensor] | None = None
    shifts: bool = False
    factor: int = 1

    def __call__(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """See `ComputeLoss`."""
        features, labels, count = dict(inputs), None, num_items_in_batch
        if (self.function is not None or self.smoother is not None) and "labels" in features:
            labels = features.pop("labels")
        if self.passes_count and count is not None:
            outputs = model(**features, num_items_in_batch=count)
        else:
            outputs = model(**features)
        if self.function is not None:
            loss = self.function(outputs, labels, num_items_in_batch=count)
        elif labels is not None and self.smoother is not None:
            smoothing = {"shift_labels": True} if self.shifts else {}
            loss = self.smoother(outputs, labels, **smoothing, num_items_in_batch=count)
        else:
            loss = loss_from_outputs(outputs, inputs, model)
        if self.factor != 1 and (self.passes_count or self.function is not None) and count is not None:
            loss = loss * self.factor
        return (loss, outputs) if return_outputs else loss


@define(eq=False, slots=False)
class TransformersTrainable(TorchTrainable):
    """Implements the Trainable port with the rules of transformers.

    items: counts the items of a window. scaled: whether the loss with a count, or None, has its final weight.
    """

    items: WindowItems = field(kw_only=True)
    scaled: Callable[[Any], bool] = field(kw_only=True)
    _batches: int = field(default=1, init=False)

    def count_items(self, window: Sequence[Any]) -> Tensor | None:
        """Return the items of the window over all ranks; None if the loss takes no count."""
        self._batches = len(window)
        return self.items(window)

    def loss(self, batch: Any, window_items: Any) -> Tensor:
        """Return this rank's loss of a batch; the window's gradient is the mean of those of the ranks."""
        self.enter_training_mode()
        loss: Tensor = checked_loss(self._compute_loss(self.model, batch, num_items_in_batch=window_items))
        return loss if self.scaled(window_items) else loss / self._batches

    def _outside(self) -> list[Parameter]:
        """Return none: transformers clears the gradients of the model alone."""
        return []

    def enter_training_mode(self) -> None:
        """Put the model and all its modules in training mode."""
        self.model.train()
