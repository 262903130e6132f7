"""Drives a run: yields its events, and calls the callbacks first."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

from hexloop.app.training.boundaries import Dispatch, asking_at_boundaries
from hexloop.app.training.session import RunHost, open_session
from hexloop.domain.errors import CollectiveError, RunStateError
from hexloop.domain.events import AnyEvent
from hexloop.domain.loop import train
from hexloop.domain.run import Run

Events = Generator[AnyEvent, None, None]


def refuse_second_run(run: Run[Any, Any] | None) -> None:
    """Raise RunStateError if a run of the Trainer is live."""
    if run is not None:
        raise RunStateError(
            "A run of this Trainer is live already; finish it, close its stream, or use another Trainer."
        )


def follow(host: RunHost, resume_from: str | bool | None, run_name: str | None = None) -> Events:
    """Yield the events of one run, which resumes from `resume_from`.

    run_name: the name of a run that starts again, with the model as it is; otherwise `model_init` rebuilds the model.
    """
    parts = host.parts()
    refuse_second_run(parts.run)
    collectives = parts.adapters.collectives
    host.memory.begin("train")
    try:
        if run_name is None:
            host.renew_model()
        session = open_session(host, resume_from, run_name)
        parts = session.parts
        dispatch: Dispatch
        dispatch, take_control = parts.dispatcher.dispatch, session.control.take
        if parts.hooks.maybe_log_save_evaluate.overridden:
            dispatch = asking_at_boundaries(parts, session.run.state, dispatch)
        with closing(train(session.run)) as events:
            for event in events:
                dispatch(event)
                yield event
                take_control()
    except BaseException as error:
        explained = collectives.explain(error)
        if explained is not error:
            raise explained from error
        if not isinstance(error, CollectiveError):
            collectives.tell_failure(f"{type(error).__name__}: {error}")
        raise
    finally:
        host.memory.abandon("train")
