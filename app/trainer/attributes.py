"""Attributes of transformers' Trainer that subclasses and libraries read, and some that they assign."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar, overload

from hexloop.app.engines import is_requested
from hexloop.app.run.memory_metrics import MemoryTracker
from hexloop.app.trainer.base import TrainerBase
from hexloop.app.wiring.evaluation import standard_loss
from hexloop.app.wiring.parts import TrainerParts

Value = TypeVar("Value")


class computed(Generic[Value]):  # noqa: N801  # used like `property`
    """An attribute that is computed, unless a subclass with its own training loop has assigned a value to it."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, owner: None, kind: type[Any]) -> computed[Value]: ...

    @overload
    def __get__(self, owner: object, kind: type[Any] | None = None) -> Value: ...

    def __get__(self, owner: object, kind: type[Any] | None = None) -> computed[Value] | Value:
        return self if owner is None else self._compute(owner)


class TrainerAttributes(TrainerBase):
    """Attributes with the meaning that they have in transformers, also where a value is assigned."""

    hp_search_backend: Any = None
    """The back end of a hyperparameter search; None outside of one."""

    current_flos: float = 0.0
    """Operations since the last `store_flos`; always 0, because `state.total_flos` contains them."""

    _own_gather_function: Callable[..., Any] | None = None

    # Paths

    @property
    def _folder(self) -> str:
        """The absolute path or the URL of the output folder, wherever the program is now."""
        return self._started_in.locate(str(self.args.output_dir))

    def _received(self, path: str | os.PathLike[str] | None) -> str:
        """Return a path that a method received, by default the output folder.

        It is spelled as the user wrote it while it leads to the same place, and else absolute. `output_dir`, as it is
        written, and what begins with it, mean the output folder also after the program has changed its working folder.
        """
        folder = str(self.args.output_dir)
        return self._started_in.receive(os.fspath(path) if path else folder, folder)

    @property
    def accelerator(self) -> Any:
        """The run with the interface of accelerate's Accelerator."""
        raise NotImplementedError

    def _collect_parts(self) -> TrainerParts:
        raise NotImplementedError

    # Callbacks

    def add_callback(self, callback: Any) -> None:
        """Add a callback; a class is instantiated."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove and return a callback, or the first of a class; return None if there is none.

        transformers' class of a tracker, such as WandbCallback, stands for hexloop's.
        """
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback, or the first of a class; transformers' class of a tracker stands for hexloop's."""
        self.callback_handler.remove_callback(callback)

    # Engines

    @computed
    def is_deepspeed_enabled(self) -> bool:
        """Whether the run trains with DeepSpeed."""
        return is_requested("deepspeed", self.args)

    @computed
    def is_fsdp_enabled(self) -> bool:
        """Whether the run trains with FSDP."""
        return self.adapters.parallelism.capabilities.sharded and not self.is_deepspeed_enabled

    @computed
    def is_fsdp_xla_enabled(self) -> bool:
        """False: there is no FSDP on XLA."""
        return False

    is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = is_fsdp_xla_enabled

    @computed
    def is_distributed_loading_by_transformers(self) -> bool:
        """False: models that transformers shards while it loads them are refused."""
        return False

    @computed
    def deepspeed(self) -> Any:
        """The engine of DeepSpeed, None if the run does not train with it."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.model_wrapped is not self.model else None

    # What a run does

    @property
    def gather_function(self) -> Callable[..., Any]:
        """How overridden evaluation loops gather tensors: `accelerator.gather_for_metrics`, or what was assigned.

        The standard evaluation loop gathers by itself, each row once. With `reproduce`, it keeps repeated rows as long
        as `accelerator.gather` is assigned.
        """
        if self._own_gather_function is not None:
            return self._own_gather_function
        return partial(self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object)

    @gather_function.setter
    def gather_function(self, function: Callable[..., Any] | None) -> None:
        self._own_gather_function = function

    @property
    def neftune_noise_alpha(self) -> float | None:
        """The strength of the noise on embeddings, the same as in the arguments; the next run uses an assigned one."""
        return self.args.neftune_noise_alpha

    @neftune_noise_alpha.setter
    def neftune_noise_alpha(self, alpha: float | None) -> None:
        self.args.neftune_noise_alpha = alpha

    @computed
    def _memory_tracker(self) -> MemoryTracker:
        """Starts and ends the memory metrics of `train`, `evaluate` and `predict`, for overrides of these methods."""
        return MemoryTracker(self._memory)

    @property
    def _created_lr_scheduler(self) -> bool:
        """Whether a run made the schedule, so that the next run makes a new one; an overridden method may assign it."""
        return self.lr_scheduler is not None and self.lr_scheduler is self._scheduler_of_run

    @_created_lr_scheduler.setter
    def _created_lr_scheduler(self, created: bool) -> None:
        self._scheduler_of_run = self.lr_scheduler if created else None

    # Logs

    @property
    def _globalstep_last_logged(self) -> int:
        """The step of the last log of a loss; an overridden `_maybe_log_save_evaluate` may assign it."""
        return self.state.run_state.logged_step if self._session is None else self._session.run.state.logged_step

    @_globalstep_last_logged.setter
    def _globalstep_last_logged(self, step: int) -> None:
        if self._session is not None:
            self._session.run.state.logged_step = step

    @property
    def _total_loss_scalar(self) -> float:
        """The sum of the losses of all logged steps of the live or last run; an override that logs may add to it."""
        return float(self.state.run_state.loss_total if self._session is None else self._session.run.state.loss_total)

    @_total_loss_scalar.setter
    def _total_loss_scalar(self, total: float) -> None:
        if self._session is not None:
            self._session.run.losses.drain()  # the assigned sum contains them
            self._session.run.state.loss_total = float(total)

    @computed
    def _initial_global_step(self) -> int:
        """The step at which the live run started."""
        return 0 if self._session is None else int(self._session.run.start.step)

    @computed
    def _initial_num_input_tokens_seen(self) -> int:
        """The input tokens at which the live run started."""
        return 0 if self._session is None else int(self._session.run.start.tokens)

    @computed
    def _loss_shifts_labels(self) -> bool:
        """Whether the loss compares each position with the next label."""
        return standard_loss(self._collect_parts()).shifted


def folder_of(trainer: TrainerAttributes) -> str:
    """Return the absolute path or the URL of a Trainer's output folder."""
    return trainer._folder
