"""Fields of a dataclass whose values stand in a run: descriptors that read and write there."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
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


# ruff: noqa: RUF009 - a dataclass takes a descriptor as a field's default, and making one at import is the idea


@dataclass
class TrainerState(Follower):
    """A live, writable view of a run; free-standing, with a run of its own, until it is told to `follow` one.

    epoch: passes over the data that are done, as a fraction. What is written holds until the next step.
    global_step, max_steps: optimizer steps done, and in all. logging_steps, eval_steps, save_steps: every how many of
    them to do so; writing one, or max_steps, changes the run's rhythm from the next step on.
    train_batch_size: samples a process trains on at once. num_train_epochs: passes in all, `sys.maxsize` where the data
    has no length. num_input_tokens_seen, total_flos: trained on so far. log_history: everything logged.
    best_metric, best_global_step, best_model_checkpoint: the best evaluation so far, its step, and its folder.
    is_local_process_zero, is_world_process_zero: whether this process is the first of its machine, and of all.
    is_hyper_param_search, trial_name, trial_params: the search that the run belongs to.
    stateful_callbacks: what callbacks keep, by the name of their class; callbacks that are given are exported.

    Copies, and what is read from a file, are free-standing. Source of the names and defaults: transformers 5.
    """

    epoch: RunField[float] = epoch_field()
    global_step: RunField[int] = state_field("step", 0)
    max_steps: RunField[int] = total_steps_field()
    logging_steps: RunField[float] = rhythm_field("log")
    eval_steps: RunField[float] = rhythm_field("evaluate")
    save_steps: RunField[float] = rhythm_field("save")
    train_batch_size: int | None = None
    num_train_epochs: RunField[int] = epochs_field()
    num_input_tokens_seen: RunField[int] = state_field("tokens", 0)
    total_flos: RunField[float] = state_field("operations", 0)
    log_history: RunField[Any] = history_field()
    best_metric: RunField[float | None] = state_field("best_metric", None)
    best_global_step: RunField[int | None] = state_field("best_step", None)
    best_model_checkpoint: RunField[str | None] = checkpoint_field()
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, str | float | int | bool] | None = None
    stateful_callbacks: RunField[Any] = callbacks_field()

    def to_json_string(self) -> str:
        """The fields, sorted by name, as a JSON document."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def save_to_json(self, json_path: str) -> None:
        """Write the fields to the file `json_path`."""
        Path(json_path).write_text(self.to_json_string(), encoding="utf-8")

    @classmethod
    def load_from_json(cls, json_path: str) -> Self:
        """A free-standing state with the fields of the file `json_path`; warns of those that it does not know."""
        document = json.loads(Path(json_path).read_text(encoding="utf-8"))
        known = {each.name for each in fields(cls)}
        if unknown := sorted(document.keys() - known):
            warnings.warn(f"{json_path} has fields that are not a TrainerState's: {', '.join(unknown)}.", stacklevel=2)
        return cls(**{name: value for name, value in document.items() if name in known})

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[type[Self], dict[str, Any]]]:
        return _free_standing, (type(self), {each.name: getattr(self, each.name) for each in fields(self)})


State = TypeVar("State", bound=TrainerState)


def _free_standing(kind: type[State], values: dict[str, Any]) -> State:
    return kind(**values)
