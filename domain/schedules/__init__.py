"""The learning rates of a run: pure functions of the optimizer step, or of a measured metric and a small state."""

from hexloop.domain.schedules.adaptive import Adaptive
from hexloop.domain.schedules.build import ADAPTIVE, SHAPES, Shape, build_adaptive, build_shape
from hexloop.domain.schedules.constant import Constant, ConstantWithWarmup
from hexloop.domain.schedules.cosine import Cosine, CosineWarmupWithMinLr, CosineWithMinLr, CosineWithRestarts
from hexloop.domain.schedules.greedy import Greedy, GreedyState
from hexloop.domain.schedules.inverse_sqrt import InverseSqrt
from hexloop.domain.schedules.plateau import PlateauState, ReduceLROnPlateau
from hexloop.domain.schedules.polynomial import Linear, Polynomial
from hexloop.domain.schedules.warmup_stable_decay import WarmupStableDecay

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
