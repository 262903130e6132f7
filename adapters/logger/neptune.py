"""Metrics, parameters and checkpoints for Neptune."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal
from uuid import uuid4

from hexloop.adapters.logger.tracker import Models, Tracker, curves_of
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel

UPLOADS = ("same", "last", "best")
NO_CURVES = ("train/epoch",)
"""Values of which Neptune has the newest only, as in transformers 5."""


class Neptune(Tracker):
    """Logger adapter for neptune, with the arguments and names of transformers' callback.

    api_token, project, name, options: for neptune.init_run; by default NEPTUNE_API_TOKEN, NEPTUNE_PROJECT and the
    name of the run. base_namespace: where all values are. run: a run of the user's, which stays open. log_parameters:
    whether arguments and the model's configuration are logged. log_checkpoints: "same" uploads every checkpoint,
    "last" only the newest one, "best" only the best one.

    The run's identity is Neptune's `custom_run_id`, which continues a run on the server. The library's offline mode
    does not store it: there, each process leaves a run of its own, whose field "hexloop/run_id" has it. Raises
    ConfigurationError if neptune is missing or too old or an argument is wrong, and from `start` if no key or project
    is set.
    """

    package = ("neptune", "neptune", "neptune", "1.10")

    def __init__(
        self,
        *,
        api_token: str | None = None,
        project: str | None = None,
        name: str | None = None,
        base_namespace: str = "finetuning",
        run: Any = None,
        log_parameters: bool = True,
        log_checkpoints: Literal["same", "last", "best"] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if log_checkpoints not in (None, *UPLOADS):
            raise ConfigurationError(f"log_checkpoints={log_checkpoints!r} is none of None, {', '.join(UPLOADS)}.")
        self.models: Models = "none" if log_checkpoints is None else "checkpoints"
        self._options = {"api_token": api_token, "project": project, "name": name, **options}
        self._base = base_namespace
        self._given = run
        self._logs_parameters = log_parameters
        self._uploads = log_checkpoints
        self._identity: str | None = None
        self._uploaded = -1

    @property
    def run(self) -> Any:
        """The run of neptune; after its end it is opened again, without measuring the process."""
        if self._run is None and self._given is not None:
            return self._given
        if self._run is None and self._identity is not None:
            quiet = ("capture_stdout", "capture_stderr", "capture_hardware_metrics", "capture_traceback")
            self._run = _opened({**self._options, **dict.fromkeys(quiet, False)}, self._identity)
        return self._run

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        if self._uploads == "best" and not run.configuration.get("load_best_model_at_end"):
            raise ConfigurationError("log_checkpoints='best' requires load_best_model_at_end=True.")
        self._uploaded = -1
        self._identity = None
        if self._given is not None:
            return self._given, False
        self._identity = os.environ.get("NEPTUNE_CUSTOM_RUN_ID") or run.tracked_as or uuid4().hex
        name = None if run.tracked_as else self._options["name"] or run.trial or run.chosen_name
        opened = _opened({**self._options, "name": name}, self._identity)
        opened["hexloop/run_id"] = self._identity
        return opened, True

    def write(self, record: Record) -> None:
        """Append values to their series at their step.

        What is not finite is left out, because Neptune refuses it, and so is a step that a series already has.
        """
        for name, value in curves_of(record.values).items():
            path = f"{self._base}/{name}"
            if isinstance(value, float) and not math.isfinite(value):
                continue
            if name in NO_CURVES:
                self._run[path] = value
            elif self._lacks(path, record.step):
                self._last[path] = record.step
                self._run[path].append(value, step=record.step)
        self._run.wait(disk_only=True)  # so that a process that is killed leaves it

    def save(self, model: SavedModel) -> None:
        """Upload a checkpoint; "last" and "best" replace the one before.

        The final model is left out if the checkpoint of its step was uploaded.
        """
        if (self._uploads == "best" and not model.best) or (model.final and self._uploaded == model.step):
            return
        name = model.name if self._uploads == "same" else str(self._uploads)
        path = f"{self._base}/checkpoints/{name}"
        if self._run.exists(path):
            self._run.pop(path)
        self._run[path].upload_files(model.folder)
        self._uploaded = model.step
        self._run.wait()  # the folder is removed later

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        run["hexloop/outcome"] = outcome.kind
        run["hexloop/problem"] = outcome.problem
        run["sys/failed"] = outcome.kind == "failed"
        if not self._is_own:
            run.wait()

    def _close(self, run: Any, outcome: Outcome) -> None:
        run.stop()

    def _describe(self, run: RunInformation) -> str | None:
        from neptune.utils import stringify_unsupported

        for package in ("hexloop", "transformers"):
            found = _version(package)
            if found is not None:
                self._run[f"source_code/integrations/{package}"] = found
        sections: dict[str, Mapping[str, object]] = {}
        if self._logs_parameters:
            sections["trainer_parameters"] = run.configuration
            sections |= {"model_parameters": run.model_configuration, "peft_config": run.adapter_configuration}
        if run.trial is not None:
            self._run[f"{self._base}/trial"] = run.trial
            sections["trial_params"] = run.trial_parameters
        for name, values in sections.items():
            if values:
                self._run[f"{self._base}/{name}"] = stringify_unsupported(dict(values))
        self._run.wait(disk_only=True)
        return self._identity


def _opened(options: dict[str, Any], identity: str) -> Any:
    import neptune
    from neptune.exceptions import NeptuneMissingApiTokenException, NeptuneMissingProjectNameException

    if not options.get("with_id"):
        options = {"custom_run_id": identity, **options}
    try:
        return neptune.init_run(**options)
    except (NeptuneMissingApiTokenException, NeptuneMissingProjectNameException):
        raise ConfigurationError(
            "Logging to neptune requires a key and a project: set NEPTUNE_API_TOKEN and NEPTUNE_PROJECT. "
            "NEPTUNE_MODE=offline logs to files, which `neptune sync` uploads later."
        ) from None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
