"""A trial that is being run: what it is, what its evaluations are, and whether it continues; the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from attrs import define, field, frozen

from hexloop.domain.errors import (
    CheckpointError,
    CollectiveError,
    ConfigurationError,
    HexloopError,
    RunStateError,
    StorageError,
)
from hexloop.domain.ranks import run_on_rank0
from hexloop.domain.search.records import BEST, MAXIMIZE
from hexloop.domain.search.space import SpaceTrial
from hexloop.domain.wording import shown
from hexloop.ports.collectives import Collectives, Json
from hexloop.ports.search import TrialState

Decide = Callable[[int, Sequence[float], bool, bool], bool]
"""Records an evaluation, given its step, its values, whether the trial has diverged, and whether the backend is asked.

Returns whether the trial goes on.
"""


class ObjectiveError(ConfigurationError):
    """An objective that is not a number, or not one for each direction: it ends the search."""


@frozen
class Aim:
    """What trials are compared by. which: whether a trial counts with its best or its last evaluation."""

    directions: Sequence[str]
    which: str

    def values_of(self, objective: Any) -> tuple[float, ...]:
        """Return what `compute_objective` returned as numbers, one for each direction. Raises ObjectiveError."""
        several = isinstance(objective, list | tuple)
        numbers = list(objective) if several else [objective]
        found = [_number(each) for each in numbers]
        if None in found:
            raise ObjectiveError(
                f"compute_objective returned {shown(objective)}; let it return a number, or for several directions a "
                "list of numbers."
            )
        if len(found) != len(self.directions):
            raise ObjectiveError(
                f"compute_objective returned {len(found)} numbers, and the search has {len(self.directions)} "
                f"directions, {', '.join(self.directions)}; return one number for each."
            )
        return tuple(each for each in found if each is not None)

    def step_of_objective(self, reports: Mapping[int, Sequence[float]]) -> int | None:
        """Return the step of the evaluation that a trial counts with; None if there is none.

        With several objectives that is the last one, because none of them need be the best.
        """
        if not reports:
            return None
        if self.which != BEST or len(self.directions) > 1:
            return max(reports)
        sign = -1.0 if self.directions[0] == MAXIMIZE else 1.0
        return min(reports, key=lambda step: (sign * reports[step][0], step))


def _number(value: Any) -> float | None:
    """Return a number of Python, NumPy or a framework as a float; None if it is not one, or has no such float."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1:
        value = value.item()
    if not isinstance(value, Real) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


@define(eq=False)
class LiveTrial:
    """A trial that is being run.

    number, identifier: of the proposal. name: the path of its folder within that of the search. folder: that folder, an
    absolute path or a URL. label: the name that the user chose, if any. group: the name of the search for trackers.
    run: the name of its run. parameters: for its arguments. handle: what the user's functions receive as the trial.
    aim: what it is compared by. decide: see `Decide`. reports: the values of its evaluations, by step, those before a
    restart among them. state: how it ends, as far as that is decided; reason: why.
    """

    number: int
    identifier: str
    name: str
    folder: str
    label: str | None
    group: str
    run: str
    parameters: Mapping[str, Any]
    handle: Any
    aim: Aim
    decide: Decide
    reports: dict[int, Sequence[float]] = field(factory=dict)
    state: TrialState | None = None
    reason: str | None = None

    def observe(self, step: int, objective: Any, metrics: Mapping[str, Any]) -> bool:
        """Take up an evaluation of the run, and return whether the run continues.

        One that was taken up before a restart is not reported again. Raises ObjectiveError.
        """
        if step in self.reports or self.state is not None:
            return self.state is None
        return self._take_up(step, objective, metrics, asks=True)

    def conclude(self, step: int, objective: Any, metrics: Mapping[str, Any]) -> None:
        """Take up the evaluation after a run without any, which prunes nothing. Raises ObjectiveError."""
        self._take_up(step, objective, metrics, asks=False)

    def _take_up(self, step: int, objective: Any, metrics: Mapping[str, Any], asks: bool) -> bool:
        values = self.aim.values_of(objective)
        problem = diverged(values, metrics)
        self.reports[step] = values
        if self.decide(step, values, bool(problem), asks):
            return True
        if problem:
            self.state, self.reason = TrialState.FAILED, f"it diverged: {problem} at step {step}"
        else:
            self.state, self.reason = TrialState.PRUNED, f"pruned at step {step}"
        return False

    def take_up_end(self, pruned_at: int | None, diverged_at: int | None) -> None:
        """Take up what was decided before a restart: the step at which the trial was pruned, or had diverged."""
        if diverged_at is not None:
            self.state, self.reason = TrialState.FAILED, f"it diverged at step {diverged_at}"
        elif pruned_at is not None:
            self.state, self.reason = TrialState.PRUNED, f"pruned at step {pruned_at}"

    @property
    def step_of_objective(self) -> int | None:
        """The step of the evaluation that the trial counts with by now."""
        return self.aim.step_of_objective(self.reports)


def diverged(values: Sequence[float], metrics: Mapping[str, Any]) -> str:
    """Return what is not finite in an evaluation: an objective that is NaN, or the loss; "" if nothing is."""
    if any(map(math.isnan, values)):
        return "the objective is NaN"
    for name, value in metrics.items():
        if name.endswith("_loss") and isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}"
    return ""


ENDS_THE_SEARCH = (CollectiveError, ObjectiveError, StorageError, CheckpointError)
"""Errors that are not those of a trial: the next one would meet them too."""


def trial_on_rank0(collectives: Collectives, act: Callable[[], Any]) -> Any:
    """Call a function of a trial on rank 0, and return its value on every rank.

    An error that does not end the search is raised on all ranks as the same kind, so that they agree on how the trial
    ended: a ConfigurationError as such, any other as a RunStateError. One process alone raises what the function does.
    """
    if collectives.world_size == 1:
        return act()
    raised: list[Exception] = []

    def attempt() -> Json:
        try:
            return {"value": act()}
        except ENDS_THE_SEARCH:
            raise
        except Exception as error:
            raised.append(error)
            text = str(error) if isinstance(error, HexloopError) else f"{type(error).__name__}: {error}"
            return {"error": text, "is_configuration": isinstance(error, ConfigurationError)}

    found: Any = run_on_rank0(collectives, attempt)
    if "error" in found:
        kind = ConfigurationError if found["is_configuration"] else RunStateError
        raise kind(found["error"]) from next(iter(raised), None)
    return found["value"]


class SharedTrial(SpaceTrial):
    """The trial that the user's functions receive in a run of several processes.

    A value that is not drawn yet is drawn on rank 0 and sent to all ranks, which have to draw in the same order. Other
    attributes are those of the library's own trial, on rank 0.

    of: the library's own trial, None on other ranks. on_rank0: calls a function on rank 0, and returns what it returned
    on every rank.
    """

    def __init__(
        self,
        number: int,
        drawn: Mapping[str, Any],
        of: Any,
        on_rank0: Callable[[Callable[[], Any]], Any],
    ) -> None:
        super().__init__(number, lambda name, distribution: None, drawn)
        self._of, self._on_rank0 = of, on_rank0

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Return a number from `low` to `high`."""
        return float(self._shared(name, lambda: self._of.suggest_float(name, low, high, step=step, log=log)))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Return a whole number from `low` to `high`."""
        return int(self._shared(name, lambda: self._of.suggest_int(name, low, high, step=step, log=log)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """Return one of the choices, which are to be values that JSON can hold."""
        return self._shared(name, lambda: self._of.suggest_categorical(name, choices))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Set an attribute in `user_attrs`, also in those of the library's own trial."""
        super().set_user_attr(key, value)
        if self._of is not None:
            self._of.set_user_attr(key, value)

    def _shared(self, name: str, draw: Callable[[], Any]) -> Any:
        if name not in self._params:
            self._params[name] = self._on_rank0(draw)
        return self._params[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self._of is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._of, name)
