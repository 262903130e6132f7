"""Metrics for Trackio: a database on this machine, a Space on the Hugging Face Hub, or a server of one's own."""

from __future__ import annotations

import logging
import os
import re
import secrets
from contextvars import ContextVar, Token
from typing import Any

from hexloop.adapters.logger.tracker import (
    ALL_MEDIA,
    SINGLE_VALUES,
    Tracker,
    curves_of,
    name_of_media,
    parameters_of,
    values_of,
)
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Media, Outcome, Record, RunInformation

VARIABLES = ("current_run", "current_project", "current_server", "current_space_id", "current_server_write_token")
"""What `trackio.log` and its neighbors read, in `trackio.context_vars`; each thread has its own."""

_logger = logging.getLogger("hexloop.loggers")


class Trackio(Tracker):
    """Logger adapter for trackio, with the names of transformers' callback.

    The arguments `project`, `trackio_space_id`, `trackio_bucket_id`, `trackio_static_space_id` and `hub_private_repo`
    are read from the run's configuration, and TRACKIO_DIR, TRACKIO_SPACE_ID and others by the library. A Space is
    frozen into a static one at the end, unless `trackio_static_space_id` is False. With `push_to_hub=True` a project
    without a Space becomes a static one at the end. Static Spaces are public, so none is made for a private repository.

    A new run never continues an older one of the same name; a resumed run does. Raises ConfigurationError if trackio is
    missing or too old, and from `start` if a Space is named and there is no login.
    """

    package = ("trackio", "trackio", "trackio", "0.21.1")
    media = ALL_MEDIA

    def __init__(self) -> None:
        super().__init__()
        self.page: str | None = None
        self._information = RunInformation("")
        self._step = 0
        self._context: dict[str, Any] = {}
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        import trackio

        self._information, self._step, self.page = run, run.step, None
        _check_login(run)
        tracked, _, name = (run.tracked_as or "").partition("/")
        started = trackio.init(**_arguments(run, name or None))
        if tracked and started.id != tracked:  # a newer run has the same name, or nothing of this one was stored
            started.id = tracked
        self._context = {each: getattr(trackio.context_vars, each).get() for each in VARIABLES}
        self.page = _page(self._context["current_space_id"])
        trackio.context_vars.current_run.set(None)  # otherwise another run of this thread would finish this one
        return started, True

    def _describe(self, run: RunInformation) -> str | None:
        return f"{self._run.id}/{self._run.name}"

    def write(self, record: Record) -> None:
        """Log the values at their step, with the step also as "train/global_step", but for those of the whole run."""
        curves = curves_of(record.values, without=SINGLE_VALUES)
        self._step = max(self._step, record.step)
        self._run.log({**curves, "train/global_step": record.step}, step=record.step)

    def write_media(self, media: Media) -> None:
        """Log it under its name at its step; a text as Markdown that shows it as it is."""
        self._step = max(self._step, media.step)
        self._run.log({name_of_media(media): _object_of(media), "train/global_step": media.step}, step=media.step)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        """Log the outcome, with an alert if the run has not finished."""
        import trackio

        run.log(values_of(outcome), step=self._step)
        if outcome.kind != "finished":
            level = trackio.AlertLevel.ERROR if outcome.kind == "failed" else trackio.AlertLevel.WARN
            run.alert(title=f"The run has {_PHRASES[outcome.kind]}", text=outcome.problem or None, level=level)

    def _close(self, run: Any, outcome: Outcome) -> None:
        """Wait until everything is stored, and make what is static."""
        run.finish()
        space = self._context["current_space_id"]
        if space or self._information.configuration.get("push_to_hub"):
            self._make_static(space)

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

    def _make_static(self, space: str | None) -> None:
        """Make a static copy of a Space, or of the project of this machine; a failure is only reported."""
        import trackio

        configuration, project = self._information.configuration, _project(self._information)
        wanted, private = configuration.get("trackio_static_space_id"), configuration.get("hub_private_repo")
        if wanted is False:
            return
        if private and not space:
            _logger.warning("trackio's static Spaces are public, so none is made for a private repository.")
            return
        try:
            if space:
                name = wanted or _static_name(project)
                made = trackio.freeze(space_id=space, project=project, new_space_id=name, private=private)
            else:
                made = trackio.sync(project=project, space_id=wanted, force=True, sdk="static")
        except Exception as error:
            action = f"freeze the Space {space}" if space else "put the run into a static Space"
            _logger.warning("trackio could not %s: %s", action, error)
        else:
            self.page = _page(made) or self.page


_PHRASES = {"failed": "failed", "stopped": "been stopped", "preempted": "been preempted"}


def _object_of(media: Media) -> Any:
    """Return a medium as trackio has it."""
    import trackio

    content, caption = media.content, media.caption or None
    if media.kind == "image":
        return trackio.Image(media.file, caption=caption)
    if media.kind == "audio":
        return trackio.Audio(media.file, caption=caption)
    if media.kind == "table":
        return trackio.Table(columns=content["columns"], data=content["rows"])
    if media.kind == "histogram":
        return trackio.Histogram(np_histogram=(content["counts"], content["edges"]))
    fence = "`" * (max(map(len, re.findall("`+", str(content["text"]))), default=2) + 1)
    return trackio.Markdown(f"{fence:`<3}\n{content['text']}\n{fence:`<3}")


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
