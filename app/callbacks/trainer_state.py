"""Where a run stands, as callbacks see it: the reference library's names for what the domain keeps."""

# ruff: noqa: RUF009 - a dataclass takes a descriptor as a field's default, and making one at import is the idea

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from hexloop.app.callbacks.run_fields import (
    Follower,
    RunField,
    callbacks_field,
    checkpoint_field,
    epoch_field,
    epochs_field,
    history_field,
    rhythm_field,
    state_field,
    total_steps_field,
)


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
