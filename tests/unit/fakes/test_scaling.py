"""Simulated loss scaling, in a whole learner."""

from __future__ import annotations

import math

from hexloop.adapters.trainable.least_squares.trainable import Row
from hexloop.domain.loop import StandardLearner
from hexloop.testing import SimulatedScaling, SingleProcess, least_squares

ROWS: list[Row] = [((1.0,), 3.0), ((2.0,), 5.0)]


def test_an_update_that_overflows_is_left_out() -> None:
    """Weights and velocities stay what they were, the scale is halved, and the next update is taken."""
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


def test_a_scale_beyond_the_range_of_floats_overflows_by_itself() -> None:
    """Where the scaled gradients are infinite the update is left out, without any plan."""
    precision = SimulatedScaling(initial_scale=2.0**1023)
    learner = StandardLearner(least_squares(), precision, SingleProcess())

    learner.micro_step(ROWS, 2, True)

    assert learner.update(0.0)[1] is False
    assert precision.loss_scale == 2.0**1022


def test_the_scale_grows_after_enough_good_updates_in_a_row() -> None:
    """An overflow starts the count again."""
    precision = SimulatedScaling(overflows={3}, initial_scale=4.0, growth_interval=2)
    learner = StandardLearner(least_squares(), precision, SingleProcess())

    scales = []
    for _ in range(5):
        learner.micro_step(ROWS, 2, True)
        learner.update(0.0)
        scales.append(precision.loss_scale)

    assert scales == [4.0, 8.0, 4.0, 4.0, 8.0]


def test_scaling_changes_no_weight() -> None:
    """A scale that is a power of two trains bit for bit as no scale does."""
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
