"""Cross entropy against smoothed labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from hexloop.adapters.trainable.torch.full_precision import in_full_precision
from hexloop.adapters.trainable.torch.items import IGNORED_LABEL


@frozen
class LabelSmoother:
    """Cross entropy against labels smoothed by `epsilon`; labels that are `ignore_index` count for nothing.

    The loss is (1 - epsilon) times the negative log-likelihood plus epsilon times the mean negative log-probability
    over all classes (Szegedy et al. 2016, section 7), both summed over the items and divided by their number: that of
    the whole window where it is given, else that of this batch.
    """

    epsilon: float = 0.1
    ignore_index: int = IGNORED_LABEL

    def __call__(
        self,
        model_output: Any,
        labels: Tensor,
        shift_labels: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """The loss of what a model returned. shift_labels: compare each position with the label after it."""
        logits = in_full_precision(_logits(model_output))
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        if labels.ndim == logits.ndim:
            labels = labels.squeeze(-1)
        ignored = labels == self.ignore_index
        count = (~ignored).sum() if num_items_in_batch is None else num_items_in_batch
        log_probabilities = torch.log_softmax(logits, dim=-1)
        likelihood = log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        spread = log_probabilities.sum(dim=-1)
        sharp = likelihood.masked_fill(ignored, 0.0).sum() / count
        even = spread.masked_fill(ignored, 0.0).sum() / (count * logits.shape[-1])
        loss: Tensor = -((1 - self.epsilon) * sharp + self.epsilon * even)
        return loss


def _logits(outputs: Any) -> Tensor:
    logits: Tensor
    if isinstance(outputs, Tensor):
        logits = outputs
    elif isinstance(outputs, Mapping):
        logits = outputs["logits"]
    else:
        logits = outputs[0] if isinstance(outputs, tuple | list) else outputs.logits
    return logits
