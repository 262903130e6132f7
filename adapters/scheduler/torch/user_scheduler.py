"""A scheduler of torch that the user passes: how a run drives it, and checks of its saved state.

torch replaces the attributes of a scheduler by whatever a state dict holds, methods too, and fails in the next step. So
a saved state is checked against that of the scheduler that is to load it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter, signature
from typing import Any

from attrs import define, field, frozen
from torch import Tensor
from torch.optim import Optimizer

from hexloop.adapters.scheduler.torch.run_schedules import rates_in_place, set_rate
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part, keyed
from hexloop.domain.ranges import MOST, Rate
from hexloop.domain.schemas import read_part, shown
from hexloop.domain.wording import first_listed
from hexloop.ports.state import Part

OWN_PACKAGE = "torch.optim."
"""The package whose schedulers have the same attributes from the start, with values of the same kinds."""

OF_SOME_VERSIONS = frozenset({"_get_lr_called_within_step", "_is_initial", "default_min_lr", "_scale_fn_custom"})
"""Attributes that only some versions of torch have, and that may be absent."""

OF_FUNCTIONS = frozenset({"lr_lambdas", "_scale_fn_custom"})
"""The attributes of the user's functions."""

POSITIVE = frozenset({"step_size", "T_0", "T_i", "T_mult", "T_max", "total_iters", "total_steps", "total_size"})
"""Lengths, by which torch divides."""

UNBOUNDED = frozenset({"best", "mode_worse"})
"""Values that are infinite before the first metric."""

INNER = "_schedulers"
"""The schedulers that another one consists of."""


@frozen
class SavedSchedule:
    """The exported state of a scheduler: its state dict, and the rates of the optimizer's groups."""

    state: Any
    rates: list[Rate]


@define
class TorchScheduler:
    """Implements the Scheduler port: calls `step()` after each update, or `step(metric)` after each evaluation.

    A scheduler follows a metric if its `step` requires an argument, like that of torch's ReduceLROnPlateau.
    """

    scheduler: Any
    optimizer: Optimizer
    metric: BestMetric
    _follows_metric: bool = field(init=False)
    _rates_of_step: tuple[float, ...] | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        parameters = signature(self.scheduler.step).parameters.values()
        self._follows_metric = any(each.default is each.empty and each.kind in positional for each in parameters)

    def start(self, updates: int) -> None:
        """No-op: torch schedulers set their first rates when they are created."""

    def advance(self, updates: int) -> None:
        """Step a scheduler that counts updates, unless `step_with_gradients` did."""
        stepped, self._rates_of_step = self._rates_of_step is not None, None
        if not (self._follows_metric or stepped):
            with rates_in_place(self.optimizer):
                self.scheduler.step()

    def step_with_gradients(self, taken: bool) -> None:
        """Step a scheduler that counts updates while the gradients of an update that was `taken` are there.

        A scheduler may read them, as transformers' AdafactorSchedule does. Until `advance`, `rates` returns the rates
        of that update.
        """
        if taken and not self._follows_metric:
            self._rates_of_step = self.rates()
            with rates_in_place(self.optimizer):
                self.scheduler.step()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Step a scheduler that follows a metric."""
        if self._follows_metric:
            with rates_in_place(self.optimizer):
                self.scheduler.step(self.metric.value(metrics))

    def rates(self) -> tuple[float, ...]:
        """Return the rates of the optimizer's groups."""
        if self._rates_of_step is not None:
            return self._rates_of_step
        return tuple(float(group["lr"]) for group in self.optimizer.param_groups)

    def export(self) -> Iterator[Part]:
        """Export the scheduler's state dict and the current rates. Raises TypeError if the state is not JSON.

        Rates that are tensors, as those of an Adafactor, are exported as numbers.
        """
        yield json_part("scheduler", {"state": with_numbers(self.scheduler.state_dict()), "rates": self.rates()})

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported state dict and the rates, which torch does not restore.

        What is saved of one group counts for all: earlier versions made one group where nothing is decayed. Raises
        ValueError, changing nothing, if the numbers of groups differ otherwise, or the state is not one of such a
        scheduler.
        """
        kept = read_part(parts, "scheduler", SavedSchedule)
        state, rates, groups = kept.state, kept.rates, self.optimizer.param_groups
        if len(rates) == 1 < len(groups):
            state, rates = _for_all_groups(state, self.scheduler, len(groups)), rates * len(groups)
        if len(rates) != len(groups):
            raise ValueError(f"scheduler.rates: it has {len(rates)} entries, and there are {len(groups)} groups")
        state = with_own_keys(self.scheduler.state_dict(), state)
        refuse_invalid_state(self.scheduler, state, "scheduler.state")
        self.scheduler.load_state_dict(state)
        self._rates_of_step = None
        for group, rate in zip(groups, rates, strict=True):
            set_rate(group, rate)


def _for_all_groups(state: Mapping[str, Any], scheduler: Any, groups: int) -> dict[str, Any]:
    """Return a state dict of a scheduler of one group, with its only value for each of `groups` groups."""
    found: dict[str, Any] = {}
    for name, value in state.items():
        own = vars(scheduler).get(name)
        found[name] = value
        if name == "_schedulers" and len(value) == len(own or ()):  # those that a SequentialLR consists of
            found[name] = [_for_all_groups(*pair, groups) for pair in zip(value, own or (), strict=True)]
        elif isinstance(value, list) and isinstance(own, list) and len(value) == 1 and len(own) == groups:
            found[name] = value * groups
    return found


# Checks of a saved state


def refuse_invalid_state(scheduler: Any, saved: Any, path: str) -> None:
    """Raise ValueError, with the first problems, for a state that a scheduler cannot have saved.

    One of torch has the same attributes, and values of the same kinds, whenever it is saved. That of any other class
    may have more attributes, of any kind, but none that replaces a method.
    """
    if problems := first_listed(_of_scheduler(scheduler, saved, path)):
        raise ValueError(problems)


def with_own_keys(own: Any, saved: Any) -> Any:
    """Return a saved state with the keys of its dictionaries as numbers where they are numbers here; JSON has texts."""
    if not isinstance(own, dict) or not isinstance(saved, dict):
        return saved
    if own and all(type(key) is int for key in own) and all(str(key).lstrip("-").isdecimal() for key in saved):
        return type(own)(keyed([(int(key), value) for key, value in saved.items()]))
    return {key: with_own_keys(own.get(key), value) for key, value in saved.items()}


def _of_scheduler(scheduler: Any, saved: Any, path: str) -> Iterator[str]:
    own = scheduler.state_dict()
    if not isinstance(own, dict):
        return
    if not isinstance(saved, dict):
        yield f"{path}: {shown(saved)} is not a JSON object"
        return
    strict = type(scheduler).__module__.startswith(OWN_PACKAGE)
    for key, value in saved.items():
        if key == INNER and isinstance(value, list) and isinstance(own.get(key), list):
            yield from _of_inner(getattr(scheduler, INNER, ()), value, f"{path}.{key}")
        elif key in own:
            yield from _of_value(own[key], value, f"{path}.{key}", key, strict)
        elif strict and not isinstance(value, bool):  # a flag of another version of torch
            yield f"{path}: {shown(key)} is not an entry of the state of {type(scheduler).__name__}"
        elif key == "optimizer" or _is_method(type(scheduler), str(key)):
            yield f"{path}: {shown(key)} would replace an attribute of {type(scheduler).__name__}"
    if strict:
        yield from (f"{path}.{key}: it is missing" for key in own if key not in saved and key not in OF_SOME_VERSIONS)
        step, total = saved.get("last_epoch"), saved.get("total_steps")
        if isinstance(step, int) and isinstance(total, int) and step > total:
            yield f"{path}.last_epoch: {shown(step)} is more than the {shown(total)} steps of the schedule"


def _is_method(kind: type[Any], name: str) -> bool:
    present = getattr(kind, name, None)
    return callable(present) or isinstance(present, property)


def _of_inner(schedulers: Any, saved: list[Any], path: str) -> Iterator[str]:
    if len(saved) != len(schedulers):
        yield f"{path}: it has {len(saved)} entries, not {len(schedulers)}"
        return
    for number, (scheduler, state) in enumerate(zip(schedulers, saved, strict=True)):
        yield from _of_scheduler(scheduler, state, f"{path}[{number}]")


def _of_value(own: Any, saved: Any, path: str, name: str, strict: bool) -> Iterator[str]:
    """Yield what is wrong with a value. strict: it is a scheduler's whose values always have the same kinds."""
    if not strict and (own is None or saved is None):
        return
    if isinstance(own, bool):
        if not isinstance(saved, bool):
            yield f"{path}: {shown(saved)} is not true or false"
    elif isinstance(own, int | float):
        yield from _of_number(own, saved, path, name, strict)
    elif isinstance(own, str):
        if not isinstance(saved, str) or (strict and saved != own):
            yield f"{path}: {shown(saved)} is not {shown(own) if strict else 'text'}"
    elif isinstance(own, list | tuple):
        yield from _of_list(own, saved, path, name, strict)
    elif isinstance(own, Mapping):
        yield from _of_mapping(own, saved, path, strict and name not in OF_FUNCTIONS)
    elif strict and saved is not None and not isinstance(saved, int | float | list):
        yield f"{path}: {shown(saved)} is not a number or null"


def _of_number(own: float, saved: Any, path: str, name: str, strict: bool) -> Iterator[str]:
    if isinstance(saved, bool) or not isinstance(saved, int | float):
        yield f"{path}: {shown(saved)} is not a number"
    elif isinstance(saved, int) and abs(saved) > MOST:
        yield f"{path}: {shown(saved)} is not between {-MOST} and {MOST}"
    elif not math.isfinite(saved) and (isinstance(own, int) or strict) and name not in UNBOUNDED:
        yield f"{path}: {saved} is not a finite number"
    elif strict and name in POSITIVE and saved <= 0:
        yield f"{path}: {saved} is not a number above 0"


def _of_list(own: Any, saved: Any, path: str, name: str, strict: bool) -> Iterator[str]:
    if not isinstance(saved, list | tuple):
        yield f"{path}: {shown(saved)} is not a list"
    elif strict and len(own) != len(saved):
        yield f"{path}: it has {len(saved)} entries, not {len(own)}"
    elif own and (strict or len({type(each) for each in own}) == 1):
        strict = strict and name not in OF_FUNCTIONS
        for number, value in enumerate(saved):
            yield from _of_value(own[min(number, len(own) - 1)], value, f"{path}[{number}]", name, strict)


def _of_mapping(own: Mapping[Any, Any], saved: Any, path: str, strict: bool) -> Iterator[str]:
    if not isinstance(saved, dict):
        yield f"{path}: {shown(saved)} is not a JSON object"
        return
    numbered = bool(own) and all(type(key) is int for key in own)
    if numbered and (wrong := [key for key in saved if type(key) is not int]):
        yield f"{path}: {shown(wrong[0])} is not a number"
    elif strict and not numbered and own.keys() != saved.keys():
        yield f"{path}: it has the entries {shown(sorted(map(str, saved)))}, not {shown(sorted(own))}"
    else:
        for key, value in saved.items():
            expected = next(iter(own.values())) if numbered else own.get(key)
            yield from _of_value(expected, value, f"{path}[{shown(key)}]", str(key), strict and not numbered)


def with_numbers(value: Any) -> Any:
    """Return a state with a number for each tensor of one element."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, dict):
        return {key: with_numbers(inner) for key, inner in value.items()}
    return type(value)(map(with_numbers, value)) if type(value) in (list, tuple) else value
