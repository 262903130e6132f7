"""Metrics, parameters and models as files that DVC reads."""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Literal

from hexloop.adapters.logger.packages import require
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation, SavedModel

FOLDER = "dvclive"
"""The folder of the library, by default in the current one."""

EXPERIMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""Names that git takes as the end of a reference; DVC names other runs itself."""


class DVCLive:
    """Logger adapter for dvclive: the folder "dvclive" with metrics.json, params.yaml and a table of each metric.

    live: an own dvclive.Live; otherwise one is made of `options`. log_model: whether to add the model to DVC: True for
    that of the end, "all" for each checkpoint, too; by default as HF_DVCLIVE_LOG_MODEL says. Each is copied into the
    folder "dvclive/artifacts" first, because checkpoints are removed later.

    Steps are those of the run. As in transformers, `Live.end` is called at the end, which saves an experiment of DVC if
    there is a git repository; a Live in a `with` statement ignores that call. Raises ConfigurationError if dvclive is
    missing or `live` is something else.
    """

    def __init__(self, live: Any = None, log_model: bool | Literal["all"] | None = None, **options: Any) -> None:
        require("dvclive", "dvclive", "dvclive", at_least="3.40")
        if live is not None and not _is_live(live):
            raise ConfigurationError(f"live={live!r} is of the type {type(live).__name__}; pass a dvclive.Live.")
        self._given = live
        self._options = options
        self._live: Any = None
        self._kept: dict[str, int] = {}
        self._load_best = False
        self.models: Literal["none", "final", "checkpoints"] = _models(log_model)

    def start(self, run: RunInformation) -> str | None:
        """Begin a new folder, or continue in it if `run.tracked_as` is its path; return its path.

        Raises ConfigurationError if that is another folder that exists: it is a name from a checkpoint or an outbox,
        which must not choose where files are written.
        """
        self.finish()
        self._live = self._given or _new_live(run, self._options)
        self._kept = {}
        self._load_best = bool(run.configuration.get("load_best_model_at_end"))
        self._live.log_params(json.loads(json.dumps(dict(run.configuration), default=str)))
        return os.path.abspath(str(self._live.dir))

    def write(self, record: Record) -> None:
        """Add a row to the table of each metric, and make it the newest value; None is left out.

        A metric that has this step, or a later one, as after a resume, is left out.
        """
        from dvclive.utils import standardize_metric_name

        self._live.step = record.step
        for name, value in record.values.items():
            metric = standardize_metric_name(name, "dvclive.huggingface")
            if value is not None and self._last_step(metric) < record.step:
                self._live.log_metric(metric, value)
                self._kept[metric] = record.step
        self._live.next_step()

    def save(self, model: SavedModel) -> None:
        """Copy a model and add it to DVC: as "best" or "last" at the end, and as "checkpoint-..." before."""
        if model.final:
            name = "best" if self._load_best else "last"
        else:
            name = model.name
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder, name)  # dvclive names the copy after what it copies
            link.symlink_to(os.path.abspath(model.folder), target_is_directory=True)
            self._live.log_artifact(str(link), name=name, type="model", copy=True)

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Add the outcome to the newest values, and end."""
        live, self._live = self._live, None
        if live is None:
            return
        live.log_metric("hexloop/outcome", outcome.kind, plot=False)
        if outcome.problem:
            live.log_metric("hexloop/problem", outcome.problem, plot=False)
        live.end()

    def _last_step(self, metric: str) -> int:
        """Return the last step in the table of a metric; -1 if it has none."""
        if metric not in self._kept:
            self._kept[metric] = _last_step(Path(self._live.plots_dir, "metrics", f"{metric}.tsv"))
        return self._kept[metric]


def _is_live(live: object) -> bool:
    from dvclive import Live

    return isinstance(live, Live)


def _models(log_model: bool | str | None) -> Literal["none", "final", "checkpoints"]:
    asked = os.environ.get("HF_DVCLIVE_LOG_MODEL", "") if log_model is None else str(log_model)
    if asked.lower() == "all":
        return "checkpoints"
    return "final" if asked.upper() in ("1", "ON", "YES", "TRUE") else "none"


def _new_live(run: RunInformation, options: dict[str, Any]) -> Any:
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


def _last_step(table: Path) -> int:
    try:
        with table.open(encoding="utf-8", newline="") as file:
            steps = [
                int(row["step"]) for row in csv.DictReader(file, delimiter="\t") if (row["step"] or "").isdecimal()
            ]
    except FileNotFoundError:
        return -1
    return max(steps, default=-1)
