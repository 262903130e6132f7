"""Metrics for TensorBoard, under the tags that transformers uses."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, TypeGuard, cast

from hexloop.adapters.logger.names import grouped
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.folders import Folder
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation

FOLDER = "runs"
"""The folder of event files in that of a run."""


class _Writer(Protocol):
    """The methods of SummaryWriter that are used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Logger adapter that writes event files to `folder`; by default to a new folder per run, `runs/...` in the run's
    own.

    Raises ConfigurationError if neither tensorboard nor tensorboardX is installed. A run that resumes continues in its
    folder, where the repeated steps of the earlier files are hidden. tb_writer: a SummaryWriter of the program's own,
    which is used instead, and stays open.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, tb_writer: Any = None) -> None:
        if not (find_spec("tensorboard") or find_spec("tensorboardX")):
            raise ConfigurationError(
                "Logging to tensorboard requires a package that is not installed; pip install 'hexloop[tensorboard]'."
            )
        self._chosen_folder = None if folder is None else _located(os.path.expanduser(folder))
        self._folder = self._chosen_folder or os.path.join(FOLDER, _new_name())
        self._given = cast(_Writer | None, tb_writer)
        self._writer: _Writer | None = None

    @property
    def tb_writer(self) -> Any:
        """The SummaryWriter of the live run, or the given one; None if there is neither."""
        return self._writer or self._given

    def start(self, run: RunInformation) -> str | None:
        """Open an event file and add the configurations, as JSON, under the tags "args" and "model_config".

        Return the name of the folder in the run's `runs`; None if the folder was chosen.
        """
        self.finish()
        name = run.tracked_as if _is_name(run.tracked_as) else _new_name(run.trial)
        self._folder = self._chosen_folder or os.path.join(run.folder or "", FOLDER, name)
        if not self._chosen_folder and not self._given and run.folder and "://" not in run.folder:
            Folder(run.folder, f"{FOLDER}/{name}").make()  # raises OSError for a link, which may lead anywhere
        self._writer = self._given or self._opened(purge_step=run.step + 1 if run.step else None)
        self._add_configuration("args", run.configuration)
        if run.model_configuration:
            self._add_configuration("model_config", run.model_configuration)
        return None if self._chosen_folder or self._given else name

    def write(self, record: Record) -> None:
        """Add numbers and booleans as scalars and strings as texts; None is skipped.

        Before and after a run, each record is written to an event file of its own in the same folder.
        """
        self.write_all([record])

    def write_all(self, records: Iterable[Record]) -> None:
        """Write several records, which are in the file when this returns."""
        writer = self._writer or self._given or self._opened()
        for record in records:
            for name, value in record.values.items():
                if isinstance(value, str):
                    writer.add_text(grouped(name), value, record.step)
                elif value is not None:
                    writer.add_scalar(grouped(name), value, record.step)
        writer.flush()
        if self._writer is None and self._given is None:
            writer.close()

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Close the event file; a given writer stays open."""
        writer, self._writer = self._writer, None
        if writer is not None and writer is not self._given:
            writer.close()

    def _add_configuration(self, tag: str, configuration: Mapping[str, object]) -> None:
        assert self._writer is not None
        self._writer.add_text(tag, json.dumps(dict(configuration), indent=2, default=str))

    def _opened(self, purge_step: int | None = None) -> _Writer:
        module = import_module("torch.utils.tensorboard" if find_spec("tensorboard") else "tensorboardX")
        return cast(_Writer, module.SummaryWriter(self._folder, purge_step=purge_step))


def _located(folder: str) -> str:
    """Return a path made absolute, so that the program may change its working folder; a URL as it is."""
    return folder if "://" in folder else os.path.abspath(folder)


def _new_name(trial: str | None = None) -> str:
    """Return a name for a folder after the time and the host, as PyTorch names its own, and the trial of a search."""
    name = f"{datetime.now():%b%d_%H-%M-%S}_{socket.gethostname()}"
    return f"{name}-{trial}".replace(os.sep, "-") if trial else name


def _is_name(name: str | None) -> TypeGuard[str]:
    """Return whether a saved name is that of a folder, and leads nowhere else."""
    return bool(name) and name not in (".", "..") and not set(str(name)) & set("/\\\0")
