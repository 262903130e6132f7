"""The search space: what a parameter may be, a trial that draws from it, and a space that is written as data.

`SpaceTrial` has the methods of optuna's trial with which a search space is usually written, so that the same function
works with every backend that draws by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import did_you_mean, shown

Value: TypeAlias = "bool | int | float | str | None"


@frozen
class Floats:
    """Numbers from `low` to `high`, both included. log: uniform in the logarithm. step: only low + k * step."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __attrs_post_init__(self) -> None:
        _refuse_range(self.low, self.high, self.log, self.step)

    @property
    def values(self) -> Sequence[float] | None:
        """All of them, ascending; None if there is no step."""
        if self.step is None:
            return [self.low] if self.low == self.high else None
        return [self.low + number * self.step for number in range(_steps(self.low, self.high, self.step) + 1)]

    def at(self, share: float) -> float:
        """Return the number at a share of the range, from 0 up to but without 1."""
        values = self.values
        if values is not None:
            return values[min(int(share * len(values)), len(values) - 1)]
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return min(self.high, max(self.low, math.exp(low + share * (high - low))))
        return min(self.high, self.low + share * (self.high - self.low))


@frozen
class Integers:
    """Whole numbers from `low` to `high`, both included. log: uniform in the logarithm. step: only low + k * step."""

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __attrs_post_init__(self) -> None:
        _refuse_range(self.low, self.high, self.log, None if self.log and self.step == 1 else self.step)

    @property
    def values(self) -> Sequence[int]:
        """All of them, ascending."""
        return range(self.low, self.high + 1, self.step)

    def at(self, share: float) -> int:
        """Return the number at a share of the range, from 0 up to but without 1."""
        if not self.log:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
        return min(self.high, max(self.low, round(math.exp(low + share * (high - low)))))


@frozen
class Choices:
    """One of some values."""

    values: tuple[Any, ...]

    def __attrs_post_init__(self) -> None:
        if not self.values:
            raise ValueError("there is no value to choose")

    def at(self, share: float) -> Any:
        """Return the value at a share of the list, from 0 up to but without 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


Distribution: TypeAlias = "Floats | Integers | Choices"

Draw: TypeAlias = Callable[[str, Distribution], Any]
"""Draws a value for a name."""


def _refuse_range(low: float, high: float, log: bool, step: float | None) -> None:
    """Raise ValueError for a range that cannot be drawn from."""
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ValueError(f"low={low} and high={high} are not a range: low must be at most high, and both finite")
    if log and low <= 0:
        raise ValueError(f"low={low} has no logarithm; a range with log=True starts above 0")
    if log and step is not None:
        raise ValueError(f"step={step} cannot be combined with log=True")
    if step is not None and not (step > 0 and math.isfinite(step)):
        raise ValueError(f"step={step} must be greater than 0")


def _steps(low: float, high: float, step: float) -> int:
    return int((high - low) / step + 1e-9)


class SpaceTrial:
    """A trial that the functions of a search receive, with the methods of optuna's trial that a search space uses.

    number: from 0. params: what was drawn so far, by name. A name that is drawn again has the same value. draw: draws
    what is not there yet. user_attrs: what `set_user_attr` has set.
    """

    def __init__(self, number: int, draw: Draw, params: Mapping[str, Any] | None = None) -> None:
        self.number = number
        self.user_attrs: dict[str, Any] = {}
        self._draw = draw
        self._params = dict(params or {})

    @property
    def params(self) -> dict[str, Any]:
        """What was drawn so far, by name."""
        return dict(self._params)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number from `low` to `high`."""
        return float(self._suggested(name, lambda: Floats(low, high, log, step)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return a whole number from `low` to `high`."""
        return int(self._suggested(name, lambda: Integers(low, high, log, step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of the choices."""
        return self._suggested(name, lambda: Choices(tuple(choices)))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Set an attribute in `user_attrs`."""
        self.user_attrs[key] = value

    def _suggested(self, name: str, distribution: Callable[[], Distribution]) -> Any:
        if name not in self._params:
            try:
                found = distribution()
            except (TypeError, ValueError) as error:
                raise ConfigurationError(f"The search space has {name!r} wrong: {error}.") from error
            self._params[name] = self._draw(name, found)
        return self._params[name]


def parameters_of(space: Callable[[Any], Any], trial: Any) -> Mapping[str, Any]:
    """Return what a search space returns for a trial. Raises ConfigurationError if that is not a mapping by name."""
    parameters = space(trial)
    if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
        raise ConfigurationError(
            f"hp_space returned {shown(parameters)}; let it return a dictionary from the names of arguments to values."
        )
    return dict(parameters)


# A space that is written as data, such as that of a recipe

_OPTIONS = ("low", "high", "log", "step")


def declared(space: Mapping[str, Any]) -> dict[str, Distribution]:
    """Return the distributions of a space that is written as data.

    Each name has a list of choices, or a mapping with `low` and `high` and, optionally, `log` and `step`. Both ends
    whole numbers mean whole numbers. Raises ConfigurationError with every problem.
    """
    found, problems = dict[str, Distribution](), list[str]()
    for name, entry in space.items():
        try:
            found[str(name)] = _declared(entry)
        except (TypeError, ValueError) as error:
            problems.append(f"The search space has {str(name)!r} wrong: {error}.")
    if problems:
        raise ConfigurationError(problems)
    return found


def _declared(entry: Any) -> Distribution:
    if isinstance(entry, list | tuple):
        return Choices(tuple(entry))
    if not isinstance(entry, Mapping):
        raise ValueError(f"{shown(entry)} is neither a list of values nor a mapping with low and high")
    for option in entry:
        if option not in _OPTIONS:
            remedy = did_you_mean(str(option), _OPTIONS, f"the options are {', '.join(_OPTIONS)}")
            raise ValueError(f"it has the option {option!r}, which does not exist; {remedy}")
    if not {"low", "high"} <= entry.keys():
        raise ValueError("it needs both low and high")
    low: Any
    high: Any
    low, high, log, step = (entry.get(option) for option in _OPTIONS)
    numbers = [each for each in (low, high, step) if each is not None]
    if not all(type(each) in (int, float) for each in numbers) or type(log) not in (bool, type(None)):
        raise ValueError("low, high and step are numbers, and log is true or false")
    if all(type(each) is int for each in numbers):
        return Integers(low, high, bool(log), 1 if step is None else step)
    return Floats(float(low), float(high), bool(log), None if step is None else float(step))


def space_function(space: Mapping[str, Distribution]) -> Callable[[Any], dict[str, Any]]:
    """Return the function that draws a whole space from a trial of optuna, or a `SpaceTrial`."""

    def draw(trial: Any) -> dict[str, Any]:
        return {name: _drawn(trial, name, each) for name, each in space.items()}

    return draw


def _drawn(trial: Any, name: str, distribution: Distribution) -> Any:
    if isinstance(distribution, Choices):
        return trial.suggest_categorical(name, list(distribution.values))
    options = {"log": distribution.log, "step": distribution.step}
    if isinstance(distribution, Integers):
        return trial.suggest_int(name, distribution.low, distribution.high, **options)
    return trial.suggest_float(name, distribution.low, distribution.high, **options)
