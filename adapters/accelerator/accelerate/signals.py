"""What accelerate shows of a run: the gradient signals, and the loss scale."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.json_documents import json_part, only_value
from hexloop.ports.learner import Precision


def is_shown() -> bool:
    """Return whether accelerate's `GradientState` exists; accelerate is not imported for that."""
    module = sys.modules.get("accelerate.state")
    return module is not None and bool(module.GradientState._shared_state)


class SharedSignals(dict[str, Any]):
    """The gradient signals of a run, each of which accelerate's `GradientState` shows as well.

    The run reads its own: another run, or code that assigns to accelerate's, does not change them.
    """

    def __init__(self, signals: Mapping[str, Any]) -> None:
        from accelerate.state import GradientState

        super().__init__(signals)
        self._shared = GradientState._shared_state
        self._shared.update(signals)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if self._shared:  # accelerate may have reset its state
            self._shared[name] = value


@frozen
class RunScaler:
    """The loss scale of a run, with the methods of torch's `GradScaler` that accelerate and its users call.

    There is one scale, that of the run's precision. `step` also adapts the scale, so `update` is a no-op.
    """

    precision: Precision[Any]

    def scale(self, outputs: Any) -> Any:
        """Return a loss times the loss scale."""
        return self.precision.scale(outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer by the loss scale."""
        self.precision.unscale(optimizer)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Step an optimizer if its gradients are finite, then adapt the scale."""
        self.precision.step(optimizer)

    def update(self, new_scale: float | None = None) -> None:
        """No-op without a scale. Raises ConfigurationError for one: the run's precision adapts it."""
        if new_scale is not None:
            raise ConfigurationError(
                f"scaler.update({new_scale}) cannot set the loss scale, which the run's precision adapts; "
                "pass precision=Fp16Precision(device_type, initial_scale=...) to the Trainer."
            )

    def is_enabled(self) -> bool:
        """Return True: without a loss scale, an accelerator has no scaler."""
        return True

    def get_scale(self) -> float:
        """Return the loss scale."""
        return float(self.state_dict()["scale"])

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale and its history."""
        return dict(only_value(self.precision.export(), "scaler"))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a loss scale and its history."""
        self.precision.load([json_part("scaler", dict(state_dict))])

    def get_growth_factor(self) -> float:
        """Return the factor of the scale after good steps."""
        return float(self.state_dict()["growth_factor"])

    def get_backoff_factor(self) -> float:
        """Return the factor of the scale after an overflow."""
        return float(self.state_dict()["backoff_factor"])

    def get_growth_interval(self) -> int:
        """Return the number of good steps in a row after which the scale grows."""
        return int(self.state_dict()["growth_interval"])
