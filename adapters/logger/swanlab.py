"""Metrics for SwanLab."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from hexloop.adapters.logger.tracker import SINGLE_VALUES, Tracker, grouped, name_of_media, parameters_of, values_of
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Media, MediaKind, Outcome, Record, RunInformation

STATES = {"finished": "success", "failed": "crashed", "stopped": "aborted", "preempted": "aborted"}

_logger = logging.getLogger("hexloop.loggers")


class SwanLab(Tracker):
    """Logger adapter for swanlab, with the variables and names of transformers' callback.

    Variables: SWANLAB_PROJECT, SWANLAB_MODE ("online", which is also called "cloud", "local", "offline", "disabled"),
    SWANLAB_LOG_DIR, SWANLAB_RUN_ID, SWANLAB_RESUME, and those of the library, such as SWANLAB_API_KEY. A set
    SWANLAB_LOG_MODEL is reported, because swanlab takes no models.

    If the user has started a run, that one is used and stays open. Raises ConfigurationError if swanlab is missing or
    too old, and from `start` if SWANLAB_MODE asks for the server without a key, or if another run of hexloop's is
    active, because swanlab has one run of a process at a time.
    """

    package = ("swanlab", "swanlab", "swanlab", "0.10")
    media: frozenset[MediaKind] = frozenset({"text", "image", "audio"})

    def __init__(self) -> None:
        super().__init__()
        if os.environ.get("SWANLAB_LOG_MODEL"):
            _logger.warning("SWANLAB_LOG_MODEL has no effect, because swanlab does not take models.")

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        import swanlab

        if not swanlab.has_run():
            started = _started(swanlab, run)
            started.is_of_hexloop = True
            return started, True
        active = swanlab.get_run()
        if getattr(active, "is_of_hexloop", False):
            raise ConfigurationError(
                f"swanlab tracks one run of a process at a time, and run {active.id} is active; finish it first, or "
                "start the runs in processes of their own."
            )
        return active, False

    def _describe(self, run: RunInformation) -> str | None:
        self._run.config.update({"FRAMEWORK": "hexloop", **_parameters(run)})
        return cast(str, self._run.id)

    def write(self, record: Record) -> None:
        """Log the values at their step, and the step also as "train/global_step"; swanlab drops repeated points."""
        from swanlab import Text

        values: dict[str, object] = {
            _name(name): Text(value) if isinstance(value, str) else value
            for name, value in record.values.items()
            if value is not None
        }
        self._run.log({**values, "train/global_step": record.step}, step=record.step)

    def write_media(self, media: Media) -> None:
        """Log it under its name at its step. Tables and histograms need a further package in swanlab."""
        import swanlab

        content, caption = media.content, media.caption or None
        if media.kind == "text":
            made = swanlab.Text(content["text"], caption=caption)
        elif media.kind == "image":
            made = swanlab.Image(media.file, caption=caption)
        else:
            made = swanlab.Audio(media.file, sample_rate=content["rate"], caption=caption)
        self._run.log({name_of_media(media): made}, step=media.step)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        run.config.update(values_of(outcome))

    def _close(self, run: Any, outcome: Outcome) -> None:
        error = None if outcome.kind == "finished" else outcome.problem or outcome.kind
        run.finish(state=STATES[outcome.kind], error=error)


def _name(name: str) -> str:
    return f"single_value/{name}" if name in SINGLE_VALUES else grouped(name)


def _parameters(run: RunInformation) -> dict[str, object]:
    parameters = parameters_of(run)
    if run.parameters is not None:
        parameters["model_num_parameters"] = run.parameters
        if run.adapter_configuration:
            parameters["peft_model_trainable_params"] = run.trainable_parameters
            parameters["peft_model_all_param"] = run.parameters
    return {**parameters, **run.trial_parameters}


def _started(swanlab: Any, run: RunInformation) -> Any:
    """Start a run without letting swanlab ask on the terminal."""
    names = [name for name in (run.chosen_name, run.trial) if name is not None]
    identity = os.environ.get("SWANLAB_RUN_ID") or run.tracked_as
    is_resumed = identity is not None or bool(run.configuration.get("resume_from_checkpoint"))
    arguments: dict[str, object] = {
        "project": os.environ.get("SWANLAB_PROJECT"),
        "name": "-".join(names) or None,
        "group": run.group if run.trial is not None else None,
        "id": identity,
        "resume": os.environ.get("SWANLAB_RESUME") or ("allow" if is_resumed else None),
    }
    given = {name: value for name, value in arguments.items() if value is not None}
    try:
        with _hidden("SWANLAB_PROJECT"):
            settings = swanlab.Settings(interactive=False)
            return swanlab.init(**given, settings=settings, callbacks=[_flushing_callback(swanlab)])
    except RuntimeError as error:
        if "no API key" not in str(error):
            raise
        raise ConfigurationError(
            "Logging to swanlab requires a key: set SWANLAB_API_KEY or run `swanlab login`. SWANLAB_MODE=offline logs "
            "to files, which `swanlab sync` uploads later."
        ) from error


def _flushing_callback(swanlab: Any) -> Any:
    """Return a callback that flushes the run's file: swanlab does so only at the end, so a killed run loses all."""

    class Flushing(swanlab.Callback):  # type: ignore[misc]
        name = "hexloop"

        def on_scalar_flush(self, scalar_records: object, *args: object, **options: object) -> None:
            """Values were written to the buffer of the file."""
            store = getattr(getattr(swanlab.get_run(), "_core", None), "_store", None)
            if store is not None:
                store.ensure_flushed()

    return Flushing()


@contextmanager
def _hidden(variable: str) -> Iterator[None]:
    """Take a variable out of the environment: swanlab 0.10 fails if SWANLAB_PROJECT is a name, as it is documented."""
    value = os.environ.pop(variable, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[variable] = value
