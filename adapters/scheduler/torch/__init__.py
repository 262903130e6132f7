"""Schedulers of torch: the adapter for one that the user passes, and those with transformers' names and signatures.

The latter are for training loops written by hand. Each wraps one of the domain's schedules: those of the step as a
LambdaLR, those of a metric as an object whose `step` takes the metric. Rates among the options (lr_end, min_lr) are
relative to the optimizer's default rate, so that every parameter group is scaled by the same factor. `last_epoch` is
the step to resume from, -1 for a new run. All raise ConfigurationError for invalid options.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter, signature
from typing import Any, SupportsFloat

from attrs import asdict, define, field, frozen
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from hexloop.adapters.scheduler.torch.factors import factor_of
from hexloop.adapters.scheduler.torch.saved_states import refuse_invalid_state, with_numbers, with_own_keys
from hexloop.adapters.schemas import KEY, read_part, structured
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import BestMetric
from hexloop.domain.json_documents import json_part
from hexloop.domain.ranges import Finite, Updates
from hexloop.domain.schedules import ADAPTIVE, SHAPES, build_adaptive, build_shape
from hexloop.domain.schedules.adaptive import GreedyState
from hexloop.ports.state import Part


@frozen
class SavedSchedule:
    """The exported state of a scheduler: its state dict, and the rates of the optimizer's groups."""

    state: Any
    rates: list[Finite]


@frozen
class SavedGreedy:
    """The state dict of a GreedyLR."""

    last_epoch: Updates
    rates: tuple[Finite, ...] = field(metadata={KEY: "_last_lr"})
    state: GreedyState


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
            self.scheduler.step()

    def step_with_gradients(self, taken: bool) -> None:
        """Step a scheduler that counts updates while the gradients of an update that was `taken` are there.

        A scheduler may read them, as transformers' AdafactorSchedule does. Until `advance`, `rates` returns the rates
        of that update.
        """
        if taken and not self._follows_metric:
            self._rates_of_step = self.rates()
            self.scheduler.step()

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Step a scheduler that follows a metric."""
        if self._follows_metric:
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
            group["lr"] = rate


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


# Schedulers by name

NEEDS_NO_WARMUP = ("constant", *ADAPTIVE)


def get_scheduler(
    name: Any,
    optimizer: Optimizer,
    num_warmup_steps: float | None = None,
    num_training_steps: float | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Return the scheduler called `name`, a SchedulerType or its value, with its own options.

    Raises ConfigurationError also if the schedule needs a number of steps that is not given.
    """
    name, options = str(getattr(name, "value", name)), scheduler_specific_kwargs or {}
    if name == "reduce_lr_on_plateau":
        return get_reduce_on_plateau_schedule(optimizer, **options)
    if name == "greedy":
        return get_greedy_schedule(optimizer, **options)
    if name in SHAPES and name not in NEEDS_NO_WARMUP and num_warmup_steps is None:
        raise ConfigurationError(f"The schedule {name!r} starts with a warmup; set num_warmup_steps (0 for none).")
    return lambda_of_shape(name, optimizer, num_warmup_steps or 0, num_training_steps, -1, **options)


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """Return a schedule that keeps the optimizer's rates."""
    return lambda_of_shape("constant", optimizer, 0, None, last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: float, last_epoch: int = -1) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps` and then stays constant."""
    return lambda_of_shape("constant_with_warmup", optimizer, num_warmup_steps, None, last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: float, num_training_steps: float, last_epoch: int = -1
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps` and then decreases linearly to 0."""
    return lambda_of_shape("linear", optimizer, num_warmup_steps, num_training_steps, last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then follows `num_cycles` periods of a cosine.

    Half a period ends at 0.
    """
    return lambda_of_shape("cosine", optimizer, num_warmup_steps, num_training_steps, last_epoch, num_cycles=num_cycles)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: float, num_training_steps: float, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then decays along `num_cycles` half cosines."""
    return lambda_of_shape(
        "cosine_with_restarts", optimizer, num_warmup_steps, num_training_steps, last_epoch, num_cycles=num_cycles
    )


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then decays polynomially to `lr_end`."""
    return lambda_of_shape(
        "polynomial", optimizer, num_warmup_steps, num_training_steps, last_epoch, lr_end=lr_end, power=power
    )


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: float, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """Return a schedule that rises from 0 over `num_warmup_steps`, then decays as 1 / sqrt(step)."""
    return lambda_of_shape("inverse_sqrt", optimizer, num_warmup_steps, None, last_epoch, timescale=timescale)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """Return the cosine schedule with a floor: `min_lr`, or `min_lr_rate` times the rate. Pass one of the two."""
    options = {"num_cycles": num_cycles, "min_lr": min_lr, "min_lr_rate": min_lr_rate}
    return lambda_of_shape("cosine_with_min_lr", optimizer, num_warmup_steps, num_training_steps, last_epoch, **options)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_training_steps: float,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """Return the cosine schedule with a floor, with a warmup that starts at `warmup_lr_rate` times the rate."""
    rates = {"min_lr": min_lr, "min_lr_rate": min_lr_rate, "warmup_lr_rate": warmup_lr_rate}
    name, options = "cosine_warmup_with_min_lr", {"num_cycles": num_cycles, **rates}
    return lambda_of_shape(name, optimizer, num_warmup_steps, num_training_steps, last_epoch, **options)


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """Return torch's ReduceLROnPlateau, whose `step` takes the metric."""
    return ReduceLROnPlateau(optimizer, **kwargs)


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """Return a GreedyLR, whose `step` takes the metric."""
    return GreedyLR(optimizer, **kwargs)


def get_adafactor_schedule(optimizer: Optimizer, initial_lr: float = 0.0) -> AdafactorSchedule:
    """Return a scheduler that reports the rates that an Adafactor with `relative_step` computes itself."""
    return AdafactorSchedule(optimizer, initial_lr)


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: float,
    num_decay_steps: float,
    num_training_steps: float | None = None,
    num_stable_steps: float | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Return a schedule with three stages: warmup, constant, and decay to `min_lr_ratio` times the rate.

    If `num_stable_steps` is None, the constant stage fills the rest of `num_training_steps`. Before release 4.48 of
    transformers the order was (num_warmup_steps, num_stable_steps, num_decay_steps, min_lr_ratio, num_cycles,
    last_epoch). A call with keywords means the same here; a call by position in the old order is rejected wherever it
    can be recognized.
    """
    needed = num_warmup_steps + num_decay_steps
    too_long = num_stable_steps is None and num_training_steps is not None and num_training_steps < needed
    if too_long or not isinstance(warmup_type, str) or 0 < (num_stable_steps or 0) < 1:
        raise ConfigurationError(
            f"num_warmup_steps={num_warmup_steps}, num_decay_steps={num_decay_steps}, "
            f"num_training_steps={num_training_steps} and num_stable_steps={num_stable_steps} are not possible "
            "together. Older releases of transformers took these arguments in another order; pass them by name."
        )
    if num_training_steps is not None and num_stable_steps is not None:
        warnings.warn(
            f"num_training_steps={num_training_steps} is ignored, because num_stable_steps={num_stable_steps} is set; "
            "pass only one of them.",
            stacklevel=2,
        )
    lengths = {"num_decay_steps": num_decay_steps, "num_stable_steps": num_stable_steps}
    stages = {"warmup_type": warmup_type, "decay_type": decay_type, "min_lr_ratio": min_lr_ratio}
    name, options = "warmup_stable_decay", {**lengths, **stages, "num_cycles": num_cycles}
    return lambda_of_shape(name, optimizer, num_warmup_steps, num_training_steps, last_epoch, **options)


def lambda_of_shape(
    name: str, optimizer: Optimizer, warmup_steps: float, total_steps: float | None, last_epoch: int, **options: Any
) -> LambdaLR:
    """Return the schedule called `name` from the step `last_epoch`; -1 for a new run.

    Raises ConfigurationError for an unknown name or invalid options.
    """
    rate = optimizer.defaults.get("lr")
    base_rate = float("nan") if rate is None else float(rate)
    shape = build_shape(name, base_rate=base_rate, warmup_steps=warmup_steps, total_steps=total_steps, options=options)
    return LambdaLR(optimizer, factor_of(shape), last_epoch)


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
            group["lr"] = rate
        self._last_lr = list(rates)


class AdafactorSchedule(LRScheduler):
    """Reports the rate that transformers' Adafactor uses for the first parameter of each group.

    With `relative_step` that optimizer computes its own rates and ignores the groups' "lr"; this scheduler reads them
    after each step. initial_lr: the rate reported before the first step.
    """

    def __init__(self, optimizer: Optimizer, initial_lr: float = 0.0) -> None:
        for group in optimizer.param_groups:
            group["initial_lr"] = initial_lr
        super().__init__(optimizer)
        for group in optimizer.param_groups:
            del group["initial_lr"]

    def get_lr(self) -> list[Any]:
        """Return the current rates, one per parameter group."""
        return [self._rate(group, base) for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True)]

    def _rate(self, group: dict[str, Any], base: Any) -> Any:
        state = self.optimizer.state.get(group["params"][0], {}) if group["params"] else {}
        if "step" not in state:
            return base
        optimizer: Any = self.optimizer
        return float(optimizer._get_lr(group, state))
