"""Fields of a dataclass whose values stand in a run: descriptors that read and write there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Generic, Protocol, Self, TypeVar

from attrs import define, evolve, field

from hexloop.app.callbacks.exportable import export_states, is_exportable
from hexloop.domain.plan import Plan
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Trigger, Triggers, whole_steps

Value = TypeVar("Value")


class FollowedRun(Protocol):
    """What can be followed; `hexloop.domain.run.Run` is one."""

    state: RunState
    plan: Plan
    triggers: Triggers

    def change_triggers(self, triggers: Triggers) -> None:
        """Go by other rhythms from the next step on."""
        ...


NO_PLAN = Plan(total_steps=0, epochs=0, steps_per_epoch=None, batches_per_epoch=None, accumulation=1)
NO_TRIGGERS = Triggers(log=Trigger(every=500), evaluate=Trigger(every=500), save=Trigger(every=500))


@define
class NobodysRun:
    """What a free-standing follower follows: a run that has not begun and never will."""

    state: RunState = field(factory=RunState)
    plan: Plan = NO_PLAN
    triggers: Triggers = NO_TRIGGERS

    def change_triggers(self, triggers: Triggers) -> None:
        """Note the rhythms."""
        self.triggers = triggers


class Follower:
    """Follows a run: one of its own until it is shown another."""

    checkpoints_folder = ""
    """Where the run's checkpoints are; the Trainer says it."""

    _run: FollowedRun
    _written_epoch: tuple[tuple[int, int], float] | None

    def __new__(cls, *_values: object, **_named: object) -> Self:
        """Follow a run of its own, before the first field is set."""
        follower = super().__new__(cls)
        follower.follow(NobodysRun())
        return follower

    def follow(self, run: FollowedRun) -> None:
        """Be a view of `run` from now on."""
        self._run = run
        self._written_epoch = None


class RunField(Generic[Value]):
    """A field of a follower; `first` is what a free-standing one begins with."""

    def __init__(
        self, first: Value, read: Callable[[Follower], Value], write: Callable[[Follower, Value], None]
    ) -> None:
        self._first, self._read, self._write = first, read, write

    def __get__(self, follower: Follower | None, owner: type[Follower]) -> Value:
        return self._first if follower is None else self._read(follower)

    def __set__(self, follower: Follower, value: Value) -> None:
        self._write(follower, value)


def state_field(name: str, first: Value) -> RunField[Value]:
    """The field `name` of the run's state."""

    def write(follower: Follower, value: Value) -> None:
        setattr(follower._run.state, name, value)

    return RunField(first, attrgetter(f"_run.state.{name}"), write)


def rhythm_field(action: str) -> RunField[float]:
    """Every how many steps the trigger of `action` fires; a number below 1 that is written is a share of the run."""

    def write(follower: Follower, every: float) -> None:
        run = follower._run
        trigger = evolve(getattr(run.triggers, action), every=whole_steps(every, run.plan.total_steps))
        run.change_triggers(evolve(run.triggers, **{action: trigger}))

    return RunField(500, attrgetter(f"_run.triggers.{action}.every"), write)


def checkpoint_field() -> RunField[str | None]:
    """The path of the best checkpoint: its name in the run's state, below the follower's `checkpoints_folder`."""

    def read(follower: Follower) -> str | None:
        name = follower._run.state.best_checkpoint
        return name if name is None else os.path.join(follower.checkpoints_folder, name)

    def write(follower: Follower, path: str | None) -> None:
        if path is not None:
            follower.checkpoints_folder, path = os.path.split(path)
        follower._run.state.best_checkpoint = path

    return RunField(None, read, write)


def epoch_field() -> RunField[float]:
    """Passes over the data that are done, as a fraction. What is written holds until the run moves on."""

    def place(follower: Follower) -> tuple[int, int]:
        return follower._run.state.epoch, follower._run.state.batches

    def read(follower: Follower) -> float:
        written, now = follower._written_epoch, place(follower)
        return written[1] if written is not None and written[0] == now else follower._run.plan.epoch_at(*now)

    def write(follower: Follower, epoch: float) -> None:
        follower._written_epoch = place(follower), epoch

    return RunField(0, read, write)


def total_steps_field() -> RunField[int]:
    """The optimizer steps of the whole run."""

    def write(follower: Follower, total_steps: int) -> None:
        run = follower._run
        run.plan = evolve(run.plan, total_steps=total_steps)
        run.change_triggers(run.triggers)  # what is due at the last step is due elsewhere now

    return RunField(0, attrgetter("_run.plan.total_steps"), write)


def epochs_field() -> RunField[int]:
    """The passes over the data of the whole run; `sys.maxsize` where only its steps are known."""

    def read(follower: Follower) -> int:
        epochs = follower._run.plan.epochs
        return sys.maxsize if epochs is None else epochs

    def write(follower: Follower, epochs: int) -> None:
        follower._run.plan = evolve(follower._run.plan, epochs=epochs)

    return RunField(0, read, write)


def history_field() -> RunField[Any]:
    """Everything logged, a list; writing None empties it."""

    def write(follower: Follower, history: list[dict[str, Any]] | None) -> None:
        follower._run.state.history = [] if history is None else history

    return RunField(None, attrgetter("_run.state.history"), write)


def callbacks_field() -> RunField[Any]:
    """What callbacks keep, by the name of their class. Callbacks may be written instead, and are exported.

    Raises TypeError for a callback that has no state to export.
    """

    def write(follower: Follower, callbacks: dict[str, Any] | Iterable[object] | None) -> None:
        state = follower._run.state
        if isinstance(callbacks, dict):
            state.callbacks = callbacks
            return
        stateful = list(callbacks or ())
        if stateless := [callback for callback in stateful if not is_exportable(callback)]:
            raise TypeError(
                f"stateful_callbacks holds {stateless}, which have no state to save; give them state() and "
                "from_state(), as ExportableState has them, or leave them out."
            )
        state.callbacks = export_states(stateful)

    return RunField(None, attrgetter("_run.state.callbacks"), write)
