"""From a batch to the loss: what the model returns, a function of the user's, or smoothed labels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.full_precision import in_full_precision
from hexloop.domain.errors import DataError


class ComputeLoss(Protocol):
    """From a model and its inputs to the loss, and with `return_outputs` to the loss and what the model returned."""

    def __call__(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss, or (loss, outputs)."""
        ...


def takes_item_count(model: nn.Module) -> bool:
    """Whether the model's own loss can be told the number of items to divide by.

    It says so itself (`accepts_loss_kwargs`), or its forward takes `num_items_in_batch`, or it passes its further
    keyword arguments on to a `loss_function`, as transformers' models with an exchangeable loss do.
    """
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is False:
        return False
    parameters = inspect.signature(model.forward).parameters
    if "num_items_in_batch" in parameters:
        return True
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return open_ended and (calls_loss_function(model) or declared is True)


def calls_loss_function(model: nn.Module) -> bool:
    """Whether forward leaves the loss to the model's exchangeable `loss_function`, as transformers' models do."""
    forward = inspect.unwrap(type(model).forward)
    return "loss_function" in getattr(getattr(forward, "__code__", None), "co_names", ())


def loss_in(outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
    """The loss that a model returned: under "loss" in a mapping, as `.loss`, or first in a tuple.

    Raises DataError, naming what came instead, where there is none, or it is not one number.
    """
    if isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    elif isinstance(outputs, tuple | list):
        loss = outputs[0] if outputs else None
    elif isinstance(outputs, Tensor):
        loss = outputs
    else:
        loss = getattr(outputs, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    came = f"the keys {', '.join(outputs)}" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
    if isinstance(loss, Tensor):
        came += f", in the place of the loss a tensor of shape {tuple(loss.shape)}"
    raise DataError(
        f"The model returned no loss for the inputs {', '.join(inputs)}: it gave {came}. Give it labels that its "
        'forward accepts, let forward return {"loss": ...}, or pass compute_loss_func.'
    )


@frozen
class ModelLoss:
    """The loss that the model computes itself; it is told the item count where `tells_count`."""

    tells_count: bool = False

    def __call__(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """See `ComputeLoss`."""
        if self.tells_count and num_items_in_batch is not None:
            outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        else:
            outputs = model(**inputs)
        loss = loss_in(outputs, inputs)
        return (loss, outputs) if return_outputs else loss


@frozen
class FunctionLoss:
    """The loss that `function(outputs, labels, num_items_in_batch=...)` computes from what the model returns."""

    function: Callable[..., Tensor]
    label_names: Sequence[str] = ("labels",)

    def __call__(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """See `ComputeLoss`."""
        labels, features = _take_labels(inputs, self.label_names)
        outputs = in_full_precision(model(**features))
        loss = self.function(outputs, labels, num_items_in_batch=num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


@frozen
class SmoothedLoss:
    """The loss that `smoother` computes of what the model returns without labels; see `LabelSmoother`."""

    smoother: Callable[..., Tensor]
    shifted: bool = False
    label_names: Sequence[str] = ("labels",)

    def __call__(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """See `ComputeLoss`."""
        labels, features = _take_labels(inputs, self.label_names)
        if labels is None:
            raise DataError(
                f"You chose to smooth labels (label_smoothing_factor), but the batch holds no "
                f"{' or '.join(self.label_names)}; give it labels, or set label_smoothing_factor=0."
            )
        outputs = model(**features)
        loss = self.smoother(outputs, labels, shift_labels=self.shifted, num_items_in_batch=num_items_in_batch)
        return (loss, outputs) if return_outputs else loss


def _take_labels(inputs: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The first of the named labels that is there, and the inputs without it."""
    features = dict(inputs)
    for name in names:
        if name in features:
            return features.pop(name), features
    return None, features
