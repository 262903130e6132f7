"""The greedy schedule as a torch-like scheduler."""

from __future__ import annotations

from typing import Any, SupportsFloat

from attrs import asdict
from torch.optim import Optimizer

from hexloop.domain.schedules import GreedyState, build_adaptive


class GreedyLR:
    """Raises the rates of an optimizer's groups while a metric gets better, and lowers them while it does not.

    options: those of `hexloop.domain.schedules.Greedy`. Raises ConfigurationError for options that it could not work
    with, and TypeError for what is no optimizer.
    """

    def __init__(self, optimizer: Optimizer, **options: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is no torch optimizer")
        self.optimizer = optimizer
        self.last_epoch = 0
        self._schedule = build_adaptive("greedy", options)
        self._last_lr = self._rates()
        self._state = self._schedule.start(self._last_lr)

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:
        """Take in one measurement; `epoch` is its number, the next one where it is None."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._state, rates = self._schedule(self._state, float(metrics), self._rates())
        self._put(rates)

    def get_last_lr(self) -> list[float]:
        """The rates after the last step, one for each parameter group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` goes on from: numbers, lists and dictionaries."""
        return {"last_epoch": self.last_epoch, "_last_lr": self._last_lr, "state": asdict(self._state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from another's state, with its rates in force."""
        self.last_epoch = state_dict["last_epoch"]
        kept: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in state_dict["state"].items()
        }
        self._state = GreedyState(**kept)
        self._put(state_dict["_last_lr"])

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _put(self, rates: Any) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = list(rates)
