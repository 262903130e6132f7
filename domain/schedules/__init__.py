"""Learning rate schedules: pure functions of the optimizer step, or of a metric and a small state."""

from hexloop.domain.schedules.adaptive import Adaptive, Greedy, GreedyState, PlateauState, ReduceLROnPlateau
from hexloop.domain.schedules.build import ADAPTIVE, SHAPES, Shape, build_adaptive, build_shape
from hexloop.domain.schedules.cosine import Cosine, CosineWarmupWithMinLr, CosineWithMinLr, CosineWithRestarts
from hexloop.domain.schedules.shapes import (
    Constant,
    ConstantWithWarmup,
    InverseSqrt,
    Linear,
    Polynomial,
    WarmupStableDecay,
)

__all__ = [
    "ADAPTIVE",
    "SHAPES",
    "Adaptive",
    "Constant",
    "ConstantWithWarmup",
    "Cosine",
    "CosineWarmupWithMinLr",
    "CosineWithMinLr",
    "CosineWithRestarts",
    "Greedy",
    "GreedyState",
    "InverseSqrt",
    "Linear",
    "PlateauState",
    "Polynomial",
    "ReduceLROnPlateau",
    "Shape",
    "WarmupStableDecay",
    "build_adaptive",
    "build_shape",
]
