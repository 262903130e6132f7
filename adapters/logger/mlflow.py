"""Metrics, parameters and checkpoints for MLflow."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hexloop.adapters.logger.tracker import Models, Tracker, flat, is_set, numbers_of, parameters_of
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import FINISHED, Media, MediaKind, Outcome, Record, RunInformation, SavedModel

STATUSES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "preempted": "KILLED"}
METRICS_AT_ONCE = 1000
"""The most that MLflow takes in one call."""

_MEDIA_NAME = re.compile(r"[^0-9A-Za-z_\-. /]|\.\.")

_logger = logging.getLogger("hexloop.loggers")


class MLflow(Tracker):
    """Logger adapter for MLflow, with the variables and names of transformers' callback.

    Variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_TAGS (a JSON object), MLFLOW_NESTED_RUN,
    MLFLOW_RUN_ID, MLFLOW_FLATTEN_PARAMS, MLFLOW_MAX_LOG_PARAMS, HF_MLFLOW_LOG_ARTIFACTS, and those of the library.

    A run that is active in the thread that constructs the adapter is used and stays open; with MLFLOW_NESTED_RUN, and
    for a trial of a search, a new run is nested in it. Checkpoints are artifacts in folders of their names, not models
    of pyfunc as in transformers, because these are pickles. Raises ConfigurationError if mlflow is missing, too old, or
    switched off by DISABLE_MLFLOW_INTEGRATION; a server that cannot be reached is a ConnectionError.
    """

    package = ("mlflow", "mlflow", "mlflow", "2.20")
    media: frozenset[MediaKind] = frozenset({"text", "table", "image", "audio"})

    def __init__(self) -> None:
        if is_set("DISABLE_MLFLOW_INTEGRATION"):
            raise ConfigurationError(
                "DISABLE_MLFLOW_INTEGRATION switches logging to mlflow off; unset it, or leave mlflow out of report_to."
            )
        super().__init__()
        self.models: Models = "checkpoints" if is_set("HF_MLFLOW_LOG_ARTIFACTS") else "none"
        self._user_thread = threading.get_ident()
        self._client: Any = None
        self._entered = False
        self._is_resumed = False
        self._steps: dict[str, set[int]] = {}
        self._images: list[str] | None = None

    def start(self, run: RunInformation) -> str | None:
        """Start a run, continue that of MLFLOW_RUN_ID or `run.tracked_as`, or take the user's; return its id."""
        with unreachable_as_connection_errors():
            return super().start(run)

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        import mlflow

        self._tags = _tags()
        self._client = mlflow.MlflowClient()
        active = self._users_run()
        nested = is_set("MLFLOW_NESTED_RUN") or run.trial is not None
        is_own = active is None or nested or "MLFLOW_RUN_ID" in os.environ
        self._is_resumed = run.tracked_as is not None or "MLFLOW_RUN_ID" in os.environ
        self._steps, self._images = {}, None
        return self._started(run, active) if is_own else active, is_own

    def _describe(self, run: RunInformation) -> str | None:
        identity: str = self._run.info.run_id
        for name, value in self._tags.items():
            self._client.set_tag(identity, name, value)
        self._log_parameters(identity, _parameters(run))
        return identity

    def write(self, record: Record) -> None:
        """Log the numbers at their step, under their names with "_" for characters that MLflow refuses."""
        self.write_all([record])

    def write_all(self, records: Sequence[Record]) -> None:
        """Log many records in few calls. A resumed run leaves out what it has already."""
        from mlflow.entities import Metric

        milliseconds = int(time.time() * 1000)
        with unreachable_as_connection_errors():
            metrics = [
                Metric(name, float(value), milliseconds, record.step)
                for record in records
                for name, value in _allowed_names(numbers_of(record.values)).items()
                if not self._is_there(name, record.step)
            ]
            for part in _parts(metrics, METRICS_AT_ONCE):
                self._client.log_batch(self._run.info.run_id, metrics=part)

    def write_media(self, media: Media) -> None:
        """Upload it as an artifact in `media/<name>`, by its step; an image also to MLflow's images over steps.

        A repeated step replaces its artifact. MLflow has no histograms.
        """
        name, identity = _MEDIA_NAME.sub("_", media.name)[:200], self._run.info.run_id
        path = f"media/{name}/step-{media.step:08}" + (f"-{media.index}" if media.index else "")
        with unreachable_as_connection_errors():
            if media.kind == "text":
                self._client.log_text(identity, str(media.content["text"]), f"{path}.txt")
            elif media.kind == "table":
                self._client.log_dict(identity, dict(media.content), f"{path}.json")
            elif media.kind == "audio":
                self._client.log_artifact(identity, media.file, path)
            else:
                self._log_image(identity, f"{name}-{media.index}" if media.index else name, media)

    def _log_image(self, identity: str, key: str, media: Media) -> None:
        """Log an image over the steps, unless a resumed run has it: MLflow would keep both."""
        from PIL import Image

        key = key.replace("/", "_")
        if self._is_resumed and self._images is None:
            self._images = [each.path for each in self._client.list_artifacts(identity, "images")]
        if any(f"images/{key}%step%{media.step}%" in each for each in self._images or ()):
            return
        with Image.open(media.file) as image:
            self._client.log_image(identity, image, key=key, step=media.step, synchronous=True)

    def save(self, model: SavedModel) -> None:
        """Upload the files into the folder of artifacts `model.name`."""
        with unreachable_as_connection_errors():
            self._client.log_artifacts(self._run.info.run_id, model.folder, artifact_path=model.name)

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Set the status of the run, and tags with the outcome; a run of the user's only gets the tags."""
        if self._run is not None:
            with unreachable_as_connection_errors():
                super().finish(outcome)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        self._client.set_tag(run.info.run_id, "hexloop.outcome", outcome.kind)
        if outcome.problem:
            problem = outcome.problem[: _limit("MAX_TAG_VAL_LENGTH", 5000)]
            self._client.set_tag(run.info.run_id, "hexloop.problem", problem)

    def _close(self, run: Any, outcome: Outcome) -> None:
        import mlflow

        identity = run.info.run_id
        stack = _active_runs()
        if stack and stack[-1].info.run_id == identity:
            mlflow.end_run(STATUSES[outcome.kind])  # this also ends what measures the system
        else:
            stack[:] = [each for each in stack if each.info.run_id != identity]
            self._client.set_terminated(identity, STATUSES[outcome.kind])

    def enter_thread(self) -> None:
        """Make the run the active one of this thread, without asking the server."""
        import mlflow

        if self._is_own and self._run is not None:
            _active_runs().append(mlflow.ActiveRun(self._run))
            self._entered = True

    def leave_thread(self) -> None:
        """Take the run from the active ones of this thread; it stays the one of `mlflow.last_active_run`."""
        if not self._entered or self._run is None:
            return
        from mlflow.tracking import fluent

        self._entered = False
        identity = self._run.info.run_id
        stack = _active_runs()
        stack[:] = [each for each in stack if each.info.run_id != identity]
        fluent._last_active_run_id.set(identity)

    def _users_run(self) -> Any:
        """Return the run that is active in the user's thread, or None."""
        from mlflow.tracking import fluent

        stack = fluent._active_run_stack.get_all_thread_values().get(self._user_thread)
        return stack[-1] if stack else None

    def _started(self, run: RunInformation, active: Any) -> Any:
        import mlflow

        if run.tracked_as is not None and "MLFLOW_RUN_ID" not in os.environ:
            try:
                return mlflow.start_run(run_id=run.tracked_as, nested=True)
            except mlflow.MlflowException as error:
                if _is_unreachable(error):
                    raise
                _logger.warning("mlflow cannot continue run %s, so a new one is started: %s", run.tracked_as, error)
                self._is_resumed = False
        parent = active.info.run_id if active is not None and "MLFLOW_RUN_ID" not in os.environ else None
        name = run.trial if run.trial is not None else run.chosen_name
        return mlflow.start_run(
            experiment_id=self._experiment(), run_name=name, nested=True, parent_run_id=parent, tags=_tags_of(run)
        )

    def _experiment(self) -> str | None:
        """Return the id of MLFLOW_EXPERIMENT_NAME, which is created if needed; None if MLflow chooses."""
        import mlflow

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
        if not name:
            return None
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except mlflow.MlflowException:
                found = self._client.get_experiment_by_name(name)  # another process was faster
                if found is None:
                    raise
        return str(found.experiment_id)

    def _log_parameters(self, identity: str, parameters: Mapping[str, str]) -> None:
        """Log what the run does not have; MLflow refuses to change a parameter, and texts of more than some length."""
        from mlflow.entities import Param

        known = self._client.get_run(identity).data.params
        longest = _limit("MAX_PARAM_VAL_LENGTH", 500)
        too_long = [name for name, value in parameters.items() if len(value) > longest]
        cut = {name: value[:longest] for name, value in parameters.items()}
        changed = [name for name, value in cut.items() if name in known and known[name] != value]
        refused: list[str] = []
        new = [Param(name, value) for name, value in cut.items() if name not in known]
        for part in _parts(new, _limit("MAX_PARAMS_TAGS_PER_BATCH", 100)):
            refused += self._refused(identity, part)
        _report(f"are cut to {longest} characters, the most that mlflow takes", too_long)
        _report("have changed; mlflow keeps their first values", changed)
        _report("are refused by mlflow and left out", refused)

    def _refused(self, identity: str, parameters: Sequence[Any]) -> list[str]:
        """Log parameters at once, or one by one if that fails; return the names of those that the server refuses."""
        import mlflow

        try:
            self._client.log_batch(identity, params=parameters)
        except mlflow.MlflowException as error:
            if _is_unreachable(error):
                raise
            if len(parameters) == 1:
                return [parameters[0].key]
            return [name for each in parameters for name in self._refused(identity, [each])]
        return []

    def _is_there(self, name: str, step: int) -> bool:
        """Return whether a resumed run has a value for the step already; a new run is not asked."""
        if not self._is_resumed:
            return False
        if name not in self._steps:
            points = self._client.get_metric_history(self._run.info.run_id, name)
            self._steps[name] = {point.step for point in points}
        is_there = step in self._steps[name]
        self._steps[name].add(step)
        return is_there


@contextmanager
def unreachable_as_connection_errors() -> Iterator[None]:
    """Raise a ConnectionError for an error of MLflow's whose cause is a connection."""
    import mlflow

    try:
        yield
    except mlflow.MlflowException as error:
        if _is_unreachable(error):
            raise ConnectionError(f"the server of mlflow cannot be reached: {error}") from error
        raise


def _is_unreachable(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) or getattr(error, "error_code", "") in ("TEMPORARILY_UNAVAILABLE", "503"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _active_runs() -> list[Any]:
    """Return MLflow's stack of active runs of this thread; nothing public makes a run active without a request."""
    from mlflow.tracking import fluent

    stack: list[Any] = fluent._active_run_stack.get()
    return stack


def _limit(name: str, otherwise: int) -> int:
    from mlflow.utils import validation

    return int(getattr(validation, name, otherwise))


def _tags() -> dict[str, str]:
    """Return the tags of MLFLOW_TAGS. Raises ConfigurationError if it is not a JSON object."""
    text = os.environ.get("MLFLOW_TAGS")
    if not text:
        return {}
    try:
        tags = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"MLFLOW_TAGS is not valid JSON: {error}.") from error
    if not isinstance(tags, dict):
        raise ConfigurationError(f'MLFLOW_TAGS must be a JSON object such as {{"team": "a"}}, not {text[:80]}.')
    return {str(name): str(value) for name, value in tags.items()}


def _tags_of(run: RunInformation) -> dict[str, str]:
    return {"hexloop.search": run.group} if run.trial is not None and run.group else {}


def _parameters(run: RunInformation) -> dict[str, str]:
    """Return the parameters as texts, under names that MLflow allows, as many as MLFLOW_MAX_LOG_PARAMS."""
    parameters = parameters_of(run)
    if run.trial_parameters:
        parameters = {**parameters, **run.trial_parameters}
    if is_set("MLFLOW_FLATTEN_PARAMS"):
        parameters = flat(parameters, ".")
    most = os.environ.get("MLFLOW_MAX_LOG_PARAMS", "")
    items = list(parameters.items())[: int(most) if most.isdigit() else None]
    return {name: str(value) for name, value in _allowed_names(dict(items)).items()}


def _allowed_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with "_" in their names for what MLflow refuses, and names of at most 250 characters."""
    return {re.sub(r"[^0-9A-Za-z_\-. :/]", "_", name)[:250]: value for name, value in values.items()}


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _report(what: str, names: Sequence[str]) -> None:
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        _logger.warning("Parameters of mlflow %s: %s.", what, shown)
