"""The cross entropy of a language model, computed over a few positions at a time from its last hidden states.

The output layer of the model returns `PendingLogits` in place of logits. What models do to logits before the loss (shift,
reshape, scale, cap) is noted there, and done to a few positions at a time when cross entropy is computed. Anything else
raises an error, so that no model gets another loss than its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor, nn
from torch.nn import functional

from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.domain.errors import ConfigurationError

LOGITS_AT_ONCE = 2**24
"""About how many logits exist at the same time: 64 MiB in float32."""

LEAST_ROWS = 64
"""Products with fewer rows than this are slow."""

Operation = Callable[[Tensor], Tensor]


def output_layer(model: Any) -> nn.Module | None:
    """Return the layer that makes logits of hidden states; None if the model does not say which one it is."""
    inner = unwrapped(model)
    inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    found = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    found = getattr(inner, "lm_head", None) if found is None else found
    return found if isinstance(found, nn.Module) else None


def required_output_layer(model: Any) -> nn.Module:
    """Return the model's output layer. Raises ConfigurationError if there is none."""
    layer = output_layer(model)
    if layer is None:
        raise ConfigurationError(
            f"chunked_loss=True, or loss_type, needs the layer that computes the logits, but {type(unwrapped(model)).__name__} "
            "has neither get_output_embeddings() nor lm_head; add one of them to the model, or leave the argument out."
        )
    return layer


@define(eq=False)
class TokenCounts:
    """Of the labels that a loss counted: how many there are, and for how many the label was the most probable token."""

    labels: Tensor | None = None
    correct: Tensor | None = None


@frozen(eq=False)
class ChunkedLoss:
    """Makes the output layer of a model return pending logits while a loss is computed.

    kind: "dft" multiplies each label's negative log-likelihood by the label's probability; otherwise it is not changed.
    logits_at_once: about how many logits exist at the same time; 0 for all. counts: receives the counts of each loss.
    """

    kind: str | None = None
    logits_at_once: int = LOGITS_AT_ONCE
    counts: TokenCounts | None = None

    @contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Let the output layer return pending logits within the block. It does nothing within another such block.

        Raises ConfigurationError if the model has no output layer, or did not call it.
        """
        layer = required_output_layer(model)
        own = vars(layer).get("forward")
        if isinstance(own, _PendingForward):
            yield
            return
        forward = _PendingForward(layer, self)
        layer.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            del layer.forward
            if own is not None:
                layer.forward = own  # type: ignore[method-assign]
        if not forward.calls:
            raise ConfigurationError(
                f"chunked_loss=True, or loss_type, has no effect on {type(unwrapped(model)).__name__}: its forward does "
                "not call its output layer, but computes the loss in another way; leave the argument out."
            )

    def wrap(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loss function of a model, its inputs and so on, during which logits are pending."""

        def pending(model: Any, *values: Any, **named: Any) -> Any:
            with self.of(model):
                return compute(model, *values, **named)

        return pending


@define(eq=False)
class _PendingForward:
    """The forward of an output layer that returns pending logits. calls: how often it was called."""

    layer: nn.Module
    loss: ChunkedLoss
    calls: int = 0
    _is_open: bool = False

    def __call__(self, hidden: Tensor, *values: Any, **named: Any) -> Any:
        if self._is_open:
            return self._original()(hidden, *values, **named)
        if values or named:
            raise _unsupported(f"passes further arguments to its output layer, {type(self.layer).__name__}")
        self.calls += 1
        kind = hidden.device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        trained = {name: each for name, each in self.layer.named_parameters() if each.requires_grad}
        classes = self._classes(hidden)
        return PendingLogits(hidden, [each.view_as(each) for each in trained.values()], [*trained], self, classes, half)

    def logits(self, hidden: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of hidden states, computed with other tensors in place of some parameters."""
        self._is_open = True
        try:
            if not weights:
                found: Tensor = self.layer(hidden)
            else:
                found = torch.func.functional_call(self.layer, dict(weights), (hidden,))
        finally:
            self._is_open = False
        return found

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but a product with a matrix, and perhaps a sum with a vector."""
        layer = self.layer
        return (
            type(layer) is nn.Linear
            and type(layer.weight) in (nn.Parameter, Tensor)
            and not (layer._forward_hooks or layer._forward_pre_hooks)
        )

    def _original(self) -> Callable[..., Any]:
        return partial(type(self.layer).forward, self.layer)

    def _classes(self, hidden: Tensor) -> int:
        size = getattr(self.layer, "out_features", None)
        if isinstance(size, int):
            return size
        with torch.no_grad():
            return self.logits(hidden.detach().reshape(-1, hidden.shape[-1])[:1], {}).shape[-1]


def _unsupported(what: str) -> ConfigurationError:
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
    forward: Any
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
            raise _unsupported("reshapes its logits so that classes are mixed with positions")
        if sizes[-1] == -1:
            known = 1
            for size in sizes[:-1]:
                known *= size
            sizes[-1] = self.numel() // known if known > 0 else -1
        if sizes[-1] != self.classes:
            raise _unsupported("reshapes its logits so that classes are mixed with positions")
        return replace(self, hidden=self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> PendingLogits:
        """Return the logits with some dimensions of positions joined to one."""
        if self.classes_second or end_dim % self.ndim == self.ndim - 1:
            raise _unsupported("flattens its logits so that classes are mixed with positions")
        return replace(self, hidden=self.hidden.flatten(start_dim, end_dim))

    def transpose(self, first: int, second: int) -> PendingLogits:
        """Return the logits with the classes as their second dimension, or back."""
        dims = {first % self.ndim, second % self.ndim}
        if self.ndim == 3 and dims == {1, 2}:
            return replace(self, classes_second=not self.classes_second)
        if self.classes_second or self.ndim - 1 in dims:
            raise _unsupported("transposes its logits")
        return replace(self, hidden=self.hidden.transpose(first, second))

    def permute(self, *dims: Any) -> PendingLogits:
        """Return the logits with the classes as their second dimension, or back."""
        order = [*dims[0]] if len(dims) == 1 and not isinstance(dims[0], int) else [*dims]
        if self.ndim == 3 and [each % 3 for each in order] == [0, 2, 1]:
            return self.transpose(1, 2)
        raise _unsupported("permutes the dimensions of its logits")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> PendingLogits:
        """Return the logits of some positions, with all classes."""
        entries = index if isinstance(index, tuple) else (index,)
        taken = sum(each.ndim if _is_mask(each) else each is not None for each in entries if each is not Ellipsis)
        reaches_classes = taken == self.ndim or (bool(entries) and Ellipsis in _kinds(entries) and entries[-1] is not Ellipsis)
        if self.classes_second or (reaches_classes and not self._takes_all(entries[-1])):
            raise _unsupported("takes some of the classes out of its logits")
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
                raise _unsupported("moves its logits to another device")
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
                raise _unsupported("combines its logits with a tensor that differs from position to position, or is trained")
            other = other.detach().reshape(-1) if other.ndim else other.detach()
        elif isinstance(other, PendingLogits):
            raise _unsupported("combines logits with each other")
        return self._then(lambda logits: operation(logits, other))

    def _then(self, operation: Operation) -> PendingLogits:
        found = replace(self, operations=(*self.operations, operation))
        found.dtype = self.dtype
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("is_sparse", "is_nested"):
            raise AttributeError(name)
        raise _unsupported(f"uses {name!r} of its logits")

    # torch's functions

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the result of a function of torch, for those that models apply to logits."""
        own = _FUNCTIONS.get(function)
        if own is None or not isinstance(args[0] if args else None, cls):
            raise _unsupported(f"calls {getattr(function, '__name__', function)} with its logits")
        return own(*args, **(kwargs or {}))

    def cross_entropy(
        self,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """Return torch's cross entropy of the logits, or the loss of another kind if one was chosen."""
        if weight is not None or size_average is not None or reduce is not None or reduction not in ("mean", "sum"):
            raise _unsupported("weights classes in its cross entropy, or does not reduce it to a mean or a sum")
        if target.is_floating_point() or target.shape != self.hidden.shape[:-1]:
            raise _unsupported("computes its cross entropy with labels that are no indices of tokens, one for a position")
        wanted = self.forward.loss
        loss = _PositionLoss(self.operations, wanted.kind, ignore_index, label_smoothing)
        hidden, target = self.hidden.reshape(-1, self.hidden.shape[-1]), target.reshape(-1)
        at_once = wanted.logits_at_once // self.classes if wanted.logits_at_once else len(hidden)
        work = _Work(self, loss, reduction, max(at_once, LEAST_ROWS), torch.is_grad_enabled(), wanted.counts)
        found: Tensor = _ChunkedCrossEntropy.apply(work, hidden, target, *self.weights)  # type: ignore[no-untyped-call]
        return found

    def whole(self) -> Tensor:
        """Return all logits, without gradients."""
        kind = self.device.type
        with torch.no_grad(), torch.autocast(kind, dtype=self.half, enabled=self.half is not None):
            logits = self.forward.logits(self.hidden.detach(), {})
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


# The computation


@frozen(eq=False)
class _PositionLoss:
    """The loss of a few positions, from what the output layer returns.

    dft is the negative log-likelihood of each label times the label's probability, through which no gradient flows
    (Wu et al. 2025, "On the generalization of SFT", equation 9).
    """

    operations: tuple[Operation, ...]
    kind: str | None
    ignore_index: int
    label_smoothing: float

    def logits(self, raw: Tensor) -> Tensor:
        """Return the logits as the model makes them, of shape (positions, classes), at least in float32."""
        for operation in self.operations:
            raw = operation(raw)
        return raw.float() if raw.dtype in (torch.float16, torch.bfloat16) else raw

    def total(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the losses of the positions."""
        if self.kind == "dft":
            each = functional.cross_entropy(logits, target, ignore_index=self.ignore_index, reduction="none")
            return (each * torch.exp(-each.detach())).sum()
        return functional.cross_entropy(
            logits,
            target,
            ignore_index=self.ignore_index,
            reduction="sum",
            label_smoothing=self.label_smoothing,
        )


@frozen(eq=False)
class _Work:
    """What is computed: the logits, the loss, how it is reduced, how many rows at once, whether with gradients."""

    pending: PendingLogits
    loss: _PositionLoss
    reduction: str
    rows: int
    with_gradients: bool
    counts: TokenCounts | None


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The loss of all positions. Its gradients are computed in the forward pass, while the logits of a chunk exist."""

    @staticmethod
    def forward(ctx: Any, work: _Work, hidden: Tensor, target: Tensor, *weights: Tensor) -> Tensor:
        valid = target != work.loss.ignore_index
        kept = valid.nonzero().squeeze(1) if hidden.device.type == "cpu" else None  # other devices would have to wait
        if kept is not None and len(kept) == len(target):
            kept = None
        used, labels = (hidden, target) if kept is None else (hidden[kept], target[kept])
        needs = ctx.needs_input_grad[1:2] + ctx.needs_input_grad[3:] if work.with_gradients else ()
        pending = work.pending
        chunk_of = _PlainLayer if pending.forward.is_plain else _AnyLayer
        layer = chunk_of(pending, used, weights, needs)
        total = hidden.new_zeros((), dtype=torch.float64 if hidden.dtype is torch.float64 else torch.float32)
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        with torch.autocast(hidden.device.type, dtype=pending.half, enabled=pending.half is not None):
            for start in range(0, len(used), work.rows):
                part = slice(start, start + work.rows)
                logits, loss = layer.take(part, labels[part], work.loss)
                total += loss
                if work.counts is not None:
                    correct += (logits.argmax(-1) == labels[part]).sum()
        count = valid.sum()
        if work.counts is not None:
            work.counts.labels, work.counts.correct = count, correct
        gradients = layer.gradients()
        if kept is not None and gradients and gradients[0] is not None:
            gradients[0] = torch.zeros_like(hidden).index_copy_(0, kept, gradients[0])
        ctx.present = [each is not None for each in gradients]
        ctx.dtypes = [each.dtype for each in (hidden, *weights)]
        ctx.is_mean = work.reduction == "mean"
        ctx.save_for_backward(count, *(each for each in gradients if each is not None))
        return total / count if ctx.is_mean else total

    @staticmethod
    def backward(ctx: Any, *of_loss: Any) -> Any:
        count, *saved = ctx.saved_tensors
        scale = of_loss[0] / count.clamp(min=1) if ctx.is_mean else of_loss[0]
        found = iter(saved)
        gradients = [
            next(found).mul(scale).to(dtype) if present else None
            for present, dtype in zip(ctx.present, ctx.dtypes, strict=False)
        ]
        gradients += [None] * (len(ctx.dtypes) - len(gradients))
        return None, gradients[0], None, *gradients[1:]


class _PlainLayer:
    """A layer that is a product with a matrix: gradients of the matrix are added up in place."""

    def __init__(self, pending: PendingLogits, hidden: Tensor, weights: Sequence[Tensor], needs: Sequence[bool]) -> None:
        layer: Any = pending.forward.layer
        given = dict(zip(pending.names, weights, strict=True))
        dtype = pending.half or layer.weight.dtype
        self._hidden, self._dtype, self._names = hidden, dtype, pending.names
        self._weight = layer.weight.detach().to(dtype)
        self._bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self._tracks = any(needs)
        self._of_hidden = torch.empty_like(hidden) if needs and needs[0] else None
        self._of_weights = {
            name: torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
            for (name, each), needed in zip(given.items(), needs[1:], strict=False)
            if needed
        }

    def take(self, part: slice, target: Tensor, loss: _PositionLoss) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss of some positions, and add up the gradients."""
        hidden = self._hidden[part].to(self._dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            raw = functional.linear(hidden, self._weight, self._bias)
            if not self._tracks:
                logits = loss.logits(raw)
                return logits, loss.total(logits, target)
            raw.requires_grad_()
            with torch.enable_grad():
                logits = loss.logits(raw)
                total = loss.total(logits, target)
            (of_logits,) = torch.autograd.grad(total, raw)
            if self._of_hidden is not None:
                torch.mm(of_logits, self._weight, out=self._of_hidden[part]) if self._of_hidden.dtype is of_logits.dtype else self._of_hidden[part].copy_(of_logits @ self._weight)
            for name, gradient in self._of_weights.items():
                if name == "bias":
                    gradient += of_logits.sum(0)
                elif gradient.dtype is of_logits.dtype:
                    gradient.addmm_(of_logits.t(), hidden)
                else:
                    gradient += of_logits.t() @ hidden
        return logits.detach(), total.detach()

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients of the hidden states, and of the weights."""
        return [self._of_hidden, *(self._of_weights.get(name) for name in self._names)]


class _AnyLayer:
    """Any layer, such as one with adapters or with quantised weights, by torch's own gradients of each chunk."""

    def __init__(self, pending: PendingLogits, hidden: Tensor, weights: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self._forward, self._hidden, self._names = pending.forward, hidden.detach(), pending.names
        self._tracks = any(needs)
        self._needs = [*needs] or [False] * (1 + len(weights))
        self._weights = {
            name: each.detach().requires_grad_(needed)
            for name, each, needed in zip(pending.names, weights, self._needs[1:], strict=True)
        }
        self._of_hidden = torch.empty_like(hidden) if self._needs[0] else None
        self._of_weights = {
            name: torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
            for name, each in self._weights.items()
            if each.requires_grad
        }

    def take(self, part: slice, target: Tensor, loss: _PositionLoss) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss of some positions, and add up the gradients."""
        hidden = self._hidden[part].requires_grad_(self._needs[0])
        with torch.set_grad_enabled(self._tracks):
            logits = loss.logits(self._forward.logits(hidden, self._weights))
            total = loss.total(logits, target)
        if self._tracks:
            trained = [self._weights[name] for name in self._of_weights]
            sources = [hidden, *trained] if self._of_hidden is not None else trained
            found = [*torch.autograd.grad(total, sources, allow_unused=True)]
            if self._of_hidden is not None:
                self._of_hidden[part] = found.pop(0)
            for gradient, each in zip(self._of_weights.values(), found, strict=True):
                if each is not None:
                    gradient += each
        return logits.detach(), total.detach()

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients of the hidden states, and of the weights."""
        return [self._of_hidden, *(self._of_weights.get(name) for name in self._names)]
