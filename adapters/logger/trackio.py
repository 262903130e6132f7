"""Metrics for Trackio: a database on this machine, a Space on the Hugging Face Hub, or a server of one's own."""

from __future__ import annotations

import logging
import os
import re
import secrets
from contextvars import ContextVar, Token
from typing import Any

from hexloop.adapters.logger.names import SINGLE_VALUES, grouped, parameters_of
from hexloop.adapters.logger.packages import require
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation

VARIABLES = ("current_run", "current_project", "current_server", "current_space_id", "current_server_write_token")
"""What `trackio.log` and its neighbors read, in `trackio.context_vars`; each thread has its own."""

_logger = logging.getLogger("hexloop.loggers")


class Trackio:
    """Logger adapter for trackio, with the names of transformers' callback.

    The arguments `project`, `trackio_space_id`, `trackio_bucket_id`, `trackio_static_space_id` and `hub_private_repo`
    are read from the run's configuration, and TRACKIO_DIR, TRACKIO_SPACE_ID and others by the library. A Space is
    frozen into a static one at the end, unless `trackio_static_space_id` is False. With `push_to_hub=True` a project
    without a Space becomes a static one at the end. Static Spaces are public, so none is made for a private repository.

    A new run never continues an older one of the same name; a resumed run does. Raises ConfigurationError if trackio is
    missing or too old, and from `start` if a Space is named and there is no login.
    """

    def __init__(self) -> None:
        require("trackio", "trackio", "trackio", at_least="0.21.1")
        self.page: str | None = None
        self._run: Any = None
        self._information = RunInformation("")
        self._last_step = 0
        self._context: dict[str, Any] = {}
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def start(self, run: RunInformation) -> str | None:
        """Start a run, or continue that of `run.tracked_as`; return its id and name."""
        import trackio

        self.finish()
        self._information, self._last_step, self.page = run, run.step, None
        _check_login(run)
        tracked, _, name = (run.tracked_as or "").partition("/")
        started = trackio.init(**_arguments(run, name or None))
        if tracked and started.id != tracked:  # a newer run has the same name, or nothing of this one was stored
            started.id = tracked
        self._run = started
        self._context = {each: getattr(trackio.context_vars, each).get() for each in VARIABLES}
        self.page = _page(self._context["current_space_id"])
        trackio.context_vars.current_run.set(None)  # otherwise another run of this thread would finish this one
        return f"{started.id}/{started.name}"

    def write(self, record: Record) -> None:
        """Log the values at their step, with the step also as "train/global_step", but for those of the whole run."""
        curves = {
            grouped(name): value
            for name, value in record.values.items()
            if value is not None and name not in SINGLE_VALUES
        }
        self._last_step = max(self._last_step, record.step)
        self._run.log({**curves, "train/global_step": record.step}, step=record.step)

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Log the outcome, with an alert if the run has not finished, and wait until everything is stored."""
        run, self._run = self._run, None
        if run is None:
            return
        import trackio

        values = {"hexloop/outcome": outcome.kind, **({"hexloop/problem": outcome.problem} if outcome.problem else {})}
        run.log(values, step=self._last_step)
        if outcome.kind != "finished":
            level = trackio.AlertLevel.ERROR if outcome.kind == "failed" else trackio.AlertLevel.WARN
            run.alert(title=f"The run has {_PHRASES[outcome.kind]}", text=outcome.problem or None, level=level)
        run.finish()
        if self._context["current_space_id"]:
            self._freeze(self._context["current_space_id"])
        elif self._information.configuration.get("push_to_hub"):
            self._make_static()

    def enter_thread(self) -> None:
        """Make `trackio.log` of this thread log to the run."""
        import trackio

        for name, value in self._context.items():
            variable = getattr(trackio.context_vars, name)
            self._tokens.append((variable, variable.set(value)))

    def leave_thread(self) -> None:
        """Give this thread the run back that it had before."""
        for variable, token in self._tokens:
            variable.reset(token)
        self._tokens.clear()

    @property
    def card_tags(self) -> tuple[str, ...]:
        """The tags of model cards: trackio itself, and the page of the run."""
        return ("trackio", f"trackio:{self.page}") if self.page else ()

    def _make_static(self) -> None:
        """Put the project of this machine into a static Space; a failure is only reported, because it stays here."""
        import trackio

        configuration = self._information.configuration
        if configuration.get("trackio_static_space_id") is False:
            return
        if configuration.get("hub_private_repo"):
            _logger.warning("trackio's static Spaces are public, so none is made for a private repository.")
            return
        try:
            space = trackio.sync(
                project=_project(self._information),
                space_id=configuration.get("trackio_static_space_id"),
                force=True,
                sdk="static",
            )
        except Exception as error:
            _logger.warning("trackio could not put the run into a static Space: %s", error)
        else:
            self.page = _page(space)

    def _freeze(self, space: str) -> None:
        """Make the static copy of a Space; a failure is only reported, because the Space has everything."""
        import trackio

        configuration = self._information.configuration
        wanted = configuration.get("trackio_static_space_id")
        if wanted is False:
            return
        project = _project(self._information)
        try:
            frozen = trackio.freeze(
                space_id=space,
                project=project,
                new_space_id=wanted or _static_name(project),
                private=configuration.get("hub_private_repo"),
            )
        except Exception as error:
            _logger.warning("trackio could not freeze the Space %s: %s", space, error)
        else:
            self.page = _page(frozen) or self.page


_PHRASES = {"failed": "failed", "stopped": "been stopped", "preempted": "been preempted"}


def _page(space: object) -> str | None:
    return f"https://huggingface.co/spaces/{space}" if space else None


def _project(run: RunInformation) -> str:
    return str(run.configuration.get("project") or "huggingface")


def _arguments(run: RunInformation, tracked_name: str | None) -> dict[str, object]:
    """Return the arguments of trackio.init that are set; names of parameters cannot start with "_"."""
    configuration = run.configuration
    parameters = {**parameters_of(run), **run.trial_parameters}
    if run.parameters is not None:
        parameters["model/num_parameters"] = run.parameters
    arguments = {
        "project": _project(run),
        "name": tracked_name or run.trial or run.chosen_name,
        "group": run.group if run.trial is not None else None,
        "space_id": configuration.get("trackio_space_id"),
        "bucket_id": configuration.get("trackio_bucket_id"),
        "private": configuration.get("hub_private_repo"),
        "resume": "allow" if tracked_name is not None else "never",
        "config": {name.lstrip("_") or "_": value for name, value in parameters.items()},
    }
    return {name: value for name, value in arguments.items() if value is not None}


def _check_login(run: RunInformation) -> None:
    space = run.configuration.get("trackio_space_id") or os.environ.get("TRACKIO_SPACE_ID")
    if space is None:
        return
    from huggingface_hub import get_token

    if get_token() is None:
        raise ConfigurationError(
            f"Logging to the Space {space} by trackio requires a token of the Hugging Face Hub: set HF_TOKEN or run "
            "`hf auth login`. Without trackio_space_id and TRACKIO_SPACE_ID, it logs to this machine."
        )


def _static_name(project: str) -> str:
    """Return a name that the Hub accepts for a static Space, with a random end as in transformers."""
    name = re.sub(r"-+", "-", re.sub(r"[^a-z0-9._-]", "-", project.strip().lower())).strip("-_.")
    return f"{(name or 'trackio-project')[:81].rstrip('-')}-static-{secrets.token_hex(3)}"
