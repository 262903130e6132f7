"""Metrics, parameters and models as files that DVC reads."""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

from hexloop.adapters.logger.tracker import Models, Tracker, is_true, values_of
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Outcome, Record, RunInformation, SavedModel

FOLDER = "dvclive"
"""The folder of the library, by default in the current one."""

EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""Names that git takes as the end of a reference; DVC names other runs itself."""


class DVCLive(Tracker):
    """Logger adapter for dvclive: the folder "dvclive" with metrics.json, params.yaml and a table of each metric.

    live: an own dvclive.Live; otherwise one is made of `options`. log_model: whether to add the model to DVC: True for
    that of the end, "all" for each checkpoint, too; by default as HF_DVCLIVE_LOG_MODEL says. Each is copied into the
    folder "dvclive/artifacts" first, because checkpoints are removed later.

    Steps are those of the run. As in transformers, `Live.end` is called at the end, which saves an experiment of DVC if
    there is a git repository; a Live in a `with` statement ignores that call. Raises ConfigurationError if dvclive is
    missing or `live` is something else.
    """

    package = ("dvclive", "dvclive", "dvclive", "3.40")

    def __init__(self, live: Any = None, log_model: bool | Literal["all"] | None = None, **options: Any) -> None:
        super().__init__()
        if live is not None and not _is_live(live):
            raise ConfigurationError(f"live={live!r} is of the type {type(live).__name__}; pass a dvclive.Live.")
        self._given = live
        self._options = options
        self._load_best = False
        self.models = _models(log_model)

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        return self._given or _new_live(run, self._options), True

    def _describe(self, run: RunInformation) -> str | None:
        """Log the arguments; return the path of the folder."""
        self._load_best = bool(run.configuration.get("load_best_model_at_end"))
        self._run.log_params(json.loads(json.dumps(dict(run.configuration), default=str)))
        return os.path.abspath(str(self._run.dir))

    def write(self, record: Record) -> None:
        """Add a row to the table of each metric, and make it the newest value; None is left out.

        A metric that has this step, or a later one, as after a resume, is left out.
        """
        from dvclive.utils import standardize_metric_name

        self._run.step = record.step
        for name, value in record.values.items():
            metric = standardize_metric_name(name, "dvclive.huggingface")
            if value is not None and self._lacks(metric, record.step):
                self._run.log_metric(metric, value)
                self._last[metric] = record.step
        self._run.next_step()

    def save(self, model: SavedModel) -> None:
        """Copy a model and add it to DVC: as "best" or "last" at the end, and as "checkpoint-..." before."""
        name = model.name if not model.final else "best" if self._load_best else "last"
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder, name)  # dvclive names the copy after what it copies
            link.symlink_to(os.path.abspath(model.folder), target_is_directory=True)
            self._run.log_artifact(str(link), name=name, type="model", copy=True)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        """Add the outcome to the newest values."""
        for name, value in values_of(outcome).items():
            run.log_metric(name, value, plot=False)

    def _close(self, run: Any, outcome: Outcome) -> None:
        run.end()

    def _last_step(self, series: str) -> int:
        table = Path(self._run.plots_dir, "metrics", f"{series}.tsv")
        try:
            with table.open(encoding="utf-8", newline="") as file:
                found = [row["step"] or "" for row in csv.DictReader(file, delimiter="\t")]
        except FileNotFoundError:
            return -1
        return max((int(step) for step in found if step.isdecimal()), default=-1)


def _is_live(live: object) -> bool:
    from dvclive import Live

    return isinstance(live, Live)


def _models(log_model: bool | str | None) -> Models:
    asked = os.environ.get("HF_DVCLIVE_LOG_MODEL", "") if log_model is None else str(log_model)
    if asked.lower() == "all":
        return "checkpoints"
    return "final" if is_true(asked) else "none"


def _new_live(run: RunInformation, options: dict[str, Any]) -> Any:
    """Begin a new folder, or continue in it if `run.tracked_as` is its path.

    Raises ConfigurationError if that is another folder that exists: it is a name from a checkpoint or an outbox, which
    must not choose where files are written.
    """
    from dvclive import Live

    arguments = dict(options)
    if run.tracked_as is not None:
        own = os.path.realpath(str(arguments.get("dir") or FOLDER))
        if os.path.realpath(run.tracked_as) != own and os.path.isdir(run.tracked_as):
            raise ConfigurationError(
                f"The run was logged to {run.tracked_as!r:.300}, and this process logs to {own}. Start it in "
                "the folder above that, or choose the folder: callbacks=[DVCLiveCallback(dir=...)]."
            )
        arguments["resume"] = True
    name = run.trial or run.chosen_name
    if name is not None and EXPERIMENT_NAME.fullmatch(name) and "DVC_EXP_NAME" not in os.environ:
        arguments.setdefault("exp_name", name)
    return Live(**arguments)
