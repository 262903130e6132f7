"""What a run has to have in common with a checkpoint that it goes on from, and what becomes of accepted differences."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from hexloop.adapters.trainable.torch.layouts import TorchLayout
from hexloop.adapters.trainable.torch.optimizers import decayed_names
from hexloop.app.wiring.data import global_batch_size
from hexloop.app.wiring.model import make_schedule
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import group_sizes, layout_of, model_state, own_class
from hexloop.domain.run import Run
from hexloop.domain.schedules.scheduler import ScheduledRates
from hexloop.domain.state import RunState
from hexloop.ports.state import Part

MAY_CHANGE = frozenset(
    {"params", "param_names", "lr", "initial_lr", "max_lr", "min_lr"}
    | {"foreach", "fused", "capturable", "differentiable"}
)
"""Options of a parameter group that are the schedule's to say, or that only say how the same is computed."""


class RunSetup:
    """Answers `hexloop.adapters.contents.checkpoint.contents.Setup` for a Trainer's run.

    Made before the first step, as a schedule may change the optimizer's options on the way.
    """

    def __init__(self, parts: TrainerParts, run: Run[Any, Any], asked_accumulation: int) -> None:
        self._parts = parts
        self._asked_accumulation = asked_accumulation
        self._run = run
        found = ("batch_size",) if parts.args.auto_find_batch_size else ()
        self._accepted = frozenset((*parts.args.resume_despite, *found))
        self._model = model_state(parts)
        self._document = self._described()

    def document(self) -> Mapping[str, Any]:
        """Model, precision, optimizer with its groups' options, samples in a pass, and samples in an optimizer step."""
        return self._document

    def differences(self, saved: Mapping[str, Any], state: RunState, weights: Sequence[Part]) -> Iterator[str]:
        """Everything in which the run differs from the checkpoint's and which is not accepted by name."""
        tensors = self._model.differences(weights, types="precision" not in self._accepted)
        if tensors:
            yield (
                f"its model{self._of_class(saved)} is another than this run's: {'; '.join(tensors)}. Resume with the "
                "model that it was written with."
            )
        for name, difference in self._by_name(saved, state):
            if name not in self._accepted:
                yield (
                    f"{difference}. Resume with what it was written with, or go on all the same with "
                    f"resume_despite=[{name!r}]."
                )

    def not_loaded(self, saved: Mapping[str, Any]) -> Collection[str]:
        """The optimizer where it is another, the loss scale under another precision, an import's data."""
        left = set()
        if self._other_optimizer(saved):
            left.add("optimizer")
            if self._parts.args.should_log:
                warnings.warn(
                    "The optimizer begins anew, as the checkpoint's is another: its moments are gone.", stacklevel=2
                )
        if saved.get("precision", self._document["precision"]) != self._document["precision"]:
            left.add("scaler")
        if "imported_from" in saved:
            left.add("data")
        return left

    def adapt(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Put this run's options of the optimizer in force, and go on at the same sample under another batch size."""
        if not self._other_optimizer(saved):
            self._keep_own_options(saved)
        present = self._document["global_batch_size"]
        if state.global_batch_size != present:
            state.global_batch_size = present
            self._count_batches(state)
            self._stretch_plan(state)
        elif saved.get("batch_size", self._document["batch_size"]) != self._document["batch_size"]:
            self._count_batches(state)  # as many processes, or as much accumulation, give the same steps otherwise

    def _described(self) -> dict[str, Any]:
        parts, optimizer = self._parts, self._parts.optimizer
        model = parts.adapters.parallelism.unwrap(parts.model)
        return {
            "model": own_class(model).__qualname__,
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
                "without_decay": _without_decay(model, layout_of(parts)),
            },
        }

    def _by_name(self, saved: Mapping[str, Any], state: RunState) -> Iterator[tuple[str, str]]:
        """The name under which a difference is accepted, and what it is."""
        here = self._document
        if saved.get("precision", here["precision"]) != here["precision"]:
            yield (
                "precision",
                f"it was written under the precision {saved['precision']}, and this is {here['precision']}",
            )
        for difference in self._of_optimizer(saved):
            yield "optimizer", difference
        then, now = saved.get("samples_per_epoch", here["samples_per_epoch"]), here["samples_per_epoch"]
        if then != now:
            yield "data_length", f"its data had {_count(then)} in a pass, and these have {_count(now)}"
        if state.global_batch_size != here["global_batch_size"]:
            yield (
                "batch_size",
                f"its optimizer steps were of {state.global_batch_size} samples, and these are of "
                f"{here['global_batch_size']}",
            )

    def _of_optimizer(self, saved: Mapping[str, Any]) -> Iterator[str]:
        then, now = saved.get("optimizer"), self._document["optimizer"]
        if then is None:
            return
        if then["class"] != now["class"]:
            yield f"its optimizer is {then['class']}, and this is {now['class']}"
        elif _sizes(then) != _sizes(now):
            groups = f"its optimizer has groups of {_sizes(then)} parameters, and this one has groups of {_sizes(now)}"
            yield f"{groups}{_by_decay(then, now)}"
        elif options := _differing(then["groups"], now["groups"]):
            yield f"its optimizer has other options: {'; '.join(options)}"

    def _other_optimizer(self, saved: Mapping[str, Any]) -> bool:
        """Whether the moments of the checkpoint's optimizer mean nothing to this one."""
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
        """Count what is read of the present pass in batches of this run's size."""
        plan, samples, size = self._run.plan, self._document["samples_per_epoch"], self._document["batch_size"]
        if plan.batches_per_epoch is None or samples is None:
            state.batches = math.ceil(state.position / size)
            return
        left = (samples - state.position) / size
        left = math.floor(left) if self._parts.args.dataloader_drop_last else math.ceil(left)
        state.batches = max(0, plan.batches_per_epoch - max(0, left))

    def _stretch_plan(self, state: RunState) -> None:
        """Count what is left of the run in steps of this run's size, and stretch its own schedule over them.

        Where the steps are given, it is the passes over the data that are counted anew.
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
    def _of_class(saved: Mapping[str, Any]) -> str:
        return f", a {saved['model']}," if "model" in saved else ""


def _without_decay(model: Any, layout: TorchLayout) -> list[str]:
    names = {id(parameter): name for name, parameter in layout.parameters(model).items()}
    decayed = frozenset(decayed_names(model))
    trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    return [names[id(parameter)] for name, parameter in trained if name not in decayed]


def _options(group: Mapping[str, Any], size: int) -> dict[str, Any]:
    """The options of a group that a resumed run is to have too, as JSON has them, and how many parameters it is of."""
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
    """Says so where it is with the weight decay that groups come and go: without any, all parameters make one."""
    before, after = ({group.get("weight_decay") for group in each["groups"]} - {None, 0} for each in (then, now))
    return "" if bool(before) == bool(after) else f", as it has {'a' if after else 'no'} weight decay"


def _sizes(optimizer: Mapping[str, Any]) -> list[int]:
    return [group["parameters"] for group in optimizer["groups"]]


def _differing(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"{name} of group {number} was {before.get(name, 'not there')} and is {after.get(name, 'not there')}"
        for number, (before, after) in enumerate(zip(then, now, strict=True))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _count(samples: int | None) -> str:
    return "an unknown number of samples" if samples is None else f"{samples} samples"
