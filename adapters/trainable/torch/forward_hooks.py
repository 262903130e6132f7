"""Forward hooks that training arguments add to a model: overflow detection, embedding noise and past outputs."""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor, nn

from hexloop.domain.errors import ConfigurationError, NotFiniteError
from hexloop.domain.wording import troubleshooting

# Overflow detection (debug="underflow_overflow")

FRAMES = 21
"""The number of forward passes that are kept for the report, as in transformers."""


@frozen
class Range:
    """The smallest and the largest absolute value of a tensor.

    name: the tensor's name in its frame. If the tensor contains nan, both values are nan. Empty tensors have no range.
    """

    name: str
    smallest: float
    largest: float

    @property
    def finite(self) -> bool:
        """Whether every element is finite."""
        return math.isfinite(self.largest)

    def __str__(self) -> str:
        line = f"{self.smallest:9.2e} {self.largest:9.2e}  {self.name}"
        return line if self.finite else f"{line}  <-- not finite"


@frozen
class Frame:
    """The forward pass of one module: the ranges of its weights, inputs and outputs."""

    module: str
    kind: str
    ranges: tuple[Range, ...]

    @property
    def finite(self) -> bool:
        """Whether every element is finite."""
        return all(each.finite for each in self.ranges)

    def __str__(self) -> str:
        title = f"{self.module or 'the model'} ({self.kind})"
        return "\n".join([title, *(f"  {each}" for each in self.ranges)])


@define
class OverflowWatch:
    """Stops a run with NotFiniteError at the first module with weights, inputs or outputs that are not finite.

    frames: the last forward passes, one per module, in the order in which they finish. Each waits for the device.
    """

    frames: deque[Frame] = field(factory=lambda: deque(maxlen=FRAMES))
    _passes: int = field(default=0, init=False)

    def watch(self, model: nn.Module) -> Callable[[], None]:
        """Check every forward pass of the model's modules. Returns a function that removes the hooks."""
        hooks = ExitStack()
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_hook(self._check(name, module is model), with_kwargs=True).remove)
        return hooks.close

    def _check(self, name: str, is_root: bool) -> Callable[..., None]:
        def check(module: nn.Module, inputs: Any, keywords: Any, outputs: Any) -> None:
            frame = Frame(name, type(module).__name__, _ranges(module, inputs, keywords, outputs))
            self.frames.append(frame)
            if not frame.finite:
                raise NotFiniteError(self._report(frame))
            self._passes += is_root

        return check

    def _report(self, frame: Frame) -> str:
        where = ", ".join(each.name for each in frame.ranges if not each.finite)
        listed = "\n".join(map(str, self.frames))
        return (
            f"Values that are not finite in forward pass {self._passes} of the model, at {frame.module or 'the model'} "
            f"({frame.kind}): {where}. The last {len(self.frames)} modules, each with the smallest and the largest "
            f"absolute value of its weights, inputs and outputs:\n{listed}\n"
            "Lower the learning rate, clip gradients, or use a number format with a wider range where the values grow. "
            f"For help, {troubleshooting('NaN loss')}."
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
    """Yield every tensor nested in `value`, with its path."""
    if isinstance(value, Tensor):
        yield title, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _tensors(f"{title}.{name}", each)
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from _tensors(f"{title}[{index}]", each)


# Noise on input embeddings (neftune_noise_alpha)


def add_embedding_noise(model: nn.Module, alpha: float) -> Callable[[], None]:
    """Add uniform noise to the output of the model's input embeddings, in training mode only (NEFTune).

    Returns a function that removes the hook. For embeddings of shape (batch, length, size) the noise is within
    alpha / sqrt(length * size) (Jain et al. 2023, arXiv 2310.05914, section 2). It comes from torch's generator of
    their device, so it is part of the run's state. Neither the weights nor the module's attributes change.
    Raises ConfigurationError if the model does not say which module its input embeddings are.
    """
    embeddings = _input_embeddings(model)

    def add(module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        if not module.training:
            return output
        bound = float(alpha / torch.sqrt(torch.tensor(output.shape[-2] * output.shape[-1])))
        return output + torch.empty_like(output).uniform_(-bound, bound)

    return embeddings.register_forward_hook(add).remove


def _input_embeddings(model: nn.Module) -> nn.Module:
    inner: Any = model
    if hasattr(inner, "get_base_model"):  # a PEFT wrapper
        inner = inner.get_base_model()
    find: Any = getattr(inner, "get_input_embeddings", None)
    found = find() if find is not None else None
    if not isinstance(found, nn.Module):
        raise ConfigurationError(
            f"You chose neftune_noise_alpha, but {type(inner).__name__} does not say which module its input "
            "embeddings are; define its method get_input_embeddings, or leave the argument out."
        )
    return found


# The model's memory of earlier batches (past_index)

KEYWORD = "mems"
"""The keyword argument of forward by which models take their memory."""


@define(eq=False)
class PastOutputs:
    """Passes one of the model's outputs to the next forward pass, as the keyword `mems` and without its graph.

    index: the position of that output; if the model returns a loss, the loss is at position 0.
    training: whether to use the forward passes of training or those of evaluation; each has its own memory.
    """

    index: int
    training: bool
    past: Any = field(default=None, init=False)

    def forget(self) -> None:
        """Pass nothing to the next forward pass."""
        self.past = None

    def attach(self, model: nn.Module) -> Callable[[], None]:
        """Start with the next forward pass of `model`. Returns a function that removes the hooks.

        Raises ConfigurationError if the model takes no memory; so does a forward pass that returns too few outputs.
        """
        taken = inspect.signature(model.forward).parameters.values()
        if not any(each.name == KEYWORD or each.kind is each.VAR_KEYWORD for each in taken):
            raise ConfigurationError(
                f"You chose past_index={self.index}, but {type(model).__name__} takes no memory; add a parameter "
                f"{KEYWORD} to its forward, or leave the argument out."
            )
        hooks = ExitStack()
        hooks.callback(model.register_forward_pre_hook(self._pass_on, with_kwargs=True).remove)
        hooks.callback(model.register_forward_hook(self._keep).remove)
        return hooks.close

    def _pass_on(self, model: nn.Module, inputs: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if model.training is self.training and self.past is not None:
            named = {**named, KEYWORD: self.past}
        return inputs, named

    def _keep(self, model: nn.Module, _inputs: Any, outputs: Any) -> None:
        if model.training is not self.training:
            return
        values = tuple(outputs.values()) if isinstance(outputs, Mapping) else outputs
        if not isinstance(values, tuple | list) or self.index >= len(values):
            count = len(values) if isinstance(values, tuple | list) else 1
            raise ConfigurationError(
                f"You chose past_index={self.index}, but {type(model).__name__} returns {count} outputs; choose "
                "the position of its memory among them, counted from 0, or leave the argument out."
            )
        self.past = _detached(values[self.index])


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    return type(value)(map(_detached, value)) if isinstance(value, tuple | list) else value
