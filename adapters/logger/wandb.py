"""Metrics and models for Weights & Biases."""

from __future__ import annotations

import logging
import netrc
import os
import re
import tempfile
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

from hexloop.adapters.logger.tracker import (
    ALL_MEDIA,
    SINGLE_VALUES,
    Models,
    Tracker,
    curves_of,
    grouped,
    name_of_media,
    numbers_of,
    parameters_of,
    values_of,
)
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import Media, Outcome, Record, RunInformation, SavedModel

FLUSH_INTERVAL = "x_transaction_log_flush_interval"
FLUSH_VARIABLE = "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL"
"""How wandb spells the variable of a setting whose name starts with x."""
X_AXIS = "train/global_step"
EXIT_CODES = {"finished": 0, "failed": 1, "preempted": 1, "stopped": 255}
"""What the process would exit with; 255 is how wandb itself marks a run as killed."""
ARTIFACT_NAME_LENGTH = 120
"""wandb allows 128 characters."""
LOG_MODEL: dict[str, Models] = {"false": "none", "end": "final", "checkpoint": "checkpoints"}

_logger = logging.getLogger("hexloop.loggers")


class Wandb(Tracker):
    """Logger adapter for wandb, with the variables and names of transformers' callback.

    Variables: WANDB_PROJECT (by default "huggingface"), WANDB_LOG_MODEL ("end", "checkpoint", "false"), WANDB_WATCH
    ("gradients", "parameters", "all", "false"), and those of the library, such as WANDB_MODE, WANDB_DIR, WANDB_RUN_ID.

    If the user has started a run, that one is used and stays open. Raises ConfigurationError if wandb is missing or too
    old, and from `start` if there is no login and WANDB_MODE asks for the server.
    """

    package = ("wandb", "wandb", "wandb", "0.20")
    media = ALL_MEDIA

    _own: ClassVar[set[str]] = set()
    """Ids of the runs in this process that an adapter has started and not finished."""

    def __init__(self) -> None:
        super().__init__()
        self._stored: tuple[int, frozenset[str]] = (-1, frozenset())
        self._evaluates = False
        self._artifact_name = ""
        self.models = _models(os.environ.get("WANDB_LOG_MODEL", "false"))

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        import wandb

        active = wandb.run
        if active is not None and active.id not in self._own and run.trial in (None, active.name):
            return active, False
        _check_login(wandb)
        started = wandb.init(**_arguments(run), **_settings(wandb, active))
        self._own.add(started.id)
        return started, True

    def _describe(self, run: RunInformation) -> str | None:
        self._run.config.update(parameters_of(run), allow_val_change=True)
        if run.parameters is not None:
            self._run.config.update({"model/num_parameters": run.parameters}, allow_val_change=True)
        self._run.define_metric(X_AXIS)
        self._run.define_metric("*", step_metric=X_AXIS, step_sync=True)
        self._stored = self._already_there()
        self._evaluates = str(run.configuration.get("eval_strategy", "no")) != "no"
        self._artifact_name = f"model-{_allowed(self._run.name) if _is_chosen(run) else self._run.id}"
        self._watch(run)
        if self.models != "none" and run.model is not None:
            self._log_architecture(run)
        return cast(str, self._run.id)

    def write(self, record: Record) -> None:
        """Log the values at their step, with the step also as "train/global_step"; those of the whole run are summary.

        A record that a resumed run has already is left out. If the user's own logs have moved wandb's step beyond the
        record's, the record is logged at the next one, because wandb drops values of earlier steps. wandb keeps a row
        in memory until it is complete, so a row waits for the evaluation of the same step only in runs that evaluate.
        """
        names = frozenset(record.values)
        if record.step < self._stored[0] or (record.step == self._stored[0] and names <= self._stored[1]):
            return
        summary = {name: value for name, value in record.values.items() if name in SINGLE_VALUES and value is not None}
        if summary:
            self._run.summary.update(summary)
        curves = curves_of(record.values, without=SINGLE_VALUES)
        step = record.step if record.step >= self._run.step else None
        if step is None and summary and set(curves) <= {"train/epoch"}:
            return  # the row of this step has the epoch
        is_complete = not self._evaluates or any(name.startswith("eval_") for name in names)
        self._run.log({**curves, X_AXIS: record.step}, step=step, commit=is_complete or step is None)

    def write_media(self, media: Media) -> None:
        """Log it under its name at its step; a text is shown as it is, in a page of its own.

        What a resumed run has already is left out. It waits for the values of the same step, as far as these come.
        """
        name = name_of_media(media)
        is_stored = media.step < self._stored[0] or (media.step == self._stored[0] and name in dict(self._run.summary))
        if is_stored:
            return
        step = media.step if media.step >= self._run.step else None
        self._run.log({name: _object_of(media), X_AXIS: media.step}, step=step, commit=step is None)

    def save(self, model: SavedModel) -> None:
        """Log the folder as a version of the artifact "model-...": of the final model, or of a checkpoint."""
        metadata: dict[str, object] = {
            name: value
            for name, value in dict(self._run.summary).items()
            if isinstance(value, int | float) and not name.startswith("_")
        }
        metadata |= {grouped(name): value for name, value in numbers_of(model.metrics).items()}
        metadata["model/num_parameters"] = self._run.config.get("model/num_parameters")
        if model.final:
            aliases = ["final_model"]
            metadata["final_model"] = True
        else:
            aliases = [f"epoch_{round(model.epoch, 2)}", f"checkpoint_global_step_{model.step}"]
        self._log_folder(model.folder, metadata, aliases + ["best"] * model.best)

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        run.unwatch()
        run.summary.update(values_of(outcome))

    def _close(self, run: Any, outcome: Outcome) -> None:
        """Finish the run with an exit code that fits the outcome."""
        self._own.discard(run.id)
        if outcome.kind == "preempted":
            run.mark_preempting()
        run.finish(exit_code=EXIT_CODES[outcome.kind])

    def _already_there(self) -> tuple[int, frozenset[str]]:
        """Return the last step that a resumed run has, and the names of all its values."""
        if not self._run.resumed:
            return -1, frozenset()
        summary = dict(self._run.summary)
        step = summary.get(X_AXIS)
        names = {name.removeprefix("train/").replace("/", "_", 1) for name in summary}
        return (int(step) if isinstance(step, int | float) else -1), frozenset(names)

    def _watch(self, run: RunInformation) -> None:
        log = os.environ.get("WANDB_WATCH", "false")
        if log in ("gradients", "parameters", "all") and run.model is not None:
            steps = run.configuration.get("logging_steps")
            interval = max(100, int(steps)) if isinstance(steps, int | float) else 100
            self._run.watch(run.model, log=log, log_freq=interval)

    def _log_architecture(self, run: RunInformation) -> None:
        metadata: dict[str, object] = {
            "model_config": dict(run.model_configuration) or None,
            "num_parameters": run.parameters,
            "initial_model": True,
        }
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model_architecture.txt").write_text(f"{run.model}\n", encoding="utf-8")
            self._log_folder(folder, metadata, ["base_model"])

    def _log_folder(self, folder: str, metadata: Mapping[str, object], aliases: list[str]) -> None:
        """Log a folder as an artifact; wandb has copied it when this returns."""
        import wandb

        artifact = wandb.Artifact(name=self._artifact_name, type="model", metadata=dict(metadata))
        artifact.add_dir(folder)
        self._run.log_artifact(artifact, aliases=aliases)


def _object_of(media: Media) -> Any:
    """Return a medium as wandb has it."""
    import wandb

    content, caption = media.content, media.caption or None
    if media.kind == "image":
        return wandb.Image(media.file, caption=caption)
    if media.kind == "audio":
        return wandb.Audio(media.file, caption=caption, sample_rate=content["rate"])
    if media.kind == "table":
        return wandb.Table(columns=content["columns"], data=content["rows"], allow_mixed_types=True)
    if media.kind == "histogram":
        return wandb.Histogram(np_histogram=(content["counts"], content["edges"]))
    return wandb.Html(f"<pre>{escape(str(content['text']))}</pre>", inject=False)


def _models(word: str) -> Models:
    if word.lower() not in LOG_MODEL:
        _logger.warning(
            "WANDB_LOG_MODEL=%s is not known, so no model is logged; use one of: %s.", word, ", ".join(LOG_MODEL)
        )
    return LOG_MODEL.get(word.lower(), "none")


def _allowed(name: str) -> str:
    """Return a name of an artifact without the characters that wandb refuses."""
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:ARTIFACT_NAME_LENGTH]


def _is_chosen(run: RunInformation) -> bool:
    return run.chosen_name is not None and run.chosen_name not in (run.folder, run.configuration.get("output_dir"))


def _arguments(run: RunInformation) -> dict[str, object]:
    """Return the arguments of wandb.init; wandb itself reads WANDB_RUN_ID and WANDB_RESUME, which win."""
    arguments: dict[str, object] = {"project": os.environ.get("WANDB_PROJECT", "huggingface")}
    if run.trial is not None:
        arguments |= {"name": run.trial, "group": run.group or run.chosen_name or run.folder}
    elif run.chosen_name is not None:
        arguments["name"] = run.chosen_name
    if run.tracked_as is not None and "WANDB_RUN_ID" not in os.environ:
        arguments |= {"id": run.tracked_as, "resume": os.environ.get("WANDB_RESUME") or "allow"}
    return arguments


def _settings(wandb: Any, active: Any) -> dict[str, object]:
    """Return further arguments of wandb.init: a run beside the active one, and a file written every second, not every
    15, so that a run that is killed loses little.
    """
    arguments: dict[str, object] = {}
    if active is not None:
        arguments["reinit"] = "create_new"
    if FLUSH_INTERVAL in wandb.Settings.model_fields and FLUSH_VARIABLE not in os.environ:
        arguments["settings"] = wandb.Settings(**{FLUSH_INTERVAL: 1.0})
    return arguments


def _check_login(wandb: Any) -> None:
    """Raise instead of letting wandb ask on the terminal."""
    settings = wandb.setup().settings
    if settings.mode in ("offline", "disabled", "dryrun") or settings.api_key or settings.identity_token_file:
        return
    host = urlsplit(settings.base_url).hostname
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        try:
            if path and netrc.netrc(os.path.expanduser(path)).authenticators(host or ""):
                return
        except (OSError, netrc.NetrcParseError):
            continue
    raise ConfigurationError(
        "Logging to wandb requires a key: set WANDB_API_KEY or run `wandb login`. WANDB_MODE=offline logs to files, "
        "which `wandb sync` uploads later."
    )
