"""Metrics for TensorBoard, under the tags that transformers uses."""

from __future__ import annotations

import json
import os
import socket
import wave
from collections.abc import Iterable, Mapping
from datetime import datetime
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeGuard

from hexloop.adapters.logger.tracker import ALL_MEDIA, Tracker, curves_of, name_of_media, table_as_markdown
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.folders import Folder
from hexloop.ports.logger import Media, MediaKind, Outcome, Record, RunInformation

FOLDER = "runs"
"""The folder of event files in that of a run."""


class TensorBoard(Tracker):
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
        self._given = tb_writer
        super().__init__()

    @property
    def media(self) -> frozenset[MediaKind]:  # type: ignore[override]  # tensorboardX needs one more package for audio
        """All kinds; audio only with the package tensorboard."""
        return ALL_MEDIA if find_spec("tensorboard") else ALL_MEDIA - {"audio"}

    @property
    def tb_writer(self) -> Any:
        """The SummaryWriter of the live run, or the given one; None if there is neither."""
        return self._run or self._given

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        name = run.tracked_as if _is_name(run.tracked_as) else _new_name(run.trial)
        self._folder = self._chosen_folder or os.path.join(run.folder or "", FOLDER, name)
        if not self._chosen_folder and not self._given and run.folder and "://" not in run.folder:
            Folder(run.folder, f"{FOLDER}/{name}").make()  # raises OSError for a link, which may lead anywhere
        opened = self._given or self._opened(purge_step=run.step + 1 if run.step else None)
        return opened, not self._given

    def _describe(self, run: RunInformation) -> str | None:
        """Add the configurations, as JSON, under the tags "args" and "model_config".

        Return the name of the folder in the run's `runs`; None if the folder was chosen.
        """
        self._add_configuration("args", run.configuration)
        if run.model_configuration:
            self._add_configuration("model_config", run.model_configuration)
        return None if self._chosen_folder or self._given else os.path.basename(self._folder)

    def write(self, record: Record) -> None:
        """Add numbers and booleans as scalars and strings as texts; None is skipped.

        Before and after a run, each record is written to an event file of its own in the same folder.
        """
        self.write_all([record])

    def write_all(self, records: Iterable[Record]) -> None:
        """Write several records, which are in the file when this returns."""
        writer = self.tb_writer or self._opened()
        for record in records:
            for name, value in curves_of(record.values).items():
                if isinstance(value, str):
                    writer.add_text(name, value, record.step)
                else:
                    writer.add_scalar(name, value, record.step)
        writer.flush()
        if self.tb_writer is None:
            writer.close()

    def write_media(self, media: Media) -> None:
        """Add a text, a table as text, an image, a histogram, or audio, of which TensorBoard plays one channel."""
        writer, name, content = self.tb_writer, name_of_media(media), media.content
        if media.kind == "text":
            writer.add_text(name, content["text"], media.step)
        elif media.kind == "table":
            writer.add_text(name, table_as_markdown(content), media.step)
        elif media.kind == "image":
            writer.add_image(name, _pixels_in(media.file), media.step, dataformats="HWC")
        elif media.kind == "audio":
            writer.add_audio(name, _sound_in(media.file), media.step, sample_rate=content["rate"])
        else:
            writer.add_histogram_raw(name, **_bounds_of(content), global_step=media.step)
        writer.flush()

    def _close(self, run: Any, outcome: Outcome) -> None:
        run.close()

    def _add_configuration(self, tag: str, configuration: Mapping[str, object]) -> None:
        self._run.add_text(tag, json.dumps(dict(configuration), indent=2, default=str))

    def _opened(self, purge_step: int | None = None) -> Any:
        module = import_module("torch.utils.tensorboard" if find_spec("tensorboard") else "tensorboardX")
        return module.SummaryWriter(self._folder, purge_step=purge_step)


def _pixels_in(path: str) -> Any:
    """Return the pixels of an image, (height, width, 3 or 4)."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGBA" if "A" in image.getbands() else "RGB"))


def _sound_in(path: str) -> Any:
    """Return the first channel of audio, (1, samples), from -1 to 1."""
    import numpy as np
    import torch

    with wave.open(path, "rb") as file:
        frames = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
    return torch.from_numpy(frames[:, 0].astype(np.float32) / 32768).reshape(1, -1)


def _bounds_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a histogram as SummaryWriter takes it. The sums are those of values in the middle of their bins."""
    import numpy as np

    edges, counts = np.array(content["edges"]), np.array(content["counts"], np.float64)
    middles = (edges[:-1] + edges[1:]) / 2
    return {
        "min": edges[0],
        "max": edges[-1],
        "num": counts.sum(),
        "sum": float((counts * middles).sum()),
        "sum_squares": float((counts * middles**2).sum()),
        "bucket_limits": edges[1:].tolist(),
        "bucket_counts": counts.tolist(),
    }


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
