"""The schedules that the training arguments name, as schedulers of torch, and how a run drives them.

Each is of the class that transformers uses, so that scripts may read it, change it, save it or step it themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, SupportsFloat

import torch
from attrs import asdict, define, evolve, field, frozen
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part
from hexloop.domain.ranges import Rate, Updates, Whole
from hexloop.domain.schedules import (
    CosineWithMinLr,
    InverseSqrt,
    Polynomial,
    Shape,
    WarmupStableDecay,
    build_adaptive,
)
from hexloop.domain.schedules.adaptive import GreedyState, PlateauState
from hexloop.domain.schemas import KEY, read_part, structured
from hexloop.ports.state import Part

POSITION = "position"
"""The name of the exported state of a LambdaLR that a script stepped or changed."""

MEMORY = "adaptive"
"""The name of the exported state of a schedule that follows a metric."""


@frozen
class SavedPosition:
    """How many steps a LambdaLR is ahead of the run."""

    ahead: Whole


@frozen
class SavedPlateau:
    """The rates and the state of a ReduceLROnPlateau, and the metrics that it has received."""

    rates: tuple[Rate, ...]
    state: PlateauState
    measured: Updates | None = None


@frozen
class SavedGreedyMemory:
    """The same of a GreedyLR."""

    rates: tuple[Rate, ...]
    state: GreedyState
    measured: Updates | None = None


@frozen
class SavedGreedy:
    """The state dict of a GreedyLR."""

    last_epoch: Updates
    rates: tuple[Rate, ...] = field(metadata={KEY: "_last_lr"})
    state: GreedyState


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


def lambda_of(shape: Shape, optimizer: Any) -> LambdaLR:
    """Return the schedule `shape` of an optimizer, at its first step, as a LambdaLR.

    Raises ConfigurationError if `optimizer` is not a torch optimizer.
    """
    _refuse_other(optimizer)
    scheduler = LambdaLR(optimizer, factor_of(shape))
    scheduler.base_lrs = [float(rate) for rate in scheduler.base_lrs]  # also of rates that are tensors
    return scheduler


@define
class LambdaScheduler:
    """Implements the Scheduler port with a LambdaLR. `advance` does what its `step()` does, at a fraction of the cost.

    Position, base rates and functions are the LambdaLR's own, read at each update, so what a script changes in it
    counts. If a script steps it as well, it stays ahead of the run by that number of steps.
    """

    scheduler: LambdaLR
    _updates: int = 0
    _ahead: int = 0

    def start(self, updates: int) -> None:
        """Set the rates of the update numbered `updates`, from 0."""
        self._updates = updates
        self._set(max(0, updates + self._ahead))  # a damaged checkpoint may put it before the first
        self.scheduler._step_count = self.scheduler.last_epoch + 1

    def advance(self, updates: int) -> None:
        """Set the rates of the next update, after `updates` updates."""
        self._updates = updates
        scheduler = self.scheduler
        if "step" in vars(scheduler):  # a script replaced it
            scheduler.step()
            return
        self._set(scheduler.last_epoch + 1)
        scheduler._step_count += 1

    def observe(self, metrics: Mapping[str, float]) -> None:
        """No-op: the rates only depend on the step."""

    def rates(self) -> tuple[float, ...]:
        """Return the rates that the LambdaLR set last."""
        return tuple(map(float, self.scheduler._last_lr))

    def join(self) -> None:
        """Let the groups follow the schedule that were added to the optimizer since. Their rates are their peaks."""
        scheduler = self.scheduler
        bases, functions = scheduler.base_lrs, scheduler.lr_lambdas
        for group in scheduler.optimizer.param_groups[len(bases) :]:
            base = float(group.setdefault("initial_lr", float(group["lr"])))
            rate = base * functions[0](max(0, scheduler.last_epoch))
            set_rate(group, rate)
            bases.append(base)
            functions.append(functions[0])
            scheduler._last_lr = [*scheduler._last_lr, rate]

    def follow(self, shape: Shape) -> None:
        """Use another schedule from the next update on."""
        self.scheduler.lr_lambdas = [factor_of(shape)] * len(self.scheduler.lr_lambdas)

    def export(self) -> Iterator[Part]:
        """Export how many steps the LambdaLR is ahead of the run; nothing if the number of updates determines all."""
        if ahead := self.scheduler.last_epoch - self._updates:
            yield json_part(POSITION, {"ahead": ahead})

    def load(self, parts: Iterable[Part]) -> None:
        """Load an export. State of other schedules is ignored: the number of updates determines the rates.

        Raises ValueError, changing nothing, if it is not valid.
        """
        found = [part for part in parts if part.name == POSITION]
        self._ahead = read_part(found, POSITION, SavedPosition).ahead if found else 0

    def _set(self, position: int) -> None:
        """Set the rates of the step `position`, and note them in the LambdaLR as its own step would."""
        scheduler = self.scheduler
        scheduler.last_epoch = position
        functions = scheduler.lr_lambdas
        first, rates = functions[0], []
        factor = first(position)
        groups = scheduler.optimizer.param_groups  # one that was added follows from `join` on
        for group, base, function in zip(groups, scheduler.base_lrs, functions, strict=False):
            own = factor if function is first else function(position)
            if type(group["lr"]) is float:
                group["lr"] = rate = base * own
            else:
                rate = _rounded(float(base), own, group["lr"])
                set_rate(group, rate)
            rates.append(rate)
        scheduler._last_lr = rates


# Schedules of a metric


class GreedyLR:
    """Increases the rates of an optimizer's groups while a metric improves, and decreases them while it does not.

    options: those of `hexloop.domain.schedules.Greedy`. state: the schedule's, which a checkpoint holds. Raises
    ConfigurationError for invalid options, and TypeError if `optimizer` is not an Optimizer.
    """

    def __init__(self, optimizer: Optimizer, **options: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not a torch optimizer")
        self.optimizer = optimizer
        self.last_epoch = 0
        self._schedule = build_adaptive("greedy", options)
        self._last_lr = self._rates()
        self.state = self._schedule.start(self._last_lr)

    def step(self, metrics: SupportsFloat, epoch: int | None = None) -> None:
        """Process a measurement. `epoch` is its number; if None, the next one."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self.state, rates = self._schedule(self.state, float(metrics), self._rates())
        self._set_rates(rates)

    def get_last_lr(self) -> list[float]:
        """Return the rates after the last step, one per parameter group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as numbers, lists and dictionaries."""
        return {"last_epoch": self.last_epoch, "_last_lr": self._last_lr, "state": asdict(self.state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, and set the rates in it. Raises ValueError, changing nothing, if it is not one."""
        saved = structured(dict(state_dict), SavedGreedy)
        if len(saved.rates) != len(self._last_lr):
            raise ValueError(f"_last_lr: it has {len(saved.rates)} entries, not {len(self._last_lr)}")
        self.last_epoch, self.state = saved.last_epoch, saved.state
        self._set_rates(saved.rates)

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def _set_rates(self, rates: Any) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)
        self._last_lr = list(rates)


def follower_of(name: str, options: Mapping[str, Any], optimizer: Any) -> Any:
    """Return the schedule `name` that follows a metric: torch's ReduceLROnPlateau, or a GreedyLR.

    GreedyLR is the class of transformers if that is installed and has it, else hexloop's own.
    Raises ConfigurationError for invalid options, or if `optimizer` is not a torch optimizer.
    """
    _refuse_other(optimizer)
    build_adaptive(name, options).start([float(group["lr"]) for group in optimizer.param_groups])  # refuses options
    kind: Any = ReduceLROnPlateau if name == "reduce_lr_on_plateau" else greedy_class()
    return kind(optimizer, **options)


def greedy_class() -> type[Any]:
    """Return transformers' GreedyLR, or hexloop's own where there is none. Their rates are the same."""
    try:
        from transformers import optimization
    except ImportError:
        return GreedyLR
    kind: type[Any] = getattr(optimization, "GreedyLR", GreedyLR)
    return kind


@define
class MetricScheduler:
    """Implements the Scheduler port with a ReduceLROnPlateau or a GreedyLR, stepped after each evaluation.

    Its state is exported as that of the domain's schedule, the same for every class of scheduler.
    """

    scheduler: Any
    metric: BestMetric

    def start(self, updates: int) -> None:
        """No-op: the rates are set when the scheduler is created, and when its state is loaded."""

    def advance(self, updates: int) -> None:
        """No-op: only metrics change the rates."""

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Step the scheduler. Raises ConfigurationError if the evaluation does not have its metric."""
        with rates_in_place(self.scheduler.optimizer):
            self.scheduler.step(self.metric.value(metrics))

    def rates(self) -> tuple[float, ...]:
        """Return the rates of the optimizer's groups, which a script may have set since the last metric."""
        return tuple(float(group["lr"]) for group in self.scheduler.optimizer.param_groups)

    def join(self) -> None:
        """Let the groups follow the schedule that were added to the optimizer since, from their rates on."""
        scheduler, rates = self.scheduler, self.rates()
        if hasattr(scheduler, "min_lrs"):
            scheduler.min_lrs = _longer(scheduler.min_lrs, len(rates))
        if isinstance(scheduler, GreedyLR):
            initial = scheduler.state.initial_rates
            scheduler.state = evolve(scheduler.state, initial_rates=(*initial, *rates[len(initial) :]))
        elif hasattr(scheduler, "_init_lrs"):
            scheduler._init_lrs = [*scheduler._init_lrs, *rates[len(scheduler._init_lrs) :]]
        scheduler._last_lr = list(rates)

    def export(self) -> Iterator[Part]:
        """Export the rates, the number of metrics, and the state of the schedule."""
        state = asdict(_state(self.scheduler))
        yield json_part(MEMORY, {"rates": self.rates(), "state": state, "measured": self.scheduler.last_epoch})

    def load(self, parts: Iterable[Part]) -> None:
        """Load exported rates and state.

        Raises ValueError, changing nothing, if they are those of another schedule or number of groups, or invalid.

        A rate that all groups share may be that of another number of groups: earlier versions made one group where
        nothing is decayed.
        """
        groups = len(self.scheduler.optimizer.param_groups)
        kept: SavedPlateau | SavedGreedyMemory
        if isinstance(self.scheduler, ReduceLROnPlateau):
            kept = read_part(parts, MEMORY, SavedPlateau)
            rates = _for_groups(kept.rates, groups)
            _put_plateau(self.scheduler, kept.state)
        else:
            kept = read_part(parts, MEMORY, SavedGreedyMemory)
            rates = _for_groups(kept.rates, groups)
            first = _for_groups(kept.state.initial_rates, groups)
            _put_greedy(self.scheduler, evolve(kept.state, initial_rates=first))
        if kept.measured is not None:
            self.scheduler.last_epoch = kept.measured
        for group, rate in zip(self.scheduler.optimizer.param_groups, rates, strict=True):
            set_rate(group, rate)
        self.scheduler._last_lr = list(rates)


def _rounded(base: float, factor: float, rate: Any) -> float:
    """Return a rate in the precision of the group's own, computed as by torch's LambdaLR if that is a tensor."""
    return float(torch.tensor(base, dtype=rate.dtype) * factor) if isinstance(rate, Tensor) else float(base * factor)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Write a learning rate into a parameter group in the form that it holds: a tensor is filled in place."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


@contextmanager
def rates_in_place(optimizer: Optimizer) -> Iterator[None]:
    """Let groups whose rates are tensors keep these, if a scheduler assigns numbers to them during the block."""
    held = [(group, group["lr"]) for group in optimizer.param_groups if isinstance(group.get("lr"), Tensor)]
    yield
    for group, tensor in held:
        if group["lr"] is not tensor:
            tensor.fill_(float(group["lr"]))
            group["lr"] = tensor


def _refuse_other(optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ConfigurationError(
            f"The optimizer is a {type(optimizer).__name__}, which is not a torch.optim.Optimizer, so no schedule can "
            "be made for it; derive its class from torch.optim.Optimizer, or pass optimizers=(optimizer, scheduler) "
            "with a scheduler of your own."
        )


def _longer(values: Sequence[float], length: int) -> list[float]:
    return [*values, *[values[-1]] * (length - len(values))]


def _for_groups(rates: Sequence[float], groups: int) -> tuple[float, ...]:
    if len(rates) != groups and len(set(rates)) == 1:
        return (rates[0],) * groups
    if len(rates) != groups:
        raise ValueError(f"The saved schedule has {len(rates)} rates, and this one {groups} parameter groups.")
    return tuple(rates)


def _state(scheduler: Any) -> PlateauState | GreedyState:
    """Return the state of a scheduler as that of the domain's schedule."""
    if isinstance(scheduler, GreedyLR):
        greedy: GreedyState = scheduler.state
        return greedy
    best = None if scheduler.best == _worst(scheduler) else float(scheduler.best)
    if isinstance(scheduler, ReduceLROnPlateau):
        return PlateauState(best, scheduler.num_bad_epochs, scheduler.cooldown_counter)
    average = scheduler._streaming_avg
    return GreedyState(
        initial_rates=tuple(map(float, scheduler._init_lrs)),
        reset_counter=scheduler.reset_start,
        best=best,
        num_good_epochs=scheduler.num_good_epochs,
        num_bad_epochs=scheduler.num_bad_epochs,
        cooldown_counter=scheduler.cooldown_counter,
        warmup_counter=scheduler.warmup_counter,
        window=() if average is None else tuple(average.values),
        window_sum=0.0 if average is None else average.sum,
    )


def _put_plateau(scheduler: Any, state: PlateauState) -> None:
    scheduler.best = _worst(scheduler) if state.best is None else state.best
    scheduler.num_bad_epochs, scheduler.cooldown_counter = state.num_bad_epochs, state.cooldown_counter


def _put_greedy(scheduler: Any, state: GreedyState) -> None:
    if isinstance(scheduler, GreedyLR):
        scheduler.state = state
        return
    scheduler._init_lrs, scheduler.reset_start = list(state.initial_rates), state.reset_counter
    scheduler.best = _worst(scheduler) if state.best is None else state.best
    for name in ("num_good_epochs", "num_bad_epochs", "cooldown_counter", "warmup_counter"):
        setattr(scheduler, name, getattr(state, name))
    if scheduler._streaming_avg is not None:
        scheduler._streaming_avg.values, scheduler._streaming_avg.sum = list(state.window), state.window_sum


def _worst(scheduler: Any) -> float:
    """Return what is the best metric before the first."""
    return float("inf") if scheduler.mode == "min" else float("-inf")
