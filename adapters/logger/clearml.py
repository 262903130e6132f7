"""Metrics, parameters and models for ClearML."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections import Counter
from io import StringIO
from typing import Any, ClassVar

from hexloop.adapters.logger.tracker import ALL_MEDIA, SINGLE_VALUES, Models, Tracker, flat, grouped, is_true
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Media, Outcome, Record, RunInformation, SavedModel

SECTION = "Transformers"
MODEL_SECTION = "Model Configuration"
IGNORED_ARGUMENTS = "_ignore_hparams_ui_overrides_"
IGNORED_MODEL = "_ignore_model_config_ui_overrides_"
SINGLE = (*SINGLE_VALUES, "epoch")

_logger = logging.getLogger("hexloop.loggers")


class ClearML(Tracker):
    """Logger adapter for clearml, with the variables and names of transformers' callback.

    Variables: CLEARML_PROJECT (by default "HuggingFace Transformers"), CLEARML_TASK (by default the name of the trial
    or of the run, or "Trainer"), CLEARML_LOG_MODEL (whether checkpoints are uploaded; by default only in tasks that
    the adapter creates), and those of the library, such as CLEARML_OFFLINE_MODE and CLEARML_API_ACCESS_KEY.

    If the user has started a task, that one is used and stays open; a second run in it has names that end in "_2".
    Raises ConfigurationError if clearml is missing or too old, and from `start` if no server is configured.
    """

    package = ("clearml", "clearml", "clearml", "1.16")
    media = ALL_MEDIA

    _runs: ClassVar[Counter[str]] = Counter()
    """How many runs of this process each task has, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self._suffix = ""
        self._said: set[str] = set()
        self._saved: list[Any] = []
        self._last_saved = -1
        self._most_models: int | None = None

    @property
    def models(self) -> Models:
        """Whether checkpoints are uploaded."""
        is_own = self._is_own if self._run is not None else _users_task() is None
        return "checkpoints" if is_true(os.environ.get("CLEARML_LOG_MODEL", "TRUE" if is_own else "")) else "none"

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        existing = _users_task()
        return (_new_task(run), True) if existing is None else (existing, False)

    def _describe(self, run: RunInformation) -> str | None:
        identity = str(self._run.id)
        self._runs[identity] += 1
        number = 1 if self._is_own else self._runs[identity]
        self._suffix = "" if number == 1 else f"_{number}"
        self._saved, self._last_saved = [], -1
        limit = run.configuration.get("save_total_limit")
        self._most_models = limit if isinstance(limit, int) and limit > 0 else None
        self._log_parameters(run, number)
        return identity

    def write(self, record: Record) -> None:
        """Report numbers at their step, and those of the whole run and the epoch as single values.

        What is not finite, or a text, goes to the log of the task: the library would report 0 instead.
        """
        logger = self._run.get_logger()
        for name, value in record.values.items():
            if value is None:
                continue
            if isinstance(value, str) or not math.isfinite(value):
                self._say_once(name, value)
                logger.report_text(f"step {record.step}: {name} = {value}", print_console=False)
            elif name in SINGLE:
                logger.report_single_value(name=name + self._suffix, value=value)
            else:
                title, _, series = grouped(name).partition("/")
                logger.report_scalar(title + self._suffix, series, float(value), record.step)

    def write_media(self, media: Media) -> None:
        """Report it under its name, as a series for each of several that were logged together."""
        logger, title, series = self._run.get_logger(), media.name + self._suffix, str(media.index)
        content, step = media.content, media.step
        if media.kind == "text":
            logger.report_media(title, series, step, stream=StringIO(content["text"]), file_extension=".txt")
        elif media.kind == "table":
            logger.report_table(title, series, step, table_plot=[content["columns"], *content["rows"]])
        elif media.kind == "image":
            logger.report_image(title, series, step, local_path=media.file)
        elif media.kind == "audio":
            logger.report_media(title, series, step, local_path=media.file)
        else:
            labels = [f"{edge:.4g}" for edge in content["edges"][:-1]]
            logger.report_histogram(title, series, content["counts"], step, xlabels=labels)

    def save(self, model: SavedModel) -> None:
        """Upload a folder as an output model, and remove the oldest ones beyond `save_total_limit`.

        The final model is left out if the checkpoint of its step was uploaded. The library cannot save output models in
        its offline mode, so there the folder is an artifact of the task.
        """
        if model.final and model.step == self._last_saved:
            return
        from clearml import OutputModel, Task

        self._last_saved = model.step
        name = model.name + self._suffix
        if Task.is_offline():
            self._run.upload_artifact(name, artifact_object=model.folder, wait_on_upload=True)
            return
        output = OutputModel(task=self._run, name=name)
        output.connect(task=self._run, name=name)
        output.update_weights_package(
            weights_path=model.folder, target_filename=model.name, iteration=model.step, auto_delete_file=False
        )
        self._saved.append(output)
        while self._most_models is not None and len(self._saved) > self._most_models:
            self._remove(self._saved.pop(0))

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        section = f"hexloop{self._suffix}"
        run.update_parameters({f"{section}/outcome": outcome.kind, f"{section}/problem": outcome.problem})

    def _close(self, run: Any, outcome: Outcome) -> None:
        """Close the task with the status that fits the outcome."""
        identity = run.id
        run.close()
        _mark(identity, outcome)

    def _log_parameters(self, run: RunInformation, number: int) -> None:
        section = SECTION + self._suffix
        arguments = {f"{section}/{name}": _plain(value) for name, value in flat(run.configuration).items()}
        self._warn_of_overrides(section)
        self._run.update_parameters({**arguments, f"{section}/{IGNORED_ARGUMENTS}": True})
        if run.trial_parameters:
            trial = {f"Trial{self._suffix}/{name}": _plain(value) for name, value in run.trial_parameters.items()}
            self._run.update_parameters({**trial, f"Trial{self._suffix}/name": run.trial})
        if run.model_configuration:
            self._run.update_parameters({f"{section}/{IGNORED_MODEL}": True})
            self._run.set_configuration_object(
                name=MODEL_SECTION + self._suffix,
                config_dict=json.loads(json.dumps(dict(run.model_configuration), default=str)),
                description=f"The configuration of model number {number}.",
            )

    def _warn_of_overrides(self, section: str) -> None:
        """Say that changes from ClearML's pages have no effect, where the user asks for them."""
        from clearml import Task

        if Task.running_locally():
            return
        for switch in (IGNORED_ARGUMENTS, IGNORED_MODEL):
            if not self._run.get_parameter(f"{section}/{switch}", default=True, cast=True):
                _logger.warning(
                    "%s/%s is off in ClearML's task, but a run of hexloop cannot take arguments from there.",
                    *(section, switch),
                )

    def _say_once(self, name: str, value: object) -> None:
        if name not in self._said:
            self._said.add(name)
            _logger.warning("ClearML has curves of finite numbers only; %s=%r is in the log of its task.", name, value)

    def _remove(self, output: Any) -> None:
        from clearml import Model

        try:
            Model.remove(output.id, delete_weights_file=True, force=True, raise_on_errors=True)
        except Exception as error:
            _logger.warning(
                "ClearML did not remove the model %s, which is beyond save_total_limit: %s", output.name, error
            )


def _users_task() -> Any:
    """Return the task that the user has started in this process, or None; one that runs remotely does not count."""
    if "clearml" not in sys.modules:  # then there is none, and no import is needed
        return None
    from clearml import Task

    return Task.current_task() if Task.running_locally() else None


def _new_task(run: RunInformation) -> Any:
    from clearml import Task
    from clearml.backend_api.session.defs import MissingConfigError

    # The library reports from a fork of the process, which has threads and perhaps a GPU; if the fork happens while the
    # library starts git, both wait for each other. Threads report as well.
    Task._report_subprocess_enabled = False
    # A number for continue_last_task is added to all steps. Without an id, it continues what ran last on the machine.
    continued = {} if run.tracked_as is None else {"continue_last_task": 0}
    try:
        return Task.init(
            project_name=os.environ.get("CLEARML_PROJECT", "HuggingFace Transformers"),
            task_name=os.environ.get("CLEARML_TASK") or run.trial or run.chosen_name or "Trainer",
            auto_connect_frameworks={"tensorboard": False, "pytorch": False},
            output_uri=True,
            reuse_last_task_id=run.tracked_as or False,
            **continued,
        )
    except MissingConfigError:
        raise ConfigurationError(
            "Logging to clearml requires a server: run `clearml-init`, or set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY "
            "and CLEARML_API_SECRET_KEY. CLEARML_OFFLINE_MODE=1 logs to files, which Task.import_offline_session "
            "uploads later."
        ) from None


def _mark(identity: str, outcome: Outcome) -> None:
    """Set the status of a task that has just been closed, and is completed by that."""
    if outcome.kind == "finished":
        return
    from clearml import Task

    task = Task.get_task(task_id=identity)
    if outcome.kind == "failed":
        task.mark_failed(force=True, status_reason="failed", status_message=outcome.problem)
    else:
        task.mark_stopped(force=True, status_message=f"{outcome.kind}: {outcome.problem}")


def _plain(value: object) -> object:
    """Return a value that the library can show: it knows numbers, texts and lists."""
    return value if isinstance(value, bool | int | float | str | list | None) else str(value)
