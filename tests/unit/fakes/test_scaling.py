"""Simulated loss scaling in a complete learner."""

from __future__ import annotations

import math

from hexloop.adapters.trainable.least_squares import Row
from hexloop.domain.loop import StandardLearner
from hexloop.testing import SimulatedScaling, SingleProcess, least_squares

ROWS: list[Row] = [((1.0,), 3.0), ((2.0,), 5.0)]


def test_an_overflowing_update_is_skipped() -> None:
    """Weights and velocities are unchanged, the scale is halved, and the next update is made."""
    trainable = least_squares()
    precision = SimulatedScaling(overflows={2}, initial_scale=8.0)
    learner = StandardLearner(trainable, precision, SingleProcess())

    seen = []
    for _ in range(3):
        learner.micro_step(ROWS, 2, True)
        norm, taken = learner.update(1.0)
        assert norm is not None
        seen.append((taken, math.isfinite(norm), precision.loss_scale, list(trainable.model.parameters)))

    assert [(taken, finite, scale) for taken, finite, scale, _ in seen] == [
        (True, True, 8.0),
        (False, False, 4.0),
        (True, True, 4.0),
    ]
    assert seen[0][3] == seen[1][3] != seen[2][3]


def test_a_scale_beyond_the_range_of_floats_overflows() -> None:
    """If the scaled gradients are infinite the update is skipped, without a plan."""
    precision = SimulatedScaling(initial_scale=2.0**1023)
    learner = StandardLearner(least_squares(), precision, SingleProcess())

    learner.micro_step(ROWS, 2, True)

    assert learner.update(0.0)[1] is False
    assert precision.loss_scale == 2.0**1022


def test_the_scale_grows_after_consecutive_good_updates() -> None:
    """An overflow resets the count."""
    precision = SimulatedScaling(overflows={3}, initial_scale=4.0, growth_interval=2)
    learner = StandardLearner(least_squares(), precision, SingleProcess())

    scales = []
    for _ in range(5):
        learner.micro_step(ROWS, 2, True)
        learner.update(0.0)
        scales.append(precision.loss_scale)

    assert scales == [4.0, 8.0, 4.0, 4.0, 8.0]


def test_a_power_of_two_scale_changes_no_weight() -> None:
    """Training with a scale that is a power of two is bit-identical to training without one."""
    scaled, plain = least_squares(), least_squares()
    learner = StandardLearner(scaled, SimulatedScaling(growth_interval=3), SingleProcess())
    for _ in range(10):
        learner.micro_step(ROWS, 2, True)
        learner.update(1.0)
        plain.loss(ROWS, 2).backward()
        plain.clip(1.0)
        plain.optimizer.step()
        plain.clear_gradients()

    assert scaled.model.parameters == plain.model.parameters
