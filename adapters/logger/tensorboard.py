"""Metrics for TensorBoard, under the tags that transformers uses."""

from __future__ import annotations

import json
import os
import socket
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Record, RunInformation


class _Writer(Protocol):
    """The methods of SummaryWriter that are used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None: ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Logger adapter that writes event files to `folder`; by default to a new folder per run, `runs/...` in the run's
    own.

    Raises ConfigurationError if neither tensorboard nor tensorboardX is installed. If a run resumes into the same
    folder, the repeated steps of the earlier files are hidden.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        if not (find_spec("tensorboard") or find_spec("tensorboardX")):
            raise ConfigurationError(
                "Logging to tensorboard requires a package that is not installed; pip install 'hexloop[tensorboard]'."
            )
        self._chosen_folder = None if folder is None else os.path.expanduser(folder)
        self._folder = self._chosen_folder or _new_folder("")
        self._writer: _Writer | None = None

    def start(self, run: RunInformation) -> None:
        """Open an event file and add the configuration, as JSON, under the tag "args"."""
        self.finish()
        self._folder = self._chosen_folder or _new_folder(run.folder or "")
        self._writer = self._opened(purge_step=run.step + 1 if run.step else None)
        self._writer.add_text("args", json.dumps(dict(run.configuration), indent=2, default=str))

    def write(self, record: Record) -> None:
        """Add numbers and booleans as scalars and strings as texts; None is skipped.

        Before and after a run, each record is written to an event file of its own in the same folder.
        """
        writer = self._writer or self._opened()
        for name, value in record.values.items():
            if isinstance(value, str):
                writer.add_text(tag(name), value, record.step)
            elif value is not None:
                writer.add_scalar(tag(name), value, record.step)
        writer.flush()
        if self._writer is None:
            writer.close()

    def finish(self) -> None:
        """Close the event file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _opened(self, purge_step: int | None = None) -> _Writer:
        module = import_module("torch.utils.tensorboard" if find_spec("tensorboard") else "tensorboardX")
        return cast(_Writer, module.SummaryWriter(self._folder, purge_step=purge_step))


def tag(name: str) -> str:
    """Return the TensorBoard tag of the value `name`: evaluations and tests have groups of their own, the rest is
    "train".
    """
    for group in ("eval", "test"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    return f"train/{name}"


def _new_folder(parent: str) -> str:
    """Return a folder named after the time and the host, as PyTorch names its own."""
    return os.path.join(parent, "runs", f"{datetime.now():%b%d_%H-%M-%S}_{socket.gethostname()}")
