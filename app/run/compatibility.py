"""Checkpoint compatibility checks: whether a checkpoint fits a run, and how accepted differences are handled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from hexloop.app.wiring.data import global_batch_size
from hexloop.app.wiring.model import make_schedule
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import group_sizes, model_state, names_without_decay, own_class
from hexloop.domain.run import Run
from hexloop.domain.schedules.scheduler import ScheduledRates
from hexloop.domain.state import RunState
from hexloop.ports.state import Part

MAY_CHANGE = frozenset(
    {"params", "param_names", "lr", "initial_lr", "max_lr", "min_lr"}
    | {"foreach", "fused", "capturable", "differentiable"}
)
"""Options of a parameter group that the schedule sets, or that do not change the results."""


class RunSetup:
    """Implements `hexloop.adapters.contents.checkpoint.contents.Setup`.

    It is made before the first step, because a schedule may change the optimizer's options during the run.
    """

    def __init__(self, parts: TrainerParts, run: Run[Any, Any], asked_accumulation: int) -> None:
        self._parts = parts
        self._asked_accumulation = asked_accumulation
        self._run = run
        found = ("batch_size",) if parts.args.auto_find_batch_size else ()
        self._accepted = frozenset((*parts.args.resume_despite, *found))
        self._model = model_state(parts)
        self._document = self._description()

    def document(self) -> Mapping[str, Any]:
        """Return model, precision, optimizer with its groups' options, samples of an epoch and of an optimizer step."""
        return self._document

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterator[str]:
        """Yield every difference between the run and the checkpoint's that is not accepted by name."""
        tensors = self._model.differences(weights, types="precision" not in self._accepted)
        if tensors:
            yield (
                f"its model{self._class_of(saved)} differs from this run's: {'; '.join(tensors)}. Resume with the "
                "model of the checkpoint."
            )
        for name, difference in self._named_differences(saved, state):
            if name not in self._accepted:
                yield (
                    f"{difference}. Resume with the settings of the checkpoint, or accept the difference with "
                    f"resume_despite=[{name!r}]."
                )

    def not_loaded(self, saved: Mapping[str, Any]) -> Collection[str]:
        """Return what to leave as it is: a different optimizer, the loss scale of another precision, imported data."""
        not_loaded = set()
        if self._other_optimizer(saved):
            not_loaded.add("optimizer")
            if self._parts.args.should_log:
                warnings.warn(
                    "The optimizer starts without moments, because the checkpoint's optimizer differs.", stacklevel=2
                )
        if saved.get("precision", self._document["precision"]) != self._document["precision"]:
            not_loaded.add("scaler")
        if "imported_from" in saved:
            not_loaded.add("data")
        return not_loaded

    def adapt(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Apply this run's optimizer options, and continue at the same sample if the batch size differs."""
        if not self._other_optimizer(saved):
            self._keep_own_options(saved)
        own = self._document["global_batch_size"]
        if state.global_batch_size != own:
            state.global_batch_size = own
            self._count_batches(state)
            self._stretch_plan(state)
        elif saved.get("batch_size", self._document["batch_size"]) != self._document["batch_size"]:
            self._count_batches(state)  # the same step size from other micro-batches

    def _description(self) -> dict[str, Any]:
        parts, optimizer = self._parts, self._parts.optimizer
        return {
            "model": own_class(parts.unwrapped_model).__qualname__,
            "precision": parts.adapters.precision.name,
            "samples_per_epoch": self._run.batches.samples_per_epoch(),
            "global_batch_size": self._run.state.global_batch_size,
            "batch_size": global_batch_size(parts.args, parts.train_batch_size),
            "asked_accumulation": self._asked_accumulation,
            "optimizer": {
                "class": type(optimizer).__qualname__,
                "by_arguments": parts.makes_optimizer or optimizer is parts.standard_optimizer,
                "groups": [
                    _options(group, size)
                    for group, size in zip(optimizer.param_groups, group_sizes(parts), strict=True)
                ],
                "without_decay": names_without_decay(parts),
            },
        }

    def _named_differences(self, saved: Mapping[str, Any], state: RunState) -> Iterator[tuple[str, str]]:
        """Yield the name under which a difference can be accepted, and its description."""
        here = self._document
        if saved.get("precision", here["precision"]) != here["precision"]:
            yield (
                "precision",
                f"it was written with the precision {saved['precision']}, and this run has {here['precision']}",
            )
        for difference in self._optimizer_differences(saved):
            yield "optimizer", difference
        then, now = saved.get("samples_per_epoch", here["samples_per_epoch"]), here["samples_per_epoch"]
        if then != now:
            yield "data_length", f"its data had {_count(then)} in an epoch, and the data of this run has {_count(now)}"
        if state.global_batch_size != here["global_batch_size"]:
            yield (
                "batch_size",
                f"its optimizer steps had {state.global_batch_size} samples, and those of this run have "
                f"{here['global_batch_size']}",
            )

    def _optimizer_differences(self, saved: Mapping[str, Any]) -> Iterator[str]:
        then, now = saved.get("optimizer"), self._document["optimizer"]
        if then is None:
            return
        if then["class"] != now["class"]:
            yield f"its optimizer is {then['class']}, and that of this run is {now['class']}"
        elif _sizes(then) != _sizes(now):
            groups = f"its optimizer has groups of {_sizes(then)} parameters, and that of this run of {_sizes(now)}"
            yield f"{groups}{_by_decay(then, now)}"
        elif options := _differing(then["groups"], now["groups"]):
            yield f"the options of its optimizer differ: {'; '.join(options)}"

    def _other_optimizer(self, saved: Mapping[str, Any]) -> bool:
        """Return whether the moments of the checkpoint's optimizer do not fit this one."""
        then, now = saved.get("optimizer"), self._document["optimizer"]
        return then is not None and (then["class"] != now["class"] or _sizes(then) != _sizes(now))

    def _keep_own_options(self, saved: Mapping[str, Any]) -> None:
        then, now = saved.get("optimizer"), self._document["optimizer"]
        if then is None:
            return
        for live, before, own in zip(self._parts.optimizer.param_groups, then["groups"], now["groups"], strict=True):
            for name, value in own.items():
                if name != "parameters" and before.get(name) != value:
                    live[name] = type(live[name])(value) if isinstance(live.get(name), tuple) else value

    def _count_batches(self, state: RunState) -> None:
        """Count the samples read in the current epoch in batches of this run's size."""
        plan, samples, size = self._run.plan, self._document["samples_per_epoch"], self._document["batch_size"]
        if plan.batches_per_epoch is None or samples is None:
            state.batches = math.ceil(state.position / size)
            return
        left = (samples - state.position) / size
        left = math.floor(left) if self._parts.args.dataloader_drop_last else math.ceil(left)
        state.batches = max(0, plan.batches_per_epoch - max(0, left))

    def _stretch_plan(self, state: RunState) -> None:
        """Count the rest of the run in steps of this run's size, and stretch its schedule over them.

        If `max_steps` is set, the epochs are recounted instead.
        """
        run, args = self._run, self._parts.args
        plan = run.plan
        if plan.batches_per_epoch is None or self._document["samples_per_epoch"] is None:
            return
        if plan.steps_per_epoch is None:
            return
        passes = plan.epoch_at(state.epoch, state.batches)
        if args.max_steps > 0:
            passes += (plan.total_steps - state.step) / plan.steps_per_epoch
            run.plan = evolve(plan, epochs=math.ceil(passes - 1e-9))
            return
        passes_left = max(0.0, args.num_train_epochs - passes)
        total = state.step + math.ceil(passes_left * plan.steps_per_epoch - 1e-9)
        run.plan = evolve(plan, total_steps=total)
        if self._parts.makes_scheduler and isinstance(run.scheduler, ScheduledRates):
            run.scheduler.shape = make_schedule(args, total, self._parts.optimizer)  # type: ignore[assignment]

    @staticmethod
    def _class_of(saved: Mapping[str, Any]) -> str:
        return f", a {saved['model']}," if "model" in saved else ""


def _options(group: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the options of a group that a resumed run must share, as JSON, and its number of parameters."""
    options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if name not in MAY_CHANGE and _is_plain(value)
    }
    return {**options, "parameters": size}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _by_decay(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the reason if weight decay causes the difference: without it, all parameters form one group."""
    before, after = ({group.get("weight_decay") for group in each["groups"]} - {None, 0} for each in (then, now))
    return "" if bool(before) == bool(after) else f", as it has {'a' if after else 'no'} weight decay"


def _sizes(optimizer: Mapping[str, Any]) -> list[int]:
    return [group["parameters"] for group in optimizer["groups"]]


def _differing(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{name} of group {number} was {before.get(name, 'not set')} and is {after.get(name, 'not set')}"
        for number, (before, after) in enumerate(zip(then, now, strict=True))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _count(samples: int | None) -> str:
    return "an unknown number of samples" if samples is None else f"{samples} samples"
