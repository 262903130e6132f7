"""torch's `DataParallel`: one process with several GPUs, each of which computes a part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn

from hexloop.ports.parallelism import ParallelismCapabilities

CountItems = Callable[[Mapping[str, Any]], Tensor | int]
"""Returns the number of items that the loss of a part of a batch averages over."""


@frozen
class DataParallel:
    """Parallelism adapter for one process. The model is on the first of `devices`; every step copies it to the others.

    The model's loss is the mean over the items of the whole batch, as on one GPU: each part is weighted by its
    `count_items`, or equally without. If the model divides by an item count that it is given, the loss is the sum of
    the parts.
    """

    devices: Sequence[int]
    count_items: CountItems | None = None
    _wrapped: list[nn.Module] = field(factory=list, init=False)

    capabilities = ParallelismCapabilities("data_parallel", compiles=False, several_devices=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Wrap the module, whose parameters stay on their device."""
        wrapped = Copies(model, self.devices, self.count_items)
        return wrapped, make_optimizer(wrapped)

    def synchronise(self, last_of_window: bool) -> None:
        """No-op: gradients are summed in every backward pass, because the copies live no longer."""

    def backward(self, loss: Tensor) -> None:
        """Sum the gradients of the copies on the first GPU."""
        loss.backward()  # type: ignore[no-untyped-call]

    def unwrap(self, model: Any) -> Any:
        """Return the wrapped module."""
        return model.module if isinstance(model, Copies) else model


class Copies(nn.DataParallel[Any]):
    """A module on several GPUs that returns what it would return on one, including its loss."""

    def __init__(self, module: nn.Module, devices: Sequence[int], count_items: CountItems | None) -> None:
        super().__init__(module, list(devices))
        self._count_items = count_items
        self._gives_loss = False

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[Any]) -> Any:
        """Split the rows over the GPUs. A scalar, which has no rows, goes to every GPU."""
        numbers = {name: value for name, value in kwargs.items() if isinstance(value, Tensor) and not value.ndim}
        rest = {name: value for name, value in kwargs.items() if name not in numbers}
        positional, named = super().scatter(inputs, rest, device_ids)
        for device, part in zip(device_ids, named, strict=False):
            part |= {name: value.to(torch.device(self.src_device_obj.type, device)) for name, value in numbers.items()}
        return positional, named

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
        """Return the outputs of the copies, each with its share of the whole loss."""
        outputs = super().parallel_apply(replicas, inputs, kwargs)
        self._gives_loss = _loss_in(outputs[0]) is not None
        if not self._gives_loss:
            return outputs
        return [with_loss(output, share) for output, share in zip(outputs, self._shares(kwargs), strict=True)]

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Gather all rows on the first GPU, and sum the losses."""
        gathered = super().gather(outputs, output_device)
        return with_loss(gathered, torch.sum) if self._gives_loss else gathered

    def _shares(self, parts: Sequence[Mapping[str, Any]]) -> list[Callable[[Tensor], Tensor]]:
        """Return, for each part, the function from its loss to its share of the batch's loss."""
        if any(part.get("num_items_in_batch") is not None for part in parts):
            return [lambda loss: loss.reshape(1)] * len(parts)
        if self._count_items is None:
            return [lambda loss: loss.reshape(1) / len(parts)] * len(parts)
        counts = [self._count_items(part) for part in parts]
        here = [torch.as_tensor(count).to(self.src_device_obj, non_blocking=True) for count in counts]
        total = torch.stack(here).sum()
        return [partial(_weighted, count=count, total=total) for count in counts]


def _weighted(loss: Tensor, count: Tensor | int, total: Tensor) -> Tensor:
    """Return the share of a mean over `count` of `total` items; 0 for a mean over no items, which is nan."""
    items = torch.as_tensor(count, device=loss.device)
    return torch.where(items > 0, loss * (items / total.to(loss.device)), 0.0).reshape(1)


def _loss_in(outputs: Any) -> Tensor | None:
    """Return the scalar loss in a model's outputs: under "loss" in a mapping, first in a tuple, or alone."""
    if isinstance(outputs, MutableMapping):
        loss = outputs.get("loss")
    else:
        loss = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
    return loss if isinstance(loss, Tensor) and not loss.ndim else None


def with_loss(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the outputs of a model with its loss changed; a mapping is changed in place."""
    if isinstance(outputs, MutableMapping):
        outputs["loss"] = change(outputs["loss"])
        return outputs
    return (change(outputs[0]), *outputs[1:]) if isinstance(outputs, tuple) else change(outputs)
