"""A number that knows its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Accumulate = Callable[[Sequence[float]], None]
"""Adds derivatives, one for each parameter, to the gradients of the window."""


class Scalar:
    """A loss: its value, its derivative by each parameter, and where `backward` adds those."""

    __slots__ = ("_accumulate", "_derivatives", "value")

    def __init__(self, value: float, derivatives: Sequence[float], accumulate: Accumulate) -> None:
        self.value = value
        self._derivatives = derivatives
        self._accumulate = accumulate

    def backward(self) -> None:
        """Add the derivatives to the gradients of the window."""
        self._accumulate(self._derivatives)

    def __mul__(self, factor: float) -> Scalar:
        """The loss times a number, as loss scaling needs it."""
        return Scalar(self.value * factor, [slope * factor for slope in self._derivatives], self._accumulate)

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        return f"Scalar({self.value!r})"


def _refuse(derivatives: Sequence[float]) -> None:
    raise RuntimeError("A detached loss has no gradients; call backward on the loss itself.")


def detached(loss: Scalar) -> Scalar:
    """The bare value. Raises RuntimeError on `backward`."""
    return Scalar(loss.value, (), _refuse)
