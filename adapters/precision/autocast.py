"""PyTorch's automatic mixed precision: bf16 without, fp16 with dynamic loss scaling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Annotated, Any, ParamSpec, TypeVar, cast

import torch
from attrs import asdict, field, frozen
from torch import Tensor

from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.domain.errors import RunStateError
from hexloop.domain.json_documents import json_part, only_value
from hexloop.domain.ranges import Holding, Int32Count, PositiveCount
from hexloop.domain.schemas import KEY, structured
from hexloop.ports.learner import Optimizer
from hexloop.ports.state import Part

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


LARGEST = float(torch.finfo(torch.float32).max)
"""The largest loss scale."""

Scale = Annotated[float, Holding("a finite number above 0", lambda scale: 0 < scale <= LARGEST)]
Growth = Annotated[float, Holding("a finite number above 1", lambda factor: 1 < factor < math.inf)]
Backoff = Annotated[float, Holding("a number between 0 and 1", lambda factor: 0 < factor < 1)]


@frozen
class ScalerState:
    """The state of torch's GradScaler, as its `state_dict` names the fields."""

    scale: Scale
    growth_factor: Growth
    backoff_factor: Backoff
    growth_interval: PositiveCount
    growth_tracker: Int32Count = field(metadata={KEY: "_growth_tracker"})

    def to_dict(self) -> dict[str, Any]:
        """Return what GradScaler loads."""
        values = asdict(self)
        return {**values, "_growth_tracker": values.pop("growth_tracker")}


@frozen
class Bf16Precision(PlainPrecision):
    """Matrix products in bfloat16. Its range is that of fp32, so the loss is not scaled.

    Args:
        device_type: the kind of the device, such as "cuda".
    """

    _device_type: str
    name: str = field(default="bf16", init=False)

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass under autocast; the cache of cast weights lives for one call."""
        return _under_autocast(forward, self._device_type, torch.bfloat16)


class Fp16Precision:
    """Matrix products in float16, with a loss scale that halves on an overflow and doubles after 2,000 good steps.

    An update whose gradients overflowed is skipped. To know that, each step waits for the device once, to read the
    scale, and once more if the optimizer is not fused.

    Args:
        device_type: the kind of the device, such as "cuda".
        initial_scale: the first loss scale.
    """

    name = "fp16"

    def __init__(self, device_type: str, initial_scale: float = 2.0**16) -> None:
        self._device_type = device_type
        self._scaler = torch.amp.GradScaler(device_type, init_scale=initial_scale)
        self._last_scale: float | None = None
        self._is_scaled = self._is_stepping = False
        self._unscaled: list[Optimizer] = []

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass under autocast."""
        return _under_autocast(forward, self._device_type, torch.float16)

    def convert(self, model: object) -> None:
        """No-op: no layer is replaced."""

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the loss scale.

        Raises:
            RunStateError: between `unscale` and `step`.
        """
        if self._unscaled:
            raise RunStateError(
                "A backward pass would add scaled gradients to those that were unscaled already and not stepped. Clip "
                "and unscale only where accelerator.sync_gradients is true, and step the optimizer with "
                "accelerator.scaler.step before the next backward pass."
            )
        self._is_scaled = True
        return self._scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the loss scale and record whether all are finite."""
        if not any(optimizer is each for each in self._unscaled):
            self._scaler.unscale_(cast(torch.optim.Optimizer, optimizer))
            self._unscaled.append(optimizer)

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer if every gradient is finite, then adapt the scale.

        Return whether the optimizer stepped: the scale falls exactly when the step was skipped.
        """
        before = self._scaler.get_scale() if self._last_scale is None else self._last_scale
        self._is_stepping = True
        try:
            self._scaler.step(cast(torch.optim.Optimizer, optimizer))
        finally:
            self._is_stepping = False
        self._scaler.update()
        self._unscaled.clear()
        self._is_scaled = False
        self._last_scale = self._scaler.get_scale()
        return self._last_scale >= before

    def step_through(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer.step()` do what `step(optimizer)` does while gradients are scaled, in loops of user code.

        Args:
            optimizer: the optimizer that user code steps.
        """
        own_step = optimizer.step
        if getattr(own_step, "precision", None) is self:
            return

        @wraps(own_step)
        def step(closure: Callable[[], float] | None = None) -> float | None:
            if self._is_stepping or not self._is_scaled:
                return own_step() if closure is None else own_step(closure)
            if closure is not None:
                raise RunStateError(
                    "optimizer.step(closure) cannot be combined with fp16, whose gradients are scaled: a closure is "
                    "called within the step. Use bf16, or call optimizer.step() after accelerator.backward."
                )
            self.step(optimizer)
            return None

        vars(step)["precision"] = self
        vars(optimizer)["step"] = step

    def discard_update(self) -> None:
        """Forget gradients that were scaled or unscaled and not stepped."""
        if self._unscaled:
            state = self._scaler.state_dict()
            self._scaler = torch.amp.GradScaler(self._device_type)
            self._scaler.load_state_dict(state)
            self._unscaled.clear()
        self._is_scaled = False

    def export(self) -> Iterator[Part]:
        """Yield the loss scale and the number of good steps since it last changed."""
        yield json_part("scaler", self._scaler.state_dict())

    def load(self, parts: Iterable[Part]) -> None:
        """Restore an exported loss scale, and discard an update that was begun.

        Raises:
            ValueError: changing nothing, if it is not a state of a GradScaler.
        """
        value = only_value(parts, "scaler")
        if not value and not self._scaler.is_enabled():
            return
        saved = structured(value, ScalerState, "scaler")
        self.discard_update()
        self._scaler.load_state_dict(saved.to_dict())
        self._last_scale = None


def _under_autocast(
    forward: Callable[Arguments, Result], device_type: str, dtype: torch.dtype
) -> Callable[Arguments, Result]:
    @wraps(forward)
    def under_autocast(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with torch.autocast(device_type, dtype=dtype):
            return forward(*args, **kwargs)

    return under_autocast
