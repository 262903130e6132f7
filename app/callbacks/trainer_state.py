"""`TrainerState`, a live view of a run made of fields that read and write it; and the state of callbacks."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

from attrs import define, evolve, field

from hexloop.app.notices import HEXLOOPS, Notices
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.domain.regular_files import read_file
from hexloop.domain.state import RunState
from hexloop.domain.triggers import Plan, Trigger, Triggers, whole_steps

Value = TypeVar("Value")


class FollowedRun(Protocol):
    """A run that can be viewed, such as `hexloop.domain.run.Run`."""

    state: RunState
    plan: Plan
    triggers: Triggers

    def change_triggers(self, triggers: Triggers) -> None:
        """Use other intervals from the next step on."""
        ...


NO_PLAN = Plan(total_steps=0, epochs=0, steps_per_epoch=None, batches_per_epoch=None, accumulation=1)


@define
class DetachedRun:
    """The run of a detached view: it never starts."""

    state: RunState = field(factory=RunState)
    plan: Plan = NO_PLAN
    triggers: Triggers = Triggers(log=Trigger(every=500), evaluate=Trigger(every=500), save=Trigger(every=500))

    def change_triggers(self, triggers: Triggers) -> None:
        """Set the intervals."""
        self.triggers = triggers


class RunView:
    """A view of a run: a detached one, until `follow` is called.

    Args:
        spelled: returns a path as it is shown.
    """

    checkpoints_folder = ""
    """The folder of the run's checkpoints; the Trainer sets it."""

    spelled: Callable[[str], str] = str
    """Returns that folder as the user wrote it, or absolute where that leads elsewhere now; the Trainer sets it."""

    takes_media: Callable[..., None] | None = None
    """Takes media for the live run; None between runs."""

    _run: FollowedRun
    _set_epoch: tuple[tuple[int, int], float] | None

    def __new__(cls, *_values: object, **_named: object) -> Self:
        """View a detached run before the first field is set."""
        view = super().__new__(cls)
        view.follow(DetachedRun())
        return view

    @property
    def run_state(self) -> RunState:
        """The state of the run that is viewed."""
        return self._run.state

    def follow(self, run: FollowedRun) -> None:
        """View `run` from now on.

        Args:
            run: the run to view.
        """
        self._run = run
        self._set_epoch = None


class RunField(Generic[Value]):
    """A field of a view; `first` is its value for a detached run."""

    def __init__(self, first: Value, read: Callable[[RunView], Value], write: Callable[[RunView, Value], None]) -> None:
        self._first, self._read, self._write = first, read, write

    def __get__(self, view: RunView | None, owner: type[RunView]) -> Value:
        return self._first if view is None else self._read(view)

    def __set__(self, view: RunView, value: Value) -> None:
        self._write(view, value)


def state_field(name: str, first: Value) -> RunField[Value]:
    """Return the field `name` of the run's state."""

    def write(view: RunView, value: Value) -> None:
        setattr(view._run.state, name, value)

    return RunField(first, attrgetter(f"_run.state.{name}"), write)


def interval_field(action: str) -> RunField[float]:
    """Return the field of the interval of `action` in steps; a value below 1 that is set is a fraction of the run."""

    def write(view: RunView, every: float) -> None:
        run = view._run
        trigger = evolve(getattr(run.triggers, action), every=whole_steps(every, run.plan.total_steps))
        run.change_triggers(evolve(run.triggers, **{action: trigger}))

    return RunField(500, attrgetter(f"_run.triggers.{action}.every"), write)


def checkpoint_field() -> RunField[str | None]:
    """Return the field of the best checkpoint's path: its name in the run's state, in `checkpoints_folder`."""

    def read(view: RunView) -> str | None:
        name = view._run.state.best_checkpoint
        return name if name is None else os.path.join(view.spelled(view.checkpoints_folder), name)

    def write(view: RunView, path: str | None) -> None:
        if path is not None:
            view.checkpoints_folder, path = os.path.split(path)
        view._run.state.best_checkpoint = path

    return RunField(None, read, write)


def epoch_field() -> RunField[float]:
    """Return the field of the epochs done, as a fraction. A value that is set holds until the run advances."""

    def position(view: RunView) -> tuple[int, int]:
        return view._run.state.epoch, view._run.state.batches

    def read(view: RunView) -> float:
        written, now = view._set_epoch, position(view)
        return written[1] if written is not None and written[0] == now else view._run.plan.epoch_at(*now)

    def write(view: RunView, epoch: float) -> None:
        view._set_epoch = position(view), epoch

    return RunField(0, read, write)


def total_steps_field() -> RunField[int]:
    """Return the field of the optimizer steps of the whole run."""

    def write(view: RunView, total_steps: int) -> None:
        run = view._run
        run.plan = evolve(run.plan, total_steps=total_steps)
        run.change_triggers(run.triggers)  # the last step has moved

    return RunField(0, attrgetter("_run.plan.total_steps"), write)


def epochs_field() -> RunField[int]:
    """Return the field of the epochs of the whole run; `sys.maxsize` if only its steps are known."""

    def read(view: RunView) -> int:
        epochs = view._run.plan.epochs
        return sys.maxsize if epochs is None else epochs

    def write(view: RunView, epochs: int) -> None:
        view._run.plan = evolve(view._run.plan, epochs=epochs)

    return RunField(0, read, write)


def history_field() -> RunField[Any]:
    """Return the field of the log history, a list; setting None empties it."""

    def write(view: RunView, history: list[dict[str, Any]] | None) -> None:
        view._run.state.history = [] if history is None else history

    return RunField(None, attrgetter("_run.state.history"), write)


def callbacks_field() -> RunField[Any]:
    """Return the field of the callbacks' state, by class name. Callbacks that are set are exported.

    Setting a callback without state raises TypeError.
    """

    def write(view: RunView, callbacks: dict[str, Any] | Iterable[object] | None) -> None:
        state = view._run.state
        if isinstance(callbacks, dict):
            state.callbacks = callbacks
            return
        stateful = list(callbacks or ())
        if stateless := [callback for callback in stateful if not is_exportable(callback)]:
            raise TypeError(
                f"stateful_callbacks contains {stateless}, which have no state to save; define state() and "
                "from_state(), as in ExportableState, or remove them."
            )
        state.callbacks = export_states(stateful)

    return RunField(None, attrgetter("_run.state.callbacks"), write)


# ruff: noqa: RUF009 - a dataclass takes a descriptor as a field's default, and making one at import is the idea


@dataclass
class TrainerState(RunView):
    """A live, writable view of a run; detached, with default values, until `follow` attaches it to a run.

    Copies, and states read from a file, are detached. Source of the names and defaults: transformers 5.

    Args:
        epoch: epochs done, as a fraction. A value that is set holds until the next step.
        global_step: optimizer steps done.
        max_steps: optimizer steps in total.
        logging_steps: steps between logs; setting it changes the run from the next step on, as does max_steps.
        eval_steps: steps between evaluations; setting it changes the run from the next step on.
        save_steps: steps between checkpoints; setting it changes the run from the next step on.
        train_batch_size: samples in a micro-batch of a process.
        num_train_epochs: epochs in total, `sys.maxsize` if the data have no length.
        num_input_tokens_seen: tokens so far.
        total_flos: floating-point operations so far.
        log_history: all logs.
        best_metric: the metric of the best evaluation so far.
        best_global_step: the step of the best evaluation so far.
        best_model_checkpoint: the folder of the best evaluation's checkpoint.
        is_local_process_zero: whether this process is the first of its machine.
        is_world_process_zero: whether this process is the first of all.
        is_hyper_param_search: whether the run is a trial of a search.
        trial_name: the name of the trial.
        trial_params: the parameters of the trial.
        stateful_callbacks: the state of callbacks, by class name; callbacks that are set are exported.
    """

    epoch: RunField[float] = epoch_field()
    global_step: RunField[int] = state_field("step", 0)
    max_steps: RunField[int] = total_steps_field()
    logging_steps: RunField[float] = interval_field("log")
    eval_steps: RunField[float] = interval_field("evaluate")
    save_steps: RunField[float] = interval_field("save")
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

    def log_media(self, name: str, value: Any, kind: str | None = None, **options: Any) -> None:
        """Log media from a callback; see `Trainer.log_media`.

        Args:
            name: what it is called.
            value: the medium.
            kind: its kind; by default, that of the value's type.
            options: further arguments of `Trainer.log_media`.
        """
        if self.takes_media is not None:
            self.takes_media(name, value, kind, **options)

    def to_json_string(self) -> str:
        """Return the fields, sorted by name, as a JSON document."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """Set the intervals of the arguments; one below 1 is a fraction of `max_steps`, rounded up.

        Args:
            args: the arguments with the intervals.
            max_steps: optimizer steps of the run.
        """
        for name in ("logging_steps", "eval_steps", "save_steps"):
            steps = getattr(args, name)
            if steps is not None:
                setattr(self, name, whole_steps(steps, max_steps))

    def init_training_references(self, trainer: Any, max_steps: int, num_train_epochs: int, trial: Any) -> None:
        """Set the lengths of the run, its trial, and which process this is.

        Args:
            trainer: the Trainer of the run.
            max_steps: optimizer steps of the run.
            num_train_epochs: epochs of the run.
            trial: the trial of a search.
        """
        if trainer.hp_name is not None and trial is not None:
            self.trial_name = trainer.hp_name(trial)
        self.max_steps, self.num_train_epochs = max_steps, num_train_epochs
        self.is_local_process_zero = trainer.is_local_process_zero()
        self.is_world_process_zero = trainer.is_world_process_zero()

    def save_to_json(self, json_path: str) -> None:
        """Write the fields to a JSON file.

        Args:
            json_path: the path of the file.
        """
        Path(json_path).write_text(self.to_json_string(), encoding="utf-8")

    @classmethod
    def load_from_json(cls, json_path: str) -> Self:
        """Return a detached state with the fields of a JSON file; warn of unknown fields.

        Args:
            json_path: the path of the file.

        Raises:
            CheckpointError: with every problem, if a field is not of its kind.
        """
        document = _read_fields(json_path)
        known = {each.name for each in fields(cls)}
        if unknown := sorted(document.keys() - known):
            warnings.warn(f"{json_path} has fields that are not a TrainerState's: {', '.join(unknown)}.", stacklevel=2)
        return cls(**{name: value for name, value in document.items() if name in known})

    def __reduce__(self) -> tuple[object, ...]:
        return _detached, (type(self), {each.name: getattr(self, each.name) for each in fields(self)})


_NUMBER, _WHOLE, _SWITCH = (int, float), (int,), (bool,)

_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("epoch", "logging_steps", "eval_steps", "save_steps", "total_flos", "best_metric"), _NUMBER),
    **dict.fromkeys(("global_step", "max_steps", "train_batch_size", "num_train_epochs", "best_global_step"), _WHOLE),
    **dict.fromkeys(("num_input_tokens_seen",), _NUMBER),
    **dict.fromkeys(("is_local_process_zero", "is_world_process_zero", "is_hyper_param_search"), _SWITCH),
    **dict.fromkeys(("best_model_checkpoint", "trial_name"), (str,)),
    **dict.fromkeys(("trial_params", "stateful_callbacks"), (dict,)),
    "log_history": (list,),
}
"""The kinds of values of the fields of a TrainerState in a file; each may be null."""


def _read_fields(path: str) -> dict[str, Any]:
    """Return the fields in a JSON file. Raises CheckpointError, with every problem, if one is not of its kind."""
    try:
        document = read_json(read_file(path), finite=False)  # transformers writes NaN as a bare word
    except ValueError as error:
        raise CheckpointError(f"{path} is not a JSON document: {error}.") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} is not a JSON object.")
    problems = [
        f"{name}: {value!a:.80} is not of the type {' or '.join(kind.__name__ for kind in _KINDS[name])}"
        for name, value in document.items()
        if name in _KINDS and value is not None and type(value) not in _KINDS[name]
    ]
    problems += [
        f"log_history[{number}]: {entry!a:.80} is not of the type dict"
        for number, entry in enumerate(document.get("log_history") or () if not problems else ())
        if not isinstance(entry, dict)
    ]
    if problems:
        raise CheckpointError(f"{path} is invalid: {'; '.join(problems[:8])}.")
    return document


def _detached(kind: type[TrainerState], values: dict[str, Any]) -> TrainerState:
    return kind(**values)


class ExportableState:
    """Base class of callbacks whose state is part of checkpoints.

    `state` returns JSON: {"args": keywords of the constructor, "attributes": what is set afterwards}.
    """

    def state(self) -> dict[str, Any]:
        """Return everything needed to rebuild this object.

        Raises:
            NotImplementedError: if a class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} has state to save, but does not define state(); define it.")

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the object that `state` describes.

        Args:
            state: what `state` returned.
        """
        rebuilt = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(rebuilt, name, value)
        return rebuilt


def is_exportable(callback: object) -> bool:
    """Return whether `callback` has `state()` and its class `from_state()`, of hexloop or of transformers."""
    return callable(getattr(callback, "state", None)) and callable(getattr(type(callback), "from_state", None))


def export_states(callbacks: Iterable[object]) -> dict[str, Any]:
    """Return the state of each callback that has one, by class name; a list of states for several of one class."""
    exported: dict[str, list[Any]] = {}
    for callback in callbacks:
        if is_exportable(callback):
            exported.setdefault(type(callback).__name__, []).append(callback.state())  # type: ignore[attr-defined]
    return {name: states[0] if len(states) == 1 else states for name, states in exported.items()}


def _rebuilt(callback: object, state: Any) -> object:
    """Return the callback that `state` describes. Raises CheckpointError if that is not a state of its class."""
    kind: Any = type(callback)
    try:
        return kind.from_state(state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"The checkpoint's callbacks.{kind.__name__} is not a state of that callback: {error!r}. Set "
            "restore_callback_states_from_checkpoint=False to continue without it."
        ) from error


def restore_states(
    callbacks: Iterable[object], exported: Mapping[str, Any], notices: Notices = HEXLOOPS
) -> list[object]:
    """Return the callbacks in their order, those with a state in `exported` rebuilt from it.

    Several of one class take their states in order. Warns of states without a callback.
    """
    left = {name: list(states) if isinstance(states, list) else [states] for name, states in exported.items()}
    restored = []
    for callback in callbacks:
        states = left.get(type(callback).__name__)
        restored.append(_rebuilt(callback, states.pop(0)) if states and is_exportable(callback) else callback)
    if missing := sorted(name for name, states in left.items() if states):
        notices.warn(
            "missing callback",
            f"The checkpoint contains the state of callbacks that this run does not have: {', '.join(missing)}; it is "
            "ignored. Add the callbacks to resume them.",
            stacklevel=2,
        )
    return restored
