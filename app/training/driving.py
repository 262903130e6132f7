"""Driving a Trainer's run: its events, told to the callbacks on their way to whoever iterates."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import TYPE_CHECKING

from hexloop.app.training.boundaries import Dispatch, asking_at_boundaries
from hexloop.app.training.hooks import is_overridden
from hexloop.app.training.live import seeded
from hexloop.app.training.session import open_session
from hexloop.domain.errors import CollectiveError
from hexloop.domain.events import AnyEvent
from hexloop.domain.loop import train

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

Events = Generator[AnyEvent, None, None]


def follow(trainer: Trainer, resume_from: str | bool | None, run_name: str | None = None) -> Events:
    """One run, which goes on from `resume_from`, of the model that `model_init` makes where there is one.

    A run that is called `run_name` begins again, and takes the model that the trainer has.
    """
    trainer.refuse_second_run()
    trainer._memory.begin("train")
    try:
        if run_name is None:
            renew_model(trainer)
        session = open_session(trainer, resume_from, run_name)
        dispatch: Dispatch
        dispatch, take_control = trainer._dispatcher.dispatch, session.control.take
        if is_overridden(trainer, "_maybe_log_save_evaluate"):
            dispatch = asking_at_boundaries(trainer, session, dispatch)
        with closing(train(session.run)) as events:
            for event in events:
                dispatch(event)
                yield event
                take_control()
    except BaseException as error:
        told = trainer.adapters.collectives.explain(error)
        if told is not error:
            raise told from error
        if not isinstance(error, CollectiveError):
            trainer.adapters.collectives.tell_failure(f"{type(error).__name__}: {error}")
        raise
    finally:
        trainer._memory.abandon("train")


def renew_model(trainer: Trainer) -> None:
    """Make the model anew where a `model_init` says how, and the one that is there was trained."""
    if trainer.model_init is not None and trainer.state.global_step > 0:
        with seeded(trainer.adapters.device, trainer.args.seed):
            trainer.model = trainer.model_wrapped = trainer.call_model_init()
        trainer.optimizer = trainer.lr_scheduler = None  # also one that the user set: it holds the old model
