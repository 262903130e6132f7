"""Losses other than the model's own: of a user's function, or with smoothed labels; and full precision for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.pending_logits import PendingLogits
from hexloop.adapters.trainable.torch.trainable import Count, Inputs, Seen, not_seen
from hexloop.domain.errors import DataError
from hexloop.ports.batches import IGNORED_LABEL

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtypes of the half formats, by name."""

MIXED = {**HALVES, "fp8": torch.bfloat16}
"""What autocast computes in, by the name of the precision; see `MIXED_FORMATS` of the port."""


@frozen
class FunctionLoss:
    """The loss that `function(outputs, labels, num_items_in_batch=...)` computes from the model's outputs."""

    function: Callable[..., Tensor]
    label_names: Sequence[str] = ("labels",)
    seen: Seen = not_seen

    def __call__(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """See `ComputeLoss`."""
        labels, features = _split_labels(inputs, self.label_names)
        outputs = in_full_precision(model(**features))
        loss = self.function(outputs, labels, num_items_in_batch=num_items_in_batch)
        self.seen(outputs, inputs)
        return (loss, outputs) if return_outputs else loss


@frozen
class SmoothedLoss:
    """The loss that `smoother` computes from the model's outputs without labels; see `LabelSmoother`."""

    smoother: Callable[..., Tensor]
    shifted: bool = False
    label_names: Sequence[str] = ("labels",)
    seen: Seen = not_seen

    def __call__(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """See `ComputeLoss`. Raises DataError if the batch has no labels."""
        labels, features = _split_labels(inputs, self.label_names)
        if labels is None:
            raise DataError(
                f"You chose label_smoothing_factor, but the batch has no {' or '.join(self.label_names)}; add labels, "
                "or set label_smoothing_factor=0."
            )
        outputs = model(**features)
        loss = self.smoother(outputs, labels, shift_labels=self.shifted, num_items_in_batch=num_items_in_batch)
        self.seen(outputs, inputs)
        return (loss, outputs) if return_outputs else loss


@frozen
class LabelSmoother:
    """Cross entropy against labels smoothed by `epsilon`. Labels equal to `ignore_index` do not count.

    The loss is (1 - epsilon) times the negative log-likelihood plus epsilon times the mean negative log-probability
    over all classes (Szegedy et al. 2016, section 7). Both are summed over the items and divided by the number of
    items, of the whole window if it is given, else of this batch.
    """

    epsilon: float = 0.1
    ignore_index: int = IGNORED_LABEL

    def __call__(
        self, model_output: Any, labels: Tensor, shift_labels: bool = False, num_items_in_batch: Count | None = None
    ) -> Tensor:
        """Return the loss of the model's outputs. shift_labels: compare each position with the next label."""
        logits = in_full_precision(_logits(model_output))
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        if labels.ndim == logits.ndim:
            labels = labels.squeeze(-1)
        ignored = labels == self.ignore_index
        count = (~ignored).sum() if num_items_in_batch is None else num_items_in_batch
        if isinstance(logits, PendingLogits):
            rules: dict[str, Any] = {"ignore_index": self.ignore_index, "label_smoothing": self.epsilon}
            pending: Tensor = logits.cross_entropy(labels, reduction="sum", **rules) / count
            return pending
        log_probabilities = torch.log_softmax(logits, dim=-1)
        log_likelihood = log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        over_classes = log_probabilities.sum(dim=-1)
        true_class = log_likelihood.masked_fill(ignored, 0.0).sum() / count
        all_classes = over_classes.masked_fill(ignored, 0.0).sum() / (count * logits.shape[-1])
        loss: Tensor = -((1 - self.epsilon) * true_class + self.epsilon * all_classes)
        return loss


def in_full_precision(outputs: Any) -> Any:
    """Return `outputs` (a tensor, or a tuple, list or mapping of outputs) with half precision converted to float32.

    A loss should be computed in full precision from what a model returned under automatic mixed precision.
    """
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in HALVES.values() else outputs
    if isinstance(outputs, Mapping):
        converted: Any = copy(outputs)
        for name, value in outputs.items():
            converted[name] = in_full_precision(value)
        return converted
    if isinstance(outputs, tuple | list):
        converted = map(in_full_precision, outputs)
        return type(outputs)(*converted) if hasattr(outputs, "_fields") else type(outputs)(converted)
    return outputs


def _split_labels(inputs: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the first of the named labels that is present, and the inputs without it."""
    features = dict(inputs)
    for name in names:
        if name in features:
            return features.pop(name), features
    return None, features


def _logits(outputs: Any) -> Any:
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        return outputs["logits"]
    return outputs[0] if isinstance(outputs, tuple | list) else outputs.logits
