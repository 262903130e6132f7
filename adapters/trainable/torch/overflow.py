"""Watching a model for numbers that are not finite, module by module."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from hexloop.domain.errors import NotFiniteError

FRAMES = 21
"""How many frames are kept; the reference library's."""


@frozen
class Range:
    """The smallest and the largest absolute value of a tensor, by the name of what it is in its frame.

    A tensor with nan has nan for both; one without elements has none.
    """

    name: str
    smallest: float
    largest: float

    @property
    def finite(self) -> bool:
        """Whether every element is."""
        return math.isfinite(self.largest)

    def __str__(self) -> str:
        told = f"{self.smallest:9.2e} {self.largest:9.2e}  {self.name}"
        return told if self.finite else f"{told}  <-- not finite"


@frozen
class Frame:
    """The forward pass of one module: its weights, what went in, what came out."""

    module: str
    kind: str
    ranges: tuple[Range, ...]

    @property
    def finite(self) -> bool:
        """Whether everything in it is."""
        return all(each.finite for each in self.ranges)

    def __str__(self) -> str:
        title = f"{self.module or 'the model'} ({self.kind})"
        return "\n".join([title, *(f"  {each}" for each in self.ranges)])


@define
class OverflowWatch:
    """Ends a run at the first module whose weights, inputs or outputs are not all finite.

    frames: the last forward passes, one a module, the innermost first, as they end. Every one waits for the device.
    """

    frames: deque[Frame] = field(factory=lambda: deque(maxlen=FRAMES))
    _passes: int = field(default=0, init=False)

    def watch(self, model: nn.Module) -> Callable[[], None]:
        """Look at every forward pass of the model's modules; gives what ends that."""
        hooks = [
            module.register_forward_hook(self._looking(name, module is model), with_kwargs=True)
            for name, module in model.named_modules()
        ]

        def end() -> None:
            for hook in hooks:
                hook.remove()

        return end

    def _looking(self, name: str, outermost: bool) -> Callable[..., None]:
        def look(module: nn.Module, inputs: Any, keywords: Any, outputs: Any) -> None:
            frame = Frame(name, type(module).__name__, _ranges(module, inputs, keywords, outputs))
            self.frames.append(frame)
            if not frame.finite:
                raise NotFiniteError(self._report(frame))
            self._passes += outermost

        return look

    def _report(self, frame: Frame) -> str:
        where = ", ".join(each.name for each in frame.ranges if not each.finite)
        listed = "\n".join(map(str, self.frames))
        return (
            f"Numbers that are not finite in forward pass {self._passes} of the model, at {frame.module or 'the model'}"
            f" ({frame.kind}): {where}. The last {len(self.frames)} modules, each with the smallest and the largest "
            f"absolute value of its weights, inputs and outputs:\n{listed}\n"
            "Lower the learning rate, clip gradients, or compute in a format with a wider range where the values grow."
        )


def _ranges(module: nn.Module, *values: Any) -> tuple[Range, ...]:
    named: dict[str, Tensor] = dict(module.named_parameters(recurse=False))
    for title, value in zip(("input", "keyword", "output"), values, strict=True):
        named.update(_tensors(title, value))
    measured = {name: tensor.detach() for name, tensor in named.items() if tensor.numel()}
    if not measured:
        return ()
    ends = [torch.stack(torch.aminmax(tensor.float().abs())) for tensor in measured.values()]
    return tuple(Range(name, *each) for name, each in zip(measured, torch.stack(ends).tolist(), strict=True))


def _tensors(title: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in `value`, whatever it is nested in, by where it is."""
    if isinstance(value, Tensor):
        yield title, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _tensors(f"{title}.{name}", each)
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from _tensors(f"{title}[{index}]", each)
