"""torch's DataParallel: one process, several GPUs, each of which computes a part of every batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor, nn

from hexloop.ports.parallelism import ParallelismCapabilities

CountItems = Callable[[Mapping[str, Any]], Tensor | int]
"""From a part of a batch to the number of items that its loss is the mean of."""


@frozen
class DataParallel:
    """Answers the Parallelism port. The model lies on the first of `devices`; every step copies it to the others.

    A loss that the model computes is the mean over the items of the whole batch, as on one GPU: each part weighs by
    what `count_items` gives for it, or the same without. One that is divided by the count of items that the model is
    told is the sum of its parts.
    """

    devices: Sequence[int]
    count_items: CountItems | None = None
    _wrapped: list[nn.Module] = field(factory=list, init=False)

    capabilities = ParallelismCapabilities("data_parallel", compiles=False, several_devices=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Wrap the module, whose parameters stay where they are."""
        wrapped = Copies(model, self.devices, self.count_items)
        return wrapped, make_optimizer(wrapped)

    def synchronise(self, last_of_window: bool) -> None:
        """Gradients meet in every backward pass, as the copies live no longer than that."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the copies up on the first GPU."""
        loss.backward()  # type: ignore[no-untyped-call]

    def unwrap(self, model: Any) -> Any:
        """The module within."""
        return model.module if isinstance(model, Copies) else model


class Copies(nn.DataParallel[Any]):
    """A module on several GPUs that returns what it would on one, its loss included."""

    def __init__(self, module: nn.Module, devices: Sequence[int], count_items: CountItems | None) -> None:
        super().__init__(module, list(devices))
        self._count_items = count_items
        self._gives_loss = False

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[Any]) -> Any:
        """Deal the rows out. A single number, which has no rows, goes to every GPU."""
        numbers = {name: value for name, value in kwargs.items() if isinstance(value, Tensor) and not value.ndim}
        rest = {name: value for name, value in kwargs.items() if name not in numbers}
        positional, named = super().scatter(inputs, rest, device_ids)
        for device, part in zip(device_ids, named, strict=False):
            part |= {name: value.to(torch.device(self.src_device_obj.type, device)) for name, value in numbers.items()}
        return positional, named

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> list[Any]:
        """What the copies return, each loss of it as its share of the whole."""
        outputs = super().parallel_apply(replicas, inputs, kwargs)
        self._gives_loss = _loss_in(outputs[0]) is not None
        if not self._gives_loss:
            return outputs
        return [with_loss(output, share) for output, share in zip(outputs, self._shares(kwargs), strict=True)]

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """All rows on the first GPU, and one loss."""
        gathered = super().gather(outputs, output_device)
        return with_loss(gathered, torch.sum) if self._gives_loss else gathered

    def _shares(self, parts: Sequence[Mapping[str, Any]]) -> list[Callable[[Tensor], Tensor]]:
        """From the loss of each part to what it adds to that of the batch."""
        if any(part.get("num_items_in_batch") is not None for part in parts):
            return [lambda loss: loss.reshape(1)] * len(parts)
        if self._count_items is None:
            return [lambda loss: loss.reshape(1) / len(parts)] * len(parts)
        counts = [self._count_items(part) for part in parts]
        here = [torch.as_tensor(count).to(self.src_device_obj, non_blocking=True) for count in counts]
        total = torch.stack(here).sum()
        return [partial(_weighed, count=count, total=total) for count in counts]


def _weighed(loss: Tensor, count: Tensor | int, total: Tensor) -> Tensor:
    """A mean over `count` of `total` items as a share of the mean over all; one over no item, which is nan, as 0."""
    items = torch.as_tensor(count, device=loss.device)
    return torch.where(items > 0, loss * (items / total.to(loss.device)), 0.0).reshape(1)


def _loss_in(outputs: Any) -> Tensor | None:
    """The single number that a model returned: under "loss" in a mapping, first in a tuple, or alone."""
    if isinstance(outputs, MutableMapping):
        loss = outputs.get("loss")
    else:
        loss = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
    return loss if isinstance(loss, Tensor) and not loss.ndim else None


def with_loss(outputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """What a model returned, with another loss in its place; a mapping is changed itself."""
    if isinstance(outputs, MutableMapping):
        outputs["loss"] = change(outputs["loss"])
        return outputs
    return (change(outputs[0]), *outputs[1:]) if isinstance(outputs, tuple) else change(outputs)
