"""Metrics, parameters and files for Comet."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile, ZipFile

from hexloop.adapters.logger.tracker import ALL_MEDIA, Tracker, curves_of, name_of_media, values_of
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Media, Outcome, Record, RunInformation, Value

MODES = ("get_or_create", "get", "create")
UNFINISHED = ".unfinished.json"
"""Ends the name of the file that says where the library keeps the data of an offline experiment until its end."""

_logger = logging.getLogger("hexloop.loggers")


class CometML(Tracker):
    """Logger adapter for comet_ml, with the variables and names of transformers' callback.

    Variables: COMET_MODE ("get_or_create", "get", "create"), COMET_LOG_ASSETS (whether the folder of the run is
    uploaded at the end), and those of the library, such as COMET_API_KEY, COMET_START_ONLINE, COMET_EXPERIMENT_KEY,
    COMET_PROJECT_NAME and COMET_OFFLINE_DIRECTORY.

    An experiment that the user has started is used, as far as comet_ml.start returns it, and stays open. The library
    has one experiment at a time in a process: a new one ends the one before. Raises ConfigurationError if comet_ml is
    missing or too old, and from `start` if an experiment on the server has no key.
    """

    package = ("comet_ml", "comet_ml", "comet_ml", "3.43.2")
    media = ALL_MEDIA

    def __init__(self) -> None:
        super().__init__()
        self._is_offline = False
        self._folder: str | None = None
        self._step = 0

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        mode = _mode(run)
        if mode == "off":
            return None, False
        import comet_ml

        _check_key(comet_ml)
        key = None if _setting(comet_ml, "comet.experiment_key") and run.trial is None else run.tracked_as
        before = comet_ml.get_running_experiment()
        name = None if run.tracked_as else run.trial or run.chosen_name
        experiment = comet_ml.start(
            mode=mode, experiment_key=key, experiment_config=comet_ml.ExperimentConfig(name=name)
        )
        self._is_offline = isinstance(experiment, comet_ml.OfflineExperiment)
        return experiment, experiment is not before

    def write(self, record: Record) -> None:
        """Log the values at their step and epoch; None is left out."""
        if self._run is None:
            return
        self._step = record.step
        values = {name: _plain(value) for name, value in curves_of(record.values).items()}
        self._run.log_metrics(values, step=record.step, epoch=record.epoch)

    def write_media(self, media: Media) -> None:
        """Log it at its step; a histogram by the middle of each bin."""
        if self._run is None:
            return
        name, content, step = name_of_media(media), media.content, media.step
        if media.kind == "text":
            self._run.log_text(content["text"], step=step, metadata={"name": name})
        elif media.kind == "table":
            self._run.log_table(f"{name}-step-{step}.csv", tabular_data=content["rows"], headers=content["columns"])
        elif media.kind == "image":
            self._run.log_image(media.file, name=name, step=step, copy_to_tmp=True)
        elif media.kind == "audio":
            self._run.log_audio(media.file, file_name=f"{name}.wav", step=step, copy_to_tmp=True)
        else:
            self._run.log_histogram_3d(_histogram_of(content), name=name, step=step)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        """Log the outcome, and upload the folder of the run if asked to."""
        for name, value in values_of(outcome).items():
            run.log_other(name, value)
        if os.environ.get("COMET_LOG_ASSETS", "").upper() in ("TRUE", "1") and self._folder is not None:
            _log_files(run, self._folder, self._step)

    def _close(self, run: Any, outcome: Outcome) -> None:
        run.end()
        if self._is_offline:
            _marker(run).unlink(missing_ok=True)

    def _describe(self, run: RunInformation) -> str | None:
        if self._is_own and self._is_offline:
            _recover(self._run)
            _announce(self._run)
        self._folder, self._step = run.folder, run.step
        more = {"config": run.model_configuration, "peft_config": run.adapter_configuration}
        given = {name: dict(configuration) for name, configuration in more.items() if configuration}
        self._run.log_parameters({"args": dict(run.configuration), **given})
        if run.parameters is not None:
            self._run.log_other("model/num_parameters", run.parameters)
        if run.model is not None:
            self._run.set_model_graph(str(run.model))
        if run.trial is not None:
            self._run.log_optimization(optimization_id=run.trial, parameters=dict(run.trial_parameters))
        return cast(str, self._run.get_key())


def _mode(run: RunInformation) -> str | None:
    """Return how to start the experiment: by default as the library's own settings say.

    "off" if COMET_MODE is none of its words, which turns logging off, as in transformers.
    """
    asked = os.environ.get("COMET_MODE", "").lower()
    if asked and asked not in MODES:
        _logger.warning("COMET_MODE=%s is none of %s, so nothing is logged to comet_ml.", asked, ", ".join(MODES))
        return "off"
    if run.tracked_as is not None:
        return "get_or_create"
    return "create" if run.trial is not None else asked or None


def _setting(comet_ml: Any, name: str) -> Any:
    """Return a setting of the library, from its variables and files."""
    return comet_ml.config.get_config(name)


def _check_key(comet_ml: Any) -> None:
    """Raise if the library would refuse to start, or ask for a key."""
    if _setting(comet_ml, "comet.start.online") is not False and not _setting(comet_ml, "comet.api_key"):
        raise ConfigurationError(
            "Logging to comet_ml requires a key: set COMET_API_KEY. COMET_START_ONLINE=false logs to files, which "
            "`comet upload` uploads later."
        )


def _histogram_of(content: Any) -> Any:
    """Return a histogram as comet_ml has it."""
    from comet_ml import Histogram

    edges = content["edges"]
    middles = [(low + high) / 2 for low, high in pairwise(edges)]
    histogram = Histogram()
    histogram.add(values=middles, counts=content["counts"])
    return histogram


def _plain(value: Value) -> Value:
    return int(value) if isinstance(value, bool) else value


def _log_files(experiment: Any, folder: str, step: int) -> None:
    """Upload the files of a folder, without those of hidden folders, under their relative names."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for name in sorted(names):
            path = os.path.join(parent, name)
            experiment.log_asset(path, file_name=os.path.relpath(path, folder), step=step)


def _marker(experiment: Any) -> Path:
    return Path(experiment.offline_directory, f"{experiment.get_key()}{UNFINISHED}")


def _announce(experiment: Any) -> None:
    """Note where the data of an offline experiment is until it ends: a folder that only the process knows."""
    noted = {name: getattr(experiment, name, None) for name in ("tmpdir", "start_time", "project_name", "workspace")}
    _marker(experiment).write_text(json.dumps(noted), encoding="utf-8")


def _recover(experiment: Any) -> None:
    """Archive what an earlier process wrote to the same offline experiment before it was killed.

    It has the form of the library's own archives, so `comet upload` takes both.
    """
    marker = _marker(experiment)
    if not marker.exists():
        return
    noted = json.loads(marker.read_text(encoding="utf-8"))
    key, messages = experiment.get_key(), Path(noted["tmpdir"], "messages.json")
    if not messages.exists():
        _logger.warning(
            "The values of comet_ml's experiment %s before its process was killed are gone: %s", key, messages
        )
        return
    _leave_out_cut_line(messages)
    from comet_ml.offline_utils import write_experiment_meta_file

    write_experiment_meta_file(
        tempdir=noted["tmpdir"],
        experiment_key=key,
        workspace=noted["workspace"],
        project_name=noted["project_name"],
        start_time=noted["start_time"],
        stop_time=int(messages.stat().st_mtime * 1000),
        tags=[],
        resume_strategy="get_or_create",
        customer_error_reported=False,
        customer_error_message=None,
        user_provided_experiment_key=True,
        comet_start_sourced=True,
    )
    with (
        tempfile.NamedTemporaryFile(dir=marker.parent, prefix=f"{key}-", suffix=".zip", delete=False) as file,
        ZipFile(file, "w") as archive,
    ):
        for path in sorted(messages.parent.iterdir()):
            if path.is_file():
                archive.write(path, path.name)
    shutil.rmtree(messages.parent, ignore_errors=True)
    marker.unlink()
    for path in marker.parent.glob(f"{key}-*.zip"):
        if path.name != Path(file.name).name and _is_empty(path):
            path.unlink()  # what the library reserved for the killed process


def _leave_out_cut_line(path: Path) -> None:
    """Cut a file after its last whole line."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - 65536)
            file.seek(begin)
            newline = file.read(end - begin).rfind(b"\n")
            end = begin + newline + 1
            if newline >= 0:
                break
        file.truncate(end)


def _is_empty(path: Path) -> bool:
    try:
        with ZipFile(path) as archive:
            return not archive.namelist()
    except BadZipFile:
        return False
