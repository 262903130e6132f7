"""From a held-out batch to its loss, its predictions and its labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.evaluator.torch.predictions import mapping_like, sequence_like


def _detached(values: Any) -> Any:
    """Without their graphs, in what they came in."""
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, Mapping):
        return mapping_like(values, {name: _detached(value) for name, value in values.items()})
    if isinstance(values, tuple | list):
        return sequence_like(values, list(map(_detached, values)))
    return values


@frozen
class PredictionStep:
    """Predicts one batch without gradients.

    compute_loss: from (model, inputs, return_outputs) to the loss, or to (loss, outputs).
    wrap: puts a forward pass under the run's number format.
    label_names: the inputs that are labels. ignored: outputs that are no predictions, unless a call names others.
    loss_without_labels: the model has a loss although it takes no labels; a batch's `return_loss` goes before that.
    """

    compute_loss: Callable[..., Any]
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    label_names: Sequence[str] = ("labels",)
    ignored: Sequence[str] = ()
    loss_without_labels: bool = False

    def __call__(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Sequence[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """The mean loss, the logits and the labels of the batch, each None where there is none or it is not asked for.

        A single logits or labels tensor comes as it is, several as a tuple.
        """
        ignored = self.ignored if ignore_keys is None else ignore_keys
        labels = self._labels(inputs)
        loss: Tensor | None = None
        with torch.no_grad():
            if labels is not None:
                computed, outputs = self.wrap(self.compute_loss)(model, inputs, return_outputs=True)
                loss = computed.detach()
                loss = loss.mean() if loss.ndim else loss
                logits = _predictions(outputs, {*ignored, "loss"}, skip_first=True)
            else:
                logits = _predictions(_forward(self.wrap(model), inputs), set(ignored), skip_first=False)
        if prediction_loss_only:
            return loss, None, None
        logits = tuple(map(_detached, logits))
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def _labels(self, inputs: Any) -> Any:
        """The labels; None where there is one missing, and with it the loss.

        Of several tensors without names the last one is the labels.
        """
        if not isinstance(inputs, Mapping):
            return _detached(inputs[-1]) if isinstance(inputs, tuple | list) and len(inputs) > 1 else None
        if not self.label_names:
            asked = inputs.get("return_loss")
            return () if (self.loss_without_labels if asked is None else asked) else None
        found = tuple(inputs.get(name) for name in self.label_names)
        if any(value is None for value in found):
            return None
        labels = tuple(map(_detached, found))
        return labels[0] if len(labels) == 1 else labels


def _forward(model: Callable[..., Any], inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _predictions(outputs: Any, ignored: set[str], skip_first: bool) -> tuple[Any, ...]:
    """What the model returned besides its loss, in order. `skip_first`: a tuple begins with the loss."""
    if isinstance(outputs, Mapping):
        return tuple(value for name, value in outputs.items() if name not in ignored)
    if isinstance(outputs, Tensor):
        return (outputs,)
    if isinstance(outputs, tuple | list):
        return tuple(outputs[1:] if skip_first else outputs)
    return tuple(value for name, value in vars(outputs).items() if name not in ignored)
