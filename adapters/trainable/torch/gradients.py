"""The norm of all gradients together, and clipping to it, without waiting for the device."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout

SMALL = 1e-6
"""Added to the norm before dividing by it, as torch's own clip_grad_norm_ does."""


class Gradients:
    """The gradients of a set of parameters; of those that are frozen too, as a run may unfreeze them.

    Those that lie together (one device, dense, plain tensors) take three kernels to measure and two to clip; others go
    through torch's general functions. Which it is, is looked up again whenever their number changes.
    layout: where the parameters lie. Of those that are spread over processes, each measures and clips what it holds.
    """

    def __init__(self, parameters: Iterable[Parameter], layout: TorchLayout = WHOLE) -> None:
        self._layout = layout
        self._parameters = tuple(parameters)
        self._count = -1
        self._together = False

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradients in place so that their Euclidean norm together is at most `max_norm` (0: leave them).

        Gives back the norm before, as a scalar on the device.
        """
        layout = self._layout
        gradients = [grad for parameter in self._parameters if (grad := parameter.grad) is not None]
        if layout is not WHOLE:
            gradients = list(map(layout.local, gradients))
        if len(gradients) != self._count:
            self._count, self._together = len(gradients), _lie_together(gradients)
        if not self._together:
            return self._clip_apart(gradients, max_norm)
        norms = torch._foreach_norm(gradients)
        norm: Tensor = layout.norm(torch.linalg.vector_norm(torch.stack(norms)))
        if max_norm > 0:
            factor = (norm + SMALL).reciprocal_().mul_(max_norm).clamp_(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def _clip_apart(self, gradients: list[Tensor], max_norm: float) -> Tensor:
        norm = self._layout.norm(get_total_norm(gradients))
        if max_norm > 0:
            clip_grads_with_norm_(self._parameters, max_norm, norm)
        return norm

    def clear(self) -> None:
        """Forget every gradient."""
        for parameter in self._parameters:
            parameter.grad = None


def _lie_together(gradients: list[Tensor]) -> bool:
    if not gradients:
        return False
    first = gradients[0]
    return all(
        type(gradient) is Tensor and gradient.device == first.device and gradient.layout is torch.strided
        for gradient in gradients
    )
