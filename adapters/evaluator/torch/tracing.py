"""A model as `torch.jit.trace` records it with the first batch of an evaluation."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

WARM_UP = 2
"""Calls in which torch.jit optimizes what was traced, as in transformers."""

LOGGER = logging.getLogger("hexloop")


def warn_of_no_trace(because: str) -> None:
    """Warn that an evaluation runs as without jit_mode_eval."""
    LOGGER.warning("jit_mode_eval has no effect: %s.", because)


class TracedModel(nn.Module):
    """Calls a model as it was traced with its first batch, as long as batches have the same shapes.

    A trace is of one shape: other batches, such as a smaller last one, go through the model itself. If the model cannot
    be traced, or the trace computes something else, all do, and a warning says why. The weights are those of the first
    call.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self._traced: Any = None
        self._shapes: Any = None

    def __getattr__(self, name: str) -> Any:
        """Return what the model has under a name."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output."""
        shapes = _shapes(args), _shapes(kwargs)
        if self._shapes is None:
            self._shapes = shapes
            return self._trace(args, kwargs)
        if self._traced is None or shapes != self._shapes:
            return self.module(*args, **kwargs)
        return self._traced(*args, **kwargs)

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace the model with these inputs, and return its own output."""
        expected = self.module(*args, **kwargs)
        given: dict[str, Any] = {"example_kwarg_inputs": kwargs} if kwargs else {"example_inputs": args}
        try:
            if args and kwargs:
                raise TypeError("it is called with inputs by position and by name")
            with torch.no_grad(), _without_cast_weights(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what other inputs would need, and that torch.compile is better
                recorded = torch.jit.trace(self.module, strict=False, check_trace=False, **given)  # type: ignore[no-untyped-call]
                traced = torch.jit.freeze(recorded)
                for _ in range(WARM_UP):
                    found = traced(*args, **kwargs)
            _refuse_others(found, expected)
        except Exception as error:  # torch.jit raises anything
            reason = str(error).strip().partition("\n")[0]
            warn_of_no_trace(f"the model cannot be traced ({reason or type(error).__name__})")
            return expected
        self._traced = traced
        return expected


@contextmanager
def _without_cast_weights() -> Iterator[None]:
    """Let autocast keep no weights: a trace would contain them as constants of another call."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


def _shapes(inputs: Any) -> Any:
    """Return the structure of inputs with the shape and dtype of each tensor."""
    if isinstance(inputs, Tensor):
        return inputs.shape, inputs.dtype
    if isinstance(inputs, dict):
        return {name: _shapes(value) for name, value in inputs.items()}
    return [_shapes(each) for each in inputs] if isinstance(inputs, list | tuple) else inputs


def _refuse_others(found: Any, expected: Any) -> None:
    """Raise ValueError unless a traced output has the tensors of the model's own, with nearly the same values."""
    ours, theirs = (_tensors(each) for each in (found, expected))
    if ours.keys() != theirs.keys():
        raise ValueError("the trace has other outputs than the model")
    for name, tensor in ours.items():
        tolerance = 2e-2 if tensor.element_size() == 2 else 1e-3
        if not torch.allclose(tensor.float(), theirs[name].float(), tolerance, tolerance, equal_nan=True):
            raise ValueError(f"the trace computes other values of {name}")


def _tensors(output: Any, path: str = "output") -> dict[str, Tensor]:
    """Return the tensors of an output, by their place in it."""
    if isinstance(output, Tensor):
        return {path: output}
    items = (
        output.items() if isinstance(output, dict) else enumerate(output) if isinstance(output, list | tuple) else ()
    )
    return {place: each for key, value in items for place, each in _tensors(value, f"{path}[{key!r}]").items()}
