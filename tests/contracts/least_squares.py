"""A small least-squares problem for the contract suites."""

from __future__ import annotations

from hexloop.adapters.trainable.least_squares import LeastSquares, Row, least_squares

ROWS: list[Row] = [((x / 4,), x / 2 + 1) for x in range(-4, 5)]
"""Nine rows of y = 2 x + 1."""

PLANE: list[Row] = [((x / 4, y / 8), x / 2 - y / 8 + 1) for x in range(-2, 3) for y in range(3)]
"""Fifteen rows of z = 2 x - y + 1."""

WINDOW = [ROWS[:2], ROWS[2:5], ROWS[5:]]


def small_trainable(learning_rate: float = 0.05) -> LeastSquares:
    """Return a model of one feature before its first step."""
    return least_squares(1, learning_rate=learning_rate)
