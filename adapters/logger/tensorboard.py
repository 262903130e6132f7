"""Numbers for TensorBoard, under the tags of the reference library."""

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


class Writer(Protocol):
    """What is used of a SummaryWriter."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        """Note a number."""
        ...

    def add_text(self, tag: str, text_string: str, global_step: int | None = None) -> None:
        """Note a text."""
        ...

    def flush(self) -> None:
        """Put everything into the file."""
        ...

    def close(self) -> None:
        """Put everything into the file and write no more."""
        ...


class TensorBoard:
    """Writes event files to `folder`, by default to a new one for each run, under `runs/` in the run's own folder.

    Raises ConfigurationError where neither tensorboard nor tensorboardX is installed. A run that is resumed into the
    same folder hides what the files hold of the steps that it does again.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        if not (find_spec("tensorboard") or find_spec("tensorboardX")):
            raise ConfigurationError(
                ["You chose to log to tensorboard, but it is not installed; pip install 'hexloop[tensorboard]'."]
            )
        self._chosen_folder = None if folder is None else os.path.expanduser(folder)
        self._folder = self._chosen_folder or _new_folder("")
        self._writer: Writer | None = None

    def start(self, run: RunInformation) -> None:
        """Open an event file and note the configuration, as JSON, under the tag "args"."""
        self.finish()
        self._folder = self._chosen_folder or _new_folder(run.folder or "")
        self._writer = self._opened(purge_step=run.step + 1 if run.step else None)
        self._writer.add_text("args", json.dumps(dict(run.configuration), indent=2, default=str))

    def write(self, record: Record) -> None:
        """Note numbers and truth values as scalars and strings as texts; what is None has nothing to show.

        Before a run and after it, each record has an event file of its own in the same folder.
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

    def _opened(self, purge_step: int | None = None) -> Writer:
        module = import_module("torch.utils.tensorboard" if find_spec("tensorboard") else "tensorboardX")
        return cast(Writer, module.SummaryWriter(self._folder, purge_step=purge_step))


def tag(name: str) -> str:
    """Where TensorBoard shows the value `name`: evaluations and tests each in a group, and the rest under training."""
    for group in ("eval", "test"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    return f"train/{name}"


def _new_folder(parent: str) -> str:
    """A folder named after the moment and the machine, as torch names its own."""
    return os.path.join(parent, "runs", f"{datetime.now():%b%d_%H-%M-%S}_{socket.gethostname()}")
