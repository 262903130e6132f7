"""The attributes of a Trainer whose class replaces the constructor and does not call it, such as trl's PPOTrainer.

Such a class sets the attributes that it needs, and usually its own `train`. The others get the constructor's values
when they are first read, as do those that a copy of a Trainer makes again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.callbacks.flow import all_callbacks
from hexloop.app.notices import notices_in_force
from hexloop.app.run.memory_metrics import memory_stages_for
from hexloop.app.wiring.adapters import Adapters, choose_adapters
from hexloop.app.wiring.data import default_collator
from hexloop.app.wiring.model import default_label_names
from hexloop.app.wiring.parts import KeptLoaders, PreparationTime
from hexloop.app.wiring.storage import WorkingFolder
from hexloop.domain.requests import Requests

NONE = (
    "model",
    "model_init",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "optimizer",
    "lr_scheduler",
    "optimizer_cls_and_kwargs",
    "compute_loss_func",
    "compute_metrics",
    "preprocess_logits_for_metrics",
    "ignore_keys_for_eval",
    "_session",
)
"""The attributes that are None if nothing was passed to the constructor."""


def _adapters(trainer: Any) -> Adapters:
    if trainer.args.world_size is None:  # trl's PPOConfig declares a field of this name, which its trainer sets later
        trainer.args.world_size = trainer.args.distributed_environment.world_size
    return choose_adapters(trainer.args, vars(trainer).get("_passed", {}), trainer._started_in)


def _handler(trainer: Any) -> CallbackHandler:
    listeners = all_callbacks(trainer.args, (), False)
    return CallbackHandler(listeners, trainer.model, trainer.processing_class, trainer.optimizer, trainer.lr_scheduler)


def _dispatcher(trainer: Any) -> EventDispatcher:
    return EventDispatcher(trainer.callback_handler, trainer.args, trainer.state, trainer.control)


OF_MODEL = ("is_model_parallel", "place_model_on_device", "model_accepts_loss_kwargs", "can_return_loss")
"""The attributes that depend on the model."""


def _of_model(name: str) -> Callable[[Any], Any]:
    def value(trainer: Any) -> Any:
        assigned = {each: vars(trainer)[each] for each in OF_MODEL if each in vars(trainer)}
        trainer.note_model()
        vars(trainer).update(assigned)
        return vars(trainer)[name]

    return value


MAKERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        **dict.fromkeys(NONE, lambda trainer: None),
        "_started_in": lambda trainer: WorkingFolder(),
        "adapters": _adapters,
        "model_wrapped": lambda trainer: trainer.model,
        "data_collator": lambda trainer: default_collator(trainer.processing_class),
        "label_names": lambda trainer: trainer.args.label_names or default_label_names(trainer.model, False),
        "main_input_name": lambda trainer: getattr(trainer.model, "main_input_name", "input_ids"),
        **{name: _of_model(name) for name in OF_MODEL},
        "control": lambda trainer: TrainerControl(),
        "state": lambda trainer: TrainerState(
            is_local_process_zero=trainer.is_local_process_zero(), is_world_process_zero=trainer.is_world_process_zero()
        ),
        "callback_handler": _handler,
        "_dispatcher": _dispatcher,
        "_notices": lambda trainer: notices_in_force(),
        "_memory": lambda trainer: memory_stages_for(trainer.args, trainer.adapters.device),
        "_requests": lambda trainer: Requests(),
        "_preparation": lambda trainer: PreparationTime(),
        "_kept_loaders": lambda trainer: KeptLoaders(),
    }
)
"""For each attribute that the constructor sets, the function that makes it."""


def made_late(trainer: Any, name: str) -> Any:
    """Return the value of one of these attributes, and set it. The Trainer has `args`."""
    value = MAKERS[name](trainer)
    setattr(trainer, name, value)
    return value
