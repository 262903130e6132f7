"""The function of a LambdaLR: one of the domain's schedules, with the keywords that transformers' functions carry."""

from __future__ import annotations

from functools import partial
from typing import Any

from attrs import asdict, evolve

from hexloop.domain.schedules import Shape
from hexloop.domain.schedules.shapes import CosineWithMinLr, InverseSqrt, Polynomial, WarmupStableDecay


def factor_of(shape: Shape) -> partial[float]:
    """Return the factor of the base rate by the step, as a partial.

    Programs read its `keywords`, such as `num_training_steps`, or call its `func` with others. It has no attributes,
    because torch saves those of the callable in the scheduler's state dict.
    """
    keywords = _keywords_of(shape)
    return partial(_Factor(shape, keywords), **keywords)


class _Factor:
    """Calls a schedule, which is made again if it is called with other keywords."""

    def __init__(self, shape: Shape, keywords: dict[str, Any]) -> None:
        self._shape, self._keywords = shape, keywords

    def __call__(self, current_step: int, **keywords: Any) -> float:
        """Return the factor of the base rate at an update, from 0."""
        if keywords != self._keywords:
            self._shape, self._keywords = _with(self._shape, keywords), keywords
        return self._shape(current_step)

    def __repr__(self) -> str:
        return type(self._shape).__name__


def _keywords_of(shape: Any) -> dict[str, Any]:
    """Return the options of a schedule by transformers' names; lengths and rates that it computes as numbers."""
    options = asdict(shape)
    if isinstance(shape, Polynomial):
        options["lr_init"] = options.pop("base_rate")
    elif isinstance(shape, InverseSqrt):
        options["timescale"] = shape.timescale or shape.num_warmup_steps or 10_000
    elif isinstance(shape, CosineWithMinLr):
        base_rate, lowest = options.pop("base_rate"), options.pop("min_lr")
        if lowest is not None:
            options["min_lr_rate"] = lowest / base_rate
    elif isinstance(shape, WarmupStableDecay):
        total = options.pop("num_training_steps")
        if options["num_stable_steps"] is None:
            options["num_stable_steps"] = total - shape.num_warmup_steps - shape.num_decay_steps
    return options


def _with(shape: Any, keywords: dict[str, Any]) -> Any:
    """Return a schedule with other options, by transformers' names."""
    options = {"base_rate" if name == "lr_init" else name: value for name, value in keywords.items()}
    if isinstance(shape, CosineWithMinLr):
        options["min_lr"] = None
    return evolve(shape, **options)
