"""Logits that are not computed: they stand in for those of a model until a loss asks for them.

What models do to logits before the loss (shift, reshape, scale, cap) is noted here, and done to a few positions at a
time when cross entropy is computed. Anything else raises an error, so that no model gets another loss than its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional

from hexloop.domain.errors import ConfigurationError

Operation = Callable[[Tensor], Tensor]

Share = float
"""A share of one; the class below has a method called float."""


@frozen(eq=False)
class CrossEntropyRules:
    """How torch's cross entropy is asked for. operations: are applied to what the output layer returns."""

    operations: tuple[Operation, ...]
    reduction: str
    ignore_index: int
    label_smoothing: float


class PendingLayer(Protocol):
    """The output layer of a model, which returned pending logits."""

    def logits(self, hidden: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of hidden states, computed with other tensors in place of some parameters."""

    def cross_entropy(self, pending: PendingLogits, target: Tensor, rules: CrossEntropyRules) -> Tensor:
        """Return the cross entropy of what the layer would return for the hidden states."""


def unsupported(what: str) -> ConfigurationError:
    """Return the error that a model or a loss does what is not possible with pending logits."""
    return ConfigurationError(
        f"chunked_loss=True, or loss_type, cannot be used with this model or loss, which {what}: the logits of all "
        "positions never exist at once. Leave the argument out."
    )


@dataclass(eq=False)
class PendingLogits:
    """Logits of shape (..., classes) that are not computed yet: hidden states, and what is to be done to them.

    hidden: of shape (..., features). weights: the trained parameters of the output layer, as views, so that what looks
    for the parameters that a result depends on finds them (a dataclass, because DistributedDataParallel looks into
    those). names: their names. half: the dtype of automatic mixed precision, if it is on. operations: are applied to
    logits, position by position. classes_second: the classes are the second dimension, as cross entropy takes them.
    """

    hidden: Tensor
    weights: list[Tensor]
    names: list[str]
    layer: PendingLayer
    classes: int
    half: torch.dtype | None = None
    operations: tuple[Operation, ...] = ()
    classes_second: bool = False
    dtype: torch.dtype = field(init=False)

    def __post_init__(self) -> None:
        self.dtype = self.half or self.hidden.dtype

    # What models ask of logits

    @property
    def shape(self) -> torch.Size:
        """The shape that the logits have."""
        *others, _ = self.hidden.shape
        if self.classes_second:
            return torch.Size([others[0], self.classes, *others[1:]])
        return torch.Size([*others, self.classes])

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.hidden.ndim

    @property
    def device(self) -> torch.device:
        """The device of the hidden states."""
        return self.hidden.device

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow through the logits."""
        return self.hidden.requires_grad or bool(self.weights)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of a dimension."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return how many logits there are."""
        return self.shape.numel()

    # Positions

    def contiguous(self, *_: Any, **__: Any) -> PendingLogits:
        """Return the same."""
        return self

    def view(self, *shape: Any) -> PendingLogits:
        """Return the logits in another shape, which has the classes as its last dimension."""
        sizes = [*shape[0]] if len(shape) == 1 and not isinstance(shape[0], int) else [*shape]
        if self.classes_second or not sizes:
            raise unsupported("reshapes its logits so that classes are mixed with positions")
        if sizes[-1] == -1:
            known = 1
            for size in sizes[:-1]:
                known *= size
            sizes[-1] = self.numel() // known if known > 0 else -1
        if sizes[-1] != self.classes:
            raise unsupported("reshapes its logits so that classes are mixed with positions")
        return replace(self, hidden=self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> PendingLogits:
        """Return the logits with some dimensions of positions joined to one."""
        if self.classes_second or end_dim % self.ndim == self.ndim - 1:
            raise unsupported("flattens its logits so that classes are mixed with positions")
        return replace(self, hidden=self.hidden.flatten(start_dim, end_dim))

    def transpose(self, first: int, second: int) -> PendingLogits:
        """Return the logits with the classes as their second dimension, or back."""
        dims = {first % self.ndim, second % self.ndim}
        if self.ndim == 3 and dims == {1, 2}:
            return replace(self, classes_second=not self.classes_second)
        if self.classes_second or self.ndim - 1 in dims:
            raise unsupported("transposes its logits")
        return replace(self, hidden=self.hidden.transpose(first, second))

    def permute(self, *dims: Any) -> PendingLogits:
        """Return the logits with the classes as their second dimension, or back."""
        order = [*dims[0]] if len(dims) == 1 and not isinstance(dims[0], int) else [*dims]
        if self.ndim == 3 and [each % 3 for each in order] == [0, 2, 1]:
            return self.transpose(1, 2)
        raise unsupported("permutes the dimensions of its logits")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> PendingLogits:
        """Return the logits of some positions, with all classes."""
        entries = index if isinstance(index, tuple) else (index,)
        taken = sum(each.ndim if _is_mask(each) else each is not None for each in entries if each is not Ellipsis)
        reaches_classes = taken == self.ndim or (
            bool(entries) and Ellipsis in _kinds(entries) and entries[-1] is not Ellipsis
        )
        if self.classes_second or (reaches_classes and not self._takes_all(entries[-1])):
            raise unsupported("takes some of the classes out of its logits")
        if reaches_classes:
            entries = (*entries[:-1], slice(None))
        return replace(self, hidden=self.hidden[entries])

    def _takes_all(self, entry: Any) -> bool:
        return isinstance(entry, slice) and entry.indices(self.classes) == (0, self.classes, 1)

    # What is done to each logit

    def __mul__(self, other: Any) -> PendingLogits:
        return self._with(operator.mul, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> PendingLogits:
        return self._with(operator.truediv, other)

    def __add__(self, other: Any) -> PendingLogits:
        return self._with(operator.add, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> PendingLogits:
        return self._with(operator.sub, other)

    def tanh(self) -> PendingLogits:
        """Return the hyperbolic tangent of the logits."""
        return self._then(torch.tanh)

    def float(self) -> PendingLogits:
        """Return the logits in float32."""
        return self._to(torch.float32)

    def to(self, *values: Any, **named: Any) -> PendingLogits:
        """Return the logits with another dtype. Another device is not supported."""
        found = self
        for value in (*values, *named.values()):
            if isinstance(value, torch.dtype):
                found = found._to(value)
            elif isinstance(value, Tensor):
                found = found.to(value.device)._to(value.dtype)
            elif isinstance(value, str | torch.device) and torch.device(value).type != self.device.type:
                raise unsupported("moves its logits to another device")
        return found

    def type_as(self, other: Any) -> PendingLogits:
        """Return the logits with the dtype of another tensor."""
        return self._to(other.dtype)

    def _to(self, dtype: torch.dtype) -> PendingLogits:
        found = self._then(lambda logits: logits.to(dtype))
        found.dtype = dtype
        return found

    def _with(self, operation: Callable[[Any, Any], Any], other: Any) -> PendingLogits:
        if isinstance(other, Tensor):
            same_everywhere = other.numel() == (other.shape[-1] if other.ndim else 1)
            if self.classes_second or other.requires_grad or not same_everywhere:
                raise unsupported(
                    "combines its logits with a tensor that differs from position to position, or is trained"
                )
            other = other.detach().reshape(-1) if other.ndim else other.detach()
        elif isinstance(other, PendingLogits):
            raise unsupported("combines logits with each other")
        return self._then(lambda logits: operation(logits, other))

    def _then(self, operation: Operation) -> PendingLogits:
        found = replace(self, operations=(*self.operations, operation))
        found.dtype = self.dtype
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("is_sparse", "is_nested"):
            raise AttributeError(name)
        raise unsupported(f"uses {name!r} of its logits")

    # torch's functions

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the result of a function of torch, for those that models apply to logits."""
        own = _FUNCTIONS.get(function)
        if own is None or not isinstance(args[0] if args else None, cls):
            raise unsupported(f"calls {getattr(function, '__name__', function)} with its logits")
        return own(*args, **(kwargs or {}))

    def cross_entropy(
        self,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: Share = 0.0,
    ) -> Tensor:
        """Return torch's cross entropy of the logits, or the loss of another kind if one was chosen."""
        if weight is not None or size_average is not None or reduce is not None or reduction not in ("mean", "sum"):
            raise unsupported("weights classes in its cross entropy, or does not reduce it to a mean or a sum")
        if target.is_floating_point() or target.shape != self.hidden.shape[:-1]:
            raise unsupported(
                "computes its cross entropy with labels that are no indices of tokens, one for a position"
            )
        rules = CrossEntropyRules(self.operations, reduction, ignore_index, label_smoothing)
        found: Tensor = self.layer.cross_entropy(replace(self, operations=()), target, rules)
        return found

    def whole(self) -> Tensor:
        """Return all logits, without gradients."""
        kind = self.device.type
        with torch.no_grad(), torch.autocast(kind, dtype=self.half, enabled=self.half is not None):
            logits = self.layer.logits(self.hidden.detach(), {})
            for operation in self.operations:
                logits = operation(logits)
        logits = logits if self.half is None else logits.float()
        return logits.transpose(1, 2) if self.classes_second else logits


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, Tensor) and entry.dtype is torch.bool


def _kinds(entries: Sequence[Any]) -> list[Any]:
    """Return the entries of an index without tensors, which cannot be compared with others."""
    return [each for each in entries if not isinstance(each, Tensor)]


_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    functional.cross_entropy: PendingLogits.cross_entropy,
    torch.tanh: PendingLogits.tanh,
    torch.mul: PendingLogits.__mul__,
    torch.div: PendingLogits.__truediv__,
    torch.add: PendingLogits.__add__,
    torch.sub: PendingLogits.__sub__,
    torch.reshape: PendingLogits.view,
    torch.flatten: PendingLogits.flatten,
    torch.transpose: PendingLogits.transpose,
    torch.permute: PendingLogits.permute,
}
"""What stands in the place of functions of torch."""


def without_pending(outputs: Any) -> Any:
    """Return the outputs of a model with all logits that are pending computed."""
    if isinstance(outputs, PendingLogits):
        return outputs.whole()
    if isinstance(outputs, Mapping):
        if any(isinstance(each, PendingLogits) for each in outputs.values()):
            changed: Any = copy(outputs)
            for name, value in outputs.items():
                changed[name] = without_pending(value)
            return changed
        return outputs
    if isinstance(outputs, tuple | list) and any(isinstance(each, PendingLogits) for each in outputs):
        return type(outputs)(map(without_pending, outputs))
    return outputs
