"""A torch module, its loss and its optimizer, as the operations of a training step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from attrs import Factory, define, field, frozen
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from hexloop.adapters.trainable.torch.components import LossComponents
from hexloop.adapters.trainable.torch.forward import missing_loss_advice
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.domain.errors import DataError
from hexloop.ports.batches import IGNORED_LABEL, Padding
from hexloop.ports.collectives import Collectives, Reduction

Count = Tensor | int
"""A number of items, as a scalar on the device or as a plain number."""

Inputs: TypeAlias = dict[str, Any]
"""The keyword arguments of a model's forward."""


# The items of a window over all ranks


@frozen
class PendingCount:
    """The items of all ranks while they are being summed. `result()` waits for the sum, where the counts are."""

    result: Callable[[], Count]


def resolved_count(items: Any) -> Any:
    """Return what `count_items` returned as a number or None, waiting for a pending sum."""
    return items.result() if isinstance(items, PendingCount) else items


@frozen
class ItemSum:
    """The number of ranks, and the sum of their item counts, which may still be pending."""

    size: int
    total: Callable[[Count], Count | PendingCount]


LOCAL_ITEM_SUM = ItemSum(1, lambda items: items)
"""For a single process."""


def exact_item_sum(
    size: int, device: torch.device | str, collectives: Collectives | None = None, group: Any = None
) -> ItemSum:
    """Return the sum over a group of torch.distributed, by default that of all processes, computed on the device.

    If the device is the CPU and there are `collectives`, they compute the sum. See also `recorded_item_sum`.
    """
    if collectives is not None and str(device).partition(":")[0] == "cpu":
        return _exact_host_sum(collectives)

    def total(items: Count) -> PendingCount:
        if isinstance(items, Tensor):
            count = items.clone()
        else:  # filled on the device: a copy from host memory would make the host wait for the device
            count = torch.full((), items, dtype=torch.int64, device=device)
        work = dist.all_reduce(count, group=group, async_op=True)

        def result() -> Tensor:
            work.wait()
            return count

        return PendingCount(result)

    return ItemSum(size, total)


def recorded_item_sum(size: int, device: torch.device | str, flush: Callable[[], None]) -> ItemSum:
    """Return the sum over all processes of a device that records operations, whose runtime connects them.

    It is a program of its own, which is the same in every process. flush: starts what was recorded.
    """

    def total(items: Count) -> Count:
        count = items if isinstance(items, Tensor) else torch.full((), items, dtype=torch.int64, device=device)
        flush()
        found: Tensor = torch.ops._c10d_functional.all_reduce(count, "sum", "")
        flush()
        return found

    return ItemSum(size, total)


def _exact_host_sum(collectives: Collectives) -> ItemSum:
    def total(items: Count) -> PendingCount:
        reduction = collectives.start_reduction([float(items)], Reduction.SUM)

        def result() -> Count:
            count = int(reduction.result()[0])
            return torch.tensor(count) if isinstance(items, Tensor) else count

        return PendingCount(result)

    return ItemSum(collectives.world_size, total)


def estimated_item_sum(size: int) -> ItemSum:
    """Return a sum that assumes that every rank has as many items as this one."""
    return ItemSum(size, lambda items: items * size)


# The trainable


Seen: TypeAlias = Callable[[Any, Any], None]
"""Is shown the outputs of the model and the inputs."""


def not_seen(_outputs: Any, _inputs: Any) -> None:
    """Ignore the outputs of a model."""


class ComputeLoss(Protocol):
    """A function from a model and its inputs to the loss; with `return_outputs`, to the loss and the outputs."""

    def __call__(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """Return the loss, or (loss, outputs)."""


@frozen
class ModelLoss:
    """The loss that the model computes itself. With `passes_count`, the model is called with `num_items_in_batch`."""

    passes_count: bool = False
    seen: Seen = not_seen

    def __call__(
        self, model: nn.Module, inputs: Inputs, return_outputs: bool = False, num_items_in_batch: Count | None = None
    ) -> Any:
        """See `ComputeLoss`."""
        if self.passes_count and num_items_in_batch is not None:
            outputs = model(**inputs, num_items_in_batch=num_items_in_batch)
        else:
            outputs = model(**inputs)
        loss = loss_from_outputs(outputs, inputs, model)
        self.seen(outputs, inputs)
        return (loss, outputs) if return_outputs else loss


def loss_from_outputs(outputs: Any, inputs: Mapping[str, Any], model: nn.Module | None = None) -> Tensor:
    """Return the loss in a model's outputs: "loss" of a mapping, the attribute `loss`, or the first of a tuple.

    model: the model that returned them, for the error message.
    Raises DataError, describing the outputs, if there is none or if it is not a single number.
    """
    if isinstance(outputs, (dict, Mapping)):  # a dict first, because a question to an abstract class takes longer
        loss = outputs.get("loss")
    elif isinstance(outputs, tuple | list):
        loss = outputs[0] if outputs else None
    elif isinstance(outputs, Tensor):
        loss = outputs
    else:
        loss = getattr(outputs, "loss", None)
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    found = f"the keys {', '.join(outputs)}" if isinstance(outputs, Mapping) else f"a {type(outputs).__name__}"
    if isinstance(loss, Tensor):
        found += f", with a tensor of shape {tuple(loss.shape)} as the loss"
    advice = missing_loss_advice(model, inputs)
    raise DataError(f"The model returned no loss for the inputs {', '.join(inputs)}: it returned {found}. {advice}")


def checked_loss(loss: Any) -> Any:
    """Return the loss. Raises DataError if its backward pass would fail: no tensor, several numbers, or detached."""
    if type(loss) is Tensor and loss.requires_grad and not loss.ndim:
        return loss
    if not isinstance(loss, Tensor):
        problem = f"is a {type(loss).__name__}; return the tensor that the model computed, not its value"
    elif loss.numel() != 1:
        problem = f"has the shape {tuple(loss.shape)}, and is not a single number; return its mean or sum"
    elif not loss.requires_grad:
        problem = (
            "does not depend on a parameter that is trained: it was computed under torch.no_grad() or detached, or all "
            "parameters that it depends on are frozen. Compute it with gradients from the model's outputs, set "
            "requires_grad for parameters, and with activation checkpointing of a frozen embedding call "
            "model.enable_input_require_grads()"
        )
    else:
        return loss
    raise DataError(f"The loss {problem}.")


@define(eq=False, slots=False)
class TorchTrainable:
    """Implements the Trainable port for a module and an optimizer.

    model: the module that training calls (wrapped, compiled). inner: the user's own module within it, which user code
    may leave in evaluation mode; by default `model`.
    compute_loss: from module and batch to the loss. If `normalises`, it divides by the item count that it is given.
    Otherwise it returns a mean: with `exact` each mean is weighted by its share of the window's items, without it all
    batches of a window have the same weight.
    shifted: the loss compares each position with the next label.
    item_sum: the ranks that each compute a share of every window. layout: how the model's parameters are sharded.
    components: what is logged beside the loss.
    """

    model: nn.Module
    optimizer: Optimizer
    _compute_loss: ComputeLoss
    _normalises: bool = False
    _exact: bool = True
    _label_names: Sequence[str] = ("labels",)
    _shifted: bool = False
    _item_sum: ItemSum = LOCAL_ITEM_SUM
    _layout: TorchLayout = WHOLE
    _inner: nn.Module = field(default=Factory(lambda self: self.model, takes_self=True))
    _restore_modes: Callable[[], None] = lambda: None
    _components: LossComponents | None = None
    _counted: deque[tuple[Any, Count]] = field(factory=deque, init=False)

    def __attrs_post_init__(self) -> None:
        gradients = Gradients(self.model.parameters(), self._layout, self._outside())
        self.clip = gradients.clip
        self.clear_gradients = gradients.clear

    def _outside(self) -> list[Parameter]:
        """Return the optimizer's parameters that are not the model's, such as those of a loss function."""
        of_model = {id(parameter) for parameter in self.model.parameters()}
        updated = (each for group in self.optimizer.param_groups for each in group["params"])
        return [each for each in updated if id(each) not in of_model] if self._layout.whole else []

    def count_items(self, window: Sequence[Any]) -> Count | PendingCount | None:
        """Return the items of the window over all ranks; None if every loss already has its final weight.

        For means of equal weight the count is the number of batches in the window. If only the weight of a mean depends
        on the count, the ranks sum it up during the forward pass: see `resolved_count`.
        """
        if self._normalises:
            all_items: Count = resolved_count(self._item_sum.total(sum(self._items(batch) for batch in window)))
            return at_least_one(all_items)
        if self._exact and (len(window) > 1 or self._item_sum.size > 1):
            self._counted = deque((batch, number_on_host(self._items(batch))) for batch in window)
            return self._item_sum.total(sum(items for _, items in self._counted))
        batches = len(window) * self._item_sum.size
        return None if batches == 1 else batches

    def loss(self, batch: Any, window_items: Any) -> Tensor:
        """Return the batch's share of the window's loss."""
        if not self._inner.training:
            self.enter_training_mode()
        components, items, counted = self._components, None, None
        if components is not None:
            components.begin()
        if self._normalises:
            computed = self._compute_loss(self.model, batch, num_items_in_batch=window_items)
        else:
            computed = self._compute_loss(self.model, batch)
        if type(computed) is tuple and len(computed) == 2:  # of an override that returns the outputs as well
            computed, outputs = computed
            if components is not None:
                components.see(outputs, batch)
        loss: Tensor = checked_loss(computed)
        if not self._normalises and window_items is not None:
            items = resolved_count(window_items)
            if self._exact:
                counted = self._items_counted(batch)
                loss = weighted_share(loss, counted, items)
            else:
                loss = loss / items
        if isinstance(batch, Padding):
            loss = zero_loss(loss)
        if components is not None and components.found:
            self._hand_over(components, batch, window_items if self._normalises else items, counted)
        return loss

    def _hand_over(self, components: LossComponents, batch: Any, items: Any, counted: Count | None) -> None:
        """Pass on what was found beside a loss, weighted as the loss is. counted: the batch's items, if known."""

        def weighed(mean: Tensor) -> Tensor:
            if items is None:
                return mean
            if not (self._exact or self._normalises):
                return Tensor.div(mean, items)
            return weighted_share(mean, self._items(batch) if counted is None else counted, items)

        components.hand_over(torch.zeros_like if isinstance(batch, Padding) else weighed)

    def enter_training_mode(self) -> None:
        """Put the whole model in training mode if its root module is in evaluation mode. Submodules keep theirs."""
        if not self._inner.training:
            self._restore_modes()
            if not self._inner.training:
                self.model.train()

    def detached(self, loss: Tensor) -> Tensor:
        """Return the loss without its graph."""
        return loss.detach()

    def _items_counted(self, batch: Any) -> Count:
        """Return the items of a batch as counted with its window: compute_loss may have removed the labels since."""
        while self._counted:
            counted, items = self._counted.popleft()
            if counted is batch:
                return items
        return self._items(batch)

    def _items(self, batch: Any) -> Count:
        return item_count(batch, self._label_names, self._shifted)


# Gradients

NORM_EPSILON = 1e-6
"""Added to the norm before dividing by it, as in torch's clip_grad_norm_."""


class Gradients:
    """The gradients of parameters, including those of frozen parameters, which may be unfrozen during a run.

    If all are dense, plain tensors on one device, measuring them takes three kernels and clipping two; otherwise the
    general functions of torch are used. This is checked again whenever the number of gradients changes.
    layout: how the parameters are sharded. Each rank measures and clips its own shards.
    outside: further parameters, whose gradients are cleared as well, and neither measured nor clipped.
    """

    def __init__(
        self, parameters: Iterable[Parameter], layout: TorchLayout = WHOLE, outside: Iterable[Parameter] = ()
    ) -> None:
        self._layout = layout
        self._parameters = tuple(parameters)
        self._cleared = (*self._parameters, *outside)
        self._count = -1
        self._uniform = False

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients in place so that their total Euclidean norm is at most `max_norm` (0: do not scale).

        Returns the norm before scaling, as a scalar on the device. Does not wait for the device.
        """
        layout = self._layout
        gradients = [grad for parameter in self._parameters if (grad := parameter.grad) is not None]
        if not layout.whole:
            gradients = list(map(layout.local, gradients))
        if len(gradients) != self._count:
            self._count, self._uniform = len(gradients), _are_uniform(gradients)
        if not self._uniform:
            return self._clip_mixed(gradients, max_norm)
        norms = torch._foreach_norm(gradients)
        norm: Tensor = layout.norm(torch.linalg.vector_norm(torch.stack(norms)))
        if max_norm > 0:
            factor = (norm + NORM_EPSILON).reciprocal_().mul_(max_norm).clamp_(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def _clip_mixed(self, gradients: list[Tensor], max_norm: float) -> Tensor:
        norm = self._layout.norm(get_total_norm(gradients))
        if max_norm > 0:
            clip_grads_with_norm_(self._parameters, max_norm, norm)
        return norm

    def clear(self) -> None:
        """Set every gradient to None."""
        for parameter in self._cleared:
            parameter.grad = None


def _are_uniform(gradients: list[Tensor]) -> bool:
    return bool(gradients) and all(
        type(gradient) is Tensor and gradient.device == gradients[0].device and gradient.layout is torch.strided
        for gradient in gradients
    )


# Items: what a loss is the mean of (label tokens if there are labels, rows otherwise)


def item_count(batch: Any, label_names: Sequence[str], shifted: bool) -> Count:
    """Return the number of labels in `batch` other than -100, as a scalar on the device; its rows if it has no labels.

    Returns 0 for padding, and 1 if there are no rows either, so that batches that cannot be counted weigh the same.
    `shifted`: the loss compares each position with the next label, so the first label of a row is never used. Labels
    under the key `shift_labels` are already shifted.
    """
    if not isinstance(batch, Mapping):
        return row_count(batch) or 1
    if isinstance(batch, Padding):
        return 0
    if isinstance(batch.get("shift_labels"), Tensor):
        return _valid(batch["shift_labels"])
    labels = next((batch[name] for name in label_names if isinstance(batch.get(name), Tensor)), None)
    if labels is None:
        return row_count(batch) or 1
    return _valid(labels[..., 1:] if shifted and labels.ndim > 1 else labels)


def row_count(batch: Any) -> int:
    """Return the samples in a list of mappings, else the length of the first tensor in `batch`; 0 if there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 0
    if isinstance(batch, list) and batch and all(isinstance(each, Mapping) for each in batch):
        return len(batch)  # from a collate function that changes nothing
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next(filter(None, map(row_count, values)), 0)


def _valid(labels: Tensor) -> Tensor:
    return (labels != IGNORED_LABEL).sum()  # count_nonzero returns what programs of XLA cannot take


def number_on_host(items: Count) -> Count:
    """Return the count as a plain number if that needs no wait for a device."""
    return int(items) if isinstance(items, Tensor) and items.device.type == "cpu" else items


def at_least_one(items: Count) -> Count:
    """Return a count to divide by: 1 if there are no items. Does not wait for the device."""
    return items.clamp(min=1) if isinstance(items, Tensor) else max(items, 1)


def weighted_share(loss: Tensor, items: Count, total: Any) -> Tensor:
    """Return what a mean over `items` of `total` adds to the mean over all; 0 without items, whose mean is nan."""
    if isinstance(items, int) and not items:
        return zero_loss(loss)
    if isinstance(items, Tensor):
        loss = torch.where(items.to(loss.device) > 0, loss, 0.0)
        total = at_least_one(total)
    weighted: Tensor = loss * (items / total)
    return weighted


def zero_loss(loss: Tensor) -> Tensor:
    """Return 0 with the graph of `loss`, whatever its value is."""
    return loss.nan_to_num(0.0, 0.0, 0.0) * 0.0
