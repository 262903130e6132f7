"""Drives a run: yields its events and calls the callbacks first; finds a batch size that fits into memory."""

from __future__ import annotations

import gc
import inspect
import json
import logging
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from copy import deepcopy
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from hexloop.app.run.checkpoints import callbacks_state, restore_callbacks
from hexloop.app.run.compatibility import likely_checkpoint
from hexloop.app.run.saving import STATE
from hexloop.app.run.session import RunHost, open_session
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import CheckpointError, CollectiveError, RunStateError
from hexloop.domain.events import AnyEvent, EpochEnded, StepEnded
from hexloop.domain.loop import train
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.ports.storage import Storage

Dispatch = Callable[[AnyEvent], None]
Events = Generator[AnyEvent, None, None]


def drive(host: RunHost, resume_from: str | bool | None, run_name: str | None = None) -> Events:
    """Yield the events of one run, which resumes from `resume_from`.

    run_name: the name of a run that starts again, with the model as it is; otherwise `model_init` rebuilds the model.
    """
    parts = host.parts()
    refuse_second_run(parts.run)
    collectives = parts.adapters.collectives
    host.memory.start("train")
    try:
        if run_name is None:
            host.renew_model()
        session = open_session(host, resume_from, run_name)
        parts = session.parts
        dispatch: Dispatch
        dispatch, take_global_state = parts.dispatcher.dispatch, session.global_state.take
        if parts.hooks.maybe_log_save_evaluate.overridden:
            dispatch = _with_overridden_boundary(parts, session.run.state, dispatch)
        with closing(train(session.run)) as events:
            for event in events:
                dispatch(event)
                yield event
                take_global_state()
    except BaseException as error:
        explained = collectives.explain(error)
        if explained is not error:
            raise explained from error
        if not isinstance(error, CollectiveError):
            collectives.tell_failure(f"{type(error).__name__}: {error}")
        raise
    finally:
        host.memory.abandon("train")


def refuse_second_run(run: Run[Any, Any] | None) -> None:
    """Raise RunStateError if a run of the Trainer is live."""
    if run is not None:
        raise RunStateError(
            "A run of this Trainer is live already; finish it, close its stream, or use another Trainer."
        )


def _with_overridden_boundary(parts: TrainerParts, state: RunState, dispatch: Dispatch) -> Dispatch:
    """Return a `dispatch` that also calls an overridden `_maybe_log_save_evaluate` after every step and epoch."""
    start, last = time.time(), StepEnded(0, (), None, True)
    method = parts.hooks.maybe_log_save_evaluate.method
    parameters = inspect.signature(method).parameters.values()
    takes_all = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    names = {each.name for each in parameters}

    def dispatch_and_call(event: AnyEvent) -> None:
        nonlocal last
        dispatch(event)
        if not isinstance(event, StepEnded | EpochEnded):
            return
        last = event if isinstance(event, StepEnded) else last
        values = {
            "tr_loss": sum(last.losses),  # type: ignore[arg-type]
            "grad_norm": last.gradient_norm,
            "model": parts.model_wrapped,
            "trial": None,
            "epoch": parts.state.epoch,
            "ignore_keys_for_eval": parts.ignore_keys_for_eval,
            "start_time": start,
            "learning_rate": state.learning_rate,
        }
        if takes_all:
            method(*values.values())
        else:
            method(**{name: value for name, value in values.items() if name in names})
        parts.control.set_due_actions([])

    return dispatch_and_call


# auto_find_batch_size

FACTOR = 0.9
"""The factor for the next batch size after running out of memory, as in transformers."""


def find_batch_size(host: RunHost, resume_from: str | bool | None) -> Events:
    """Yield the events of a run that starts again with a smaller batch each time the device runs out of memory.

    Each attempt starts from the same weights, callbacks and checkpoint; checkpoints that a failed attempt saved are not
    resumed. Raises RunStateError if not even a batch of one sample fits.
    """
    refuse_second_run(host.parts().run)
    host.renew_model()
    start, parts = StartState.of(host), host.parts()
    device, run_name = parts.adapters.device, str(parts.hooks.new_run_name())
    size = _saved_batch_size(parts.adapters.storage, resume_from) or parts.train_batch_size
    del parts  # it refers to the model
    while True:
        host.set_train_batch_size(size)
        try:
            yield from drive(host, resume_from, run_name)
            return
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            size = _smaller(size, device.name, error)
        start.restore(host)


def _smaller(size: int, device: str, error: Exception) -> int:
    smaller = int(size * FACTOR)
    if smaller == 0:
        raise RunStateError(
            f"{device} has not enough memory for a batch of one sample, so auto_find_batch_size=True finds no size; "
            "train a smaller model, in fewer bits, or with activation_checkpointing=True."
        ) from error
    logging.getLogger("hexloop").warning(
        "%s has not enough memory for batches of %d samples; the run starts again with batches of %d.",
        device,
        size,
        smaller,
    )
    return smaller


def _saved_batch_size(own: Storage, resume_from: str | bool | None) -> int | None:
    """Return the batch size that the run had found when it wrote the checkpoint; None if it is not known."""
    if not resume_from:
        return None
    with suppress(CheckpointError, OSError, ValueError):
        storage, name = likely_checkpoint(own, resume_from)
        size = json.loads(b"".join(storage.read(f"{name}/{STATE}"))).get("train_batch_size") if name else None
        return size if isinstance(size, int) and size > 0 else None
    return None


@frozen
class StartState:
    """The state before a run: weights and buffers in host memory, the user's optimizer and schedule, callbacks."""

    tensors: dict[str, Tensor]
    optimizer: Any
    lr_scheduler: Any
    callbacks: dict[str, Any]

    @classmethod
    def of(cls, host: RunHost) -> StartState:
        """Return the current state, without what an earlier run made."""
        host.forget_run()
        parts = host.parts()
        return cls(
            {name: tensor.detach().to("cpu", copy=True) for name, tensor in _tensors(parts.model).items()},
            None if parts.optimizer is None else deepcopy(parts.optimizer.state_dict()),
            None if parts.lr_scheduler is None else deepcopy(parts.lr_scheduler.state_dict()),
            deepcopy(callbacks_state(parts.callback_handler, parts.control)),
        )

    def restore(self, host: RunHost) -> None:
        """Restore this state, and release the memory of the run."""
        host.forget_run()
        parts = host.parts()
        with torch.no_grad():
            for name, tensor in _tensors(parts.model).items():
                tensor.copy_(self.tensors[name])
        parts.model.zero_grad(set_to_none=True)
        if self.optimizer is not None:
            parts.optimizer.load_state_dict(deepcopy(self.optimizer))
        if self.lr_scheduler is not None:
            parts.lr_scheduler.load_state_dict(deepcopy(self.lr_scheduler))
        restore_callbacks(parts.callback_handler, parts.control, deepcopy(self.callbacks))
        gc.collect()
        parts.adapters.device.release_memory()


def _tensors(model: Any) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
