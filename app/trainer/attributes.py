"""What every part of a Trainer reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hexloop.app.accelerator import Accelerator
from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.training.memory_metrics import MemoryStages
from hexloop.app.training.outcome import Outcome
from hexloop.app.training.session import Session
from hexloop.app.wiring import Adapters
from hexloop.domain.fail_safe import LoggerGroup
from hexloop.domain.requests import Requests


class TrainerAttributes:
    """The attributes of a Trainer, which its parts share and subclasses and callbacks may read."""

    args: TrainingArguments
    adapters: Adapters
    _memory: MemoryStages
    model: Any
    model_wrapped: Any
    """The model as the engine of the run prepared it; the model itself where nothing wraps it."""
    model_init: Callable[..., Any] | None
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    data_collator: Callable[[list[Any]], Any]
    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[type[Any], dict[str, Any]] | None
    label_names: list[str]
    main_input_name: str
    is_model_parallel: bool
    """Whether the model is spread over several devices of this process."""

    place_model_on_device: bool
    """Whether the Trainer moves the model; a subclass may write it after the constructor."""

    model_accepts_loss_kwargs: bool
    """Whether forward takes the number of items; a subclass may write it after the constructor."""

    can_return_loss: bool
    """Whether forward gives a loss without labels."""

    @property
    def accelerator(self) -> Accelerator:
        """What overridden hooks ask for: backward, unwrap_model, device and the like, answered by the adapters."""
        last = getattr(self._session.learner, "last_of_window", True) if self._session is not None else True
        return Accelerator(self.adapters, last)

    hp_name: Callable[[Any], str] | None = None
    """What names the trials of a search."""

    ignore_keys_for_eval: list[str] | None
    _asks_for_each: bool = False
    """Whether an overridden `evaluate` is being asked for each of several data sets."""

    control: TrainerControl
    state: TrainerState
    callback_handler: CallbackHandler
    _dispatcher: EventDispatcher
    _requests: Requests

    _optimizer_of_run: Any = None
    _scheduler_of_run: Any = None
    """What the last run made for itself: the next one makes it anew."""

    _standard_optimizer: Any = None
    """The optimizer that the standard `create_optimizer` made."""

    _asked_accumulation: int | None = None
    """The `gradient_accumulation_steps` that the user wrote, where a run that is live has others in force."""

    _session: Session | None
    """The run that is live; None between runs."""

    model_preparation_time: float | None = None
    """Seconds that an evaluation before any run took to prepare the model; a metric of evaluations where not None."""

    _watchers: LoggerGroup | None = None
    """The loggers of the run that is live."""

    outcome: Outcome | None = None
    """How the last run ended; None while one is live, and after one that an error ended."""
