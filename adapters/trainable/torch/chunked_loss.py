"""The cross entropy of a language model, computed over a few positions at a time from its last hidden states.

While a loss is computed, the output layer of the model returns `PendingLogits` in place of logits. Their cross entropy
makes the logits of a chunk of positions, and the gradients from them, before the logits of the next chunk exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor, nn
from torch.nn import functional

from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.adapters.trainable.torch.pending_logits import CrossEntropyRules, PendingLogits, unsupported
from hexloop.domain.errors import ConfigurationError

LOGITS_AT_ONCE = 2**24
"""About how many logits exist at the same time: 64 MiB in float32."""

LEAST_ROWS = 64
"""Products with fewer rows than this are slow."""


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
            "chunked_loss=True, or loss_type, needs the layer that computes the logits, but "
            f"{type(unwrapped(model)).__name__} has neither get_output_embeddings() nor lm_head; add one of them to "
            "the model, or leave the argument out."
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
        forward = _PendingForward(layer, self, own)
        layer.forward = forward
        try:
            yield
        finally:
            del layer.forward
            if own is not None:
                layer.forward = own
        if not forward.calls:
            raise ConfigurationError(
                f"chunked_loss=True, or loss_type, has no effect on {type(unwrapped(model)).__name__}: its forward "
                "does not call its output layer, but computes the loss in another way; leave the argument out."
            )

    def wrap(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return a loss function of a model, its inputs and so on, during which logits are pending."""

        def pending(model: Any, *values: Any, **named: Any) -> Any:
            with self.of(model):
                return compute(model, *values, **named)

        return pending


@define(eq=False)
class _PendingForward:
    """Stands in place of the forward of an output layer, and returns pending logits; implements `PendingLayer`.

    own: the forward that was assigned to the layer, if there is one. calls: how often it was called.
    """

    layer: nn.Module
    loss: ChunkedLoss
    own: Callable[..., Any] | None = None
    calls: int = 0
    _is_open: bool = False

    def __call__(self, hidden: Tensor, *values: Any, **named: Any) -> Any:
        if self._is_open:
            forward = self.own or partial(type(self.layer).forward, self.layer)
            return forward(hidden, *values, **named)
        if values or named:
            raise unsupported(f"passes further arguments to its output layer, {type(self.layer).__name__}")
        self.calls += 1
        kind = hidden.device.type
        half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        trained = {name: each for name, each in self.layer.named_parameters() if each.requires_grad}
        views = [each.view_as(each) for each in trained.values()]
        return PendingLogits(hidden, views, [*trained], self, self._classes(hidden), half)

    def logits(self, hidden: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """See `PendingLayer`."""
        self._is_open = True
        try:
            found: Tensor
            if weights:
                found = torch.func.functional_call(self.layer, dict(weights), (hidden,))
            else:
                found = self.layer(hidden)
            return found
        finally:
            self._is_open = False

    def cross_entropy(self, pending: PendingLogits, target: Tensor, rules: CrossEntropyRules) -> Tensor:
        """Return the cross entropy of the logits, or the loss of another kind if one was chosen."""
        wanted, hidden = self.loss, pending.hidden
        at_once = wanted.logits_at_once // pending.classes if wanted.logits_at_once else target.numel()
        loss = _PositionLoss(rules, wanted.kind)
        work = _Work(self, pending, loss, max(at_once, LEAST_ROWS), torch.is_grad_enabled(), wanted.counts)
        hidden, target = hidden.reshape(-1, hidden.shape[-1]), target.reshape(-1)
        found: Tensor = _ChunkedCrossEntropy.apply(work, hidden, target, *pending.weights)  # type: ignore[no-untyped-call]
        return found

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but a product with a matrix, and perhaps a sum with a vector."""
        layer = self.layer
        return (
            type(layer) is nn.Linear
            and type(layer.weight) in (nn.Parameter, Tensor)
            and self.own is None
            and not (layer._forward_hooks or layer._forward_pre_hooks)
        )

    def _classes(self, hidden: Tensor) -> int:
        size = getattr(self.layer, "out_features", None)
        if isinstance(size, int):
            return size
        with torch.no_grad():
            return self.logits(hidden.detach().reshape(-1, hidden.shape[-1])[:1], {}).shape[-1]


# The computation


@frozen(eq=False)
class _PositionLoss:
    """The loss of a few positions, from what the output layer returns.

    dft is the negative log-likelihood of each label times the label's probability, through which no gradient flows
    (Wu et al. 2025, "On the Generalization of SFT", section 3.3).
    """

    rules: CrossEntropyRules
    kind: str | None

    def logits(self, raw: Tensor) -> Tensor:
        """Return the logits as the model makes them, of shape (positions, classes), at least in float32."""
        for operation in self.rules.operations:
            raw = operation(raw)
        return raw.float() if raw.dtype in (torch.float16, torch.bfloat16) else raw

    def total(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the losses of the positions."""
        ignored = self.rules.ignore_index
        if self.kind == "dft":
            each = functional.cross_entropy(logits, target, ignore_index=ignored, reduction="none")
            return (each * torch.exp(-each.detach())).sum()
        smoothing = self.rules.label_smoothing
        return functional.cross_entropy(
            logits, target, ignore_index=ignored, reduction="sum", label_smoothing=smoothing
        )


@frozen(eq=False)
class _Work:
    """What is computed: the loss of pending logits of a layer, so many rows at once, with gradients or without."""

    layer: _PendingForward
    pending: PendingLogits
    loss: _PositionLoss
    rows: int
    with_gradients: bool
    counts: TokenCounts | None


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The loss of all positions. Its gradients are computed in the forward pass, while the logits of a chunk exist."""

    @staticmethod
    def forward(ctx: Any, work: _Work, hidden: Tensor, target: Tensor, *weights: Tensor) -> Tensor:
        valid = target != work.loss.rules.ignore_index
        kept = valid.nonzero().squeeze(1) if hidden.device.type == "cpu" else None  # other devices would have to wait
        if kept is not None and len(kept) == len(target):
            kept = None
        used, labels = (hidden, target) if kept is None else (hidden[kept], target[kept])
        needs = (*ctx.needs_input_grad[1:2], *ctx.needs_input_grad[3:])
        if not work.with_gradients:
            needs = (False,) * len(needs)
        chunks = (_PlainLayer if work.layer.is_plain else _AnyLayer)(work, used, weights, needs)
        total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
        correct = torch.zeros((), dtype=torch.int64, device=hidden.device)
        half = work.pending.half
        with torch.autocast(hidden.device.type, dtype=half, enabled=half is not None):
            for start in range(0, len(used), work.rows):
                part = slice(start, start + work.rows)
                logits, loss = chunks.take(part, labels[part], work.loss)
                total = total + loss if start else loss
                if work.counts is not None:
                    correct += (logits.argmax(-1) == labels[part]).sum()
                del logits
        count = valid.sum()
        if work.counts is not None:
            work.counts.labels, work.counts.correct = count, correct
        gradients = [chunks.of_hidden, *(chunks.of_weights.get(name) for name in work.pending.names)]
        if kept is not None and gradients[0] is not None:
            gradients[0] = torch.zeros_like(hidden).index_copy_(0, kept, gradients[0])
        ctx.is_mean = work.loss.rules.reduction == "mean"
        ctx.dtypes = [
            None if made is None else each.dtype for each, made in zip((hidden, *weights), gradients, strict=True)
        ]
        ctx.save_for_backward(count, *(each for each in gradients if each is not None))
        return total / count if ctx.is_mean else total

    @staticmethod
    def backward(ctx: Any, *of_loss: Any) -> Any:
        count, *saved = ctx.saved_tensors
        scale = of_loss[0] / count.clamp(min=1) if ctx.is_mean else of_loss[0]
        found = iter(saved)
        of_hidden, *of_weights = [None if dtype is None else (next(found) * scale).to(dtype) for dtype in ctx.dtypes]
        return None, of_hidden, None, *of_weights


class _Chunks:
    """The hidden states of all positions, of shape (positions, features), and the gradients so far.

    needs: whether gradients of the hidden states, and of each weight, are needed. Those of weights are summed in
    float32 at least.
    """

    def __init__(self, work: _Work, hidden: Tensor, weights: Sequence[Tensor], needs: Sequence[bool]) -> None:
        self.hidden, self.tracks = hidden, any(needs)
        self.of_hidden = torch.empty_like(hidden) if needs[0] else None
        self.of_weights = {
            name: torch.zeros_like(each, dtype=torch.promote_types(each.dtype, torch.float32))
            for name, each, needed in zip(work.pending.names, weights, needs[1:], strict=True)
            if needed
        }


class _PlainLayer(_Chunks):
    """The chunks of a layer that is a product with a matrix, to whose gradient products are added in place."""

    def __init__(self, work: _Work, hidden: Tensor, weights: Sequence[Tensor], needs: Sequence[bool]) -> None:
        super().__init__(work, hidden, weights, needs)
        layer: Any = work.layer.layer
        self._dtype = work.pending.half or layer.weight.dtype
        self._weight = layer.weight.detach().to(self._dtype)
        self._bias = None if layer.bias is None else layer.bias.detach().to(self._dtype)

    def take(self, part: slice, target: Tensor, loss: _PositionLoss) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss of some positions, and add up the gradients."""
        hidden = self.hidden[part].to(self._dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            raw = functional.linear(hidden, self._weight, self._bias)
            with torch.set_grad_enabled(self.tracks):
                logits = loss.logits(raw.requires_grad_(self.tracks))
                total = loss.total(logits, target)
            if self.tracks:
                self._add(part, hidden, *torch.autograd.grad(total, raw))
        return logits.detach(), total.detach()

    def _add(self, part: slice, hidden: Tensor, of_logits: Tensor) -> None:
        if self.of_hidden is not None:
            self.of_hidden[part] = of_logits @ self._weight
        of_weight, of_bias = self.of_weights.get("weight"), self.of_weights.get("bias")
        if of_weight is not None and of_weight.dtype is of_logits.dtype:
            of_weight.addmm_(of_logits.t(), hidden)
        elif of_weight is not None:
            of_weight.add_(of_logits.t() @ hidden)
        if of_bias is not None:
            of_bias.add_(of_logits.sum(0))


class _AnyLayer(_Chunks):
    """The chunks of any layer, such as one with adapters or with quantised weights, by torch's gradients of each."""

    def __init__(self, work: _Work, hidden: Tensor, weights: Sequence[Tensor], needs: Sequence[bool]) -> None:
        super().__init__(work, hidden.detach(), weights, needs)
        self._layer = work.layer
        named = zip(work.pending.names, weights, strict=True)
        self._weights = {name: each.detach().requires_grad_(name in self.of_weights) for name, each in named}

    def take(self, part: slice, target: Tensor, loss: _PositionLoss) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss of some positions, and add up the gradients."""
        hidden = self.hidden[part].requires_grad_(self.of_hidden is not None)
        with torch.set_grad_enabled(self.tracks):
            logits = loss.logits(self._layer.logits(hidden, self._weights))
            total = loss.total(logits, target)
        if self.tracks:
            trained = [self._weights[name] for name in self.of_weights]
            of_hidden, *of_weights = (
                torch.autograd.grad(total, [hidden, *trained], allow_unused=True)
                if (self.of_hidden is not None)
                else (None, *torch.autograd.grad(total, trained, allow_unused=True))
            )
            if self.of_hidden is not None:
                self.of_hidden[part] = 0.0 if of_hidden is None else of_hidden
            for name, gradient in zip(self.of_weights, of_weights, strict=True):
                if gradient is not None:
                    self.of_weights[name].add_(gradient)
        return logits.detach(), total.detach()
