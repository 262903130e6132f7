"""What the loggers of trackers have in common: their package, their run, how it ends, and how values are named."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, ClassVar, Literal, TypeAlias

from hexloop.domain.errors import ConfigurationError
from hexloop.ports.logger import FINISHED, Media, MediaKind, Outcome, RunInformation, Value

Models: TypeAlias = Literal["none", "final", "checkpoints"]

ALL_MEDIA: frozenset[MediaKind] = frozenset({"text", "table", "image", "histogram", "audio"})

SINGLE_VALUES = (
    "train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos",
)  # fmt: skip
"""Values of a whole run: a summary, not a curve. Source: transformers 5, its callbacks for wandb and swanlab."""


class Tracker:
    """Base of the Logger adapters of trackers; a subclass adds `write`, and the calls of its library.

    package: the module that must be importable, its distribution, the extra of hexloop that installs it, and the oldest
    version that works; None if there is nothing to check. media: the kinds that the tracker takes, with `write_media`.
    Raises ConfigurationError if the package is missing or too old.
    """

    package: ClassVar[tuple[str, str, str, str] | None] = None
    media: frozenset[MediaKind] = frozenset()

    def __init__(self) -> None:
        if self.package is not None:
            require(*self.package)
        self._run: Any = None  # what the library calls its run, between `start` and `finish`
        self._is_own = False
        self._starting: str | None = None  # the run for which `_run` was opened, until it is described
        self._last: dict[str, int] = {}

    def start(self, run: RunInformation) -> str | None:
        """Start a run of the tracker, continue that of `run.tracked_as`, or take the user's; return its identity.

        A call that failed may be repeated: it uses the run that it opened.
        """
        if self._run is None or self._starting != run.run:
            try:
                self.finish()
            finally:  # the next attempt does not try it again
                self._run = None
            self._last = {}
            self._run, self._is_own = self._open(run)
            self._starting = run.run
        identity = None if self._run is None else self._describe(run)
        self._starting = None
        return identity

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """Log how the run ended, and end it in the tracker; a run of the user's stays open.

        A call that failed may be repeated.
        """
        if self._run is None:
            return
        self._log_outcome(self._run, outcome)
        if self._is_own:
            self._close(self._run, outcome)
        self._run = self._starting = None

    def write_media(self, media: Media) -> None:
        """Log a medium of a kind in `media`, at its step."""
        raise NotImplementedError

    def _open(self, run: RunInformation) -> tuple[Any, bool]:
        """Return a run of the library, and whether it is the logger's own. None: nothing is to be logged."""
        raise NotImplementedError

    def _describe(self, run: RunInformation) -> str | None:
        """Log the configuration of the run that was opened; return its identity."""
        return None

    def _log_outcome(self, run: Any, outcome: Outcome) -> None:
        """Log how the run ended; also for a run of the user's."""

    def _close(self, run: Any, outcome: Outcome) -> None:
        """End an own run."""

    def _last_step(self, series: str) -> int:
        """Return the last step that the tracker has of a series; -1 if it has none. Asked once in a run."""
        return -1

    def _lacks(self, series: str, step: int) -> bool:
        """Return whether a series ends before this step; a resumed run, or a repeated call, has it already."""
        if series not in self._last:
            self._last[series] = self._last_step(series)
        return self._last[series] < step


def require(module: str, package: str, extra: str, at_least: str | None = None) -> None:
    """Check that `module` can be imported and that the distribution `package` is no older than `at_least`.

    Nothing is imported. Raises ConfigurationError, which names the extra to install.
    """
    remedy = f"pip install 'hexloop[{extra}]'"
    if not _is_found(module):
        raise ConfigurationError(f"Logging to {extra} requires {package}, which is not installed; {remedy}.")
    if at_least is None:
        return
    try:
        found = version(package)
    except PackageNotFoundError:  # a copy that pip has not installed
        return
    if _numbers(found) < _numbers(at_least):
        raise ConfigurationError(f"Logging to {extra} requires {package} {at_least} or later, not {found}; {remedy}.")


def _is_found(module: str) -> bool:
    """Return whether a module can be imported; a folder of its name, such as the one that wandb writes, is not one."""
    try:
        spec = find_spec(module)
    except (ModuleNotFoundError, ValueError):  # of a parent, or of a module that a test put in its place
        return False
    return spec is not None and spec.origin is not None


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])


def is_true(text: str) -> bool:
    """Return whether a text is "1", "ON", "YES" or "TRUE" in any case."""
    return text.upper() in ("1", "ON", "YES", "TRUE")


def is_set(variable: str) -> bool:
    """Return whether an environment variable is true."""
    return is_true(os.environ.get(variable, ""))


def grouped(name: str) -> str:
    """Return the name of a value with its group in front: "eval/", "test/", or "train/" for the rest.

    Source: transformers 5, `rewrite_logs`.
    """
    for group in ("eval", "test"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    return f"train/{name}"


def curves_of(values: Mapping[str, Value], without: Collection[str] = ()) -> dict[str, Value]:
    """Return values by their grouped names, without None and those of some names."""
    return {grouped(name): value for name, value in values.items() if value is not None and name not in without}


def numbers_of(values: Mapping[str, Value]) -> dict[str, float]:
    """Return the values that are numbers; booleans count as such, texts and None do not."""
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float)}


def name_of_media(media: Media) -> str:
    """Return a name for each of several media that were logged together."""
    return media.name if media.index == 0 else f"{media.name}/{media.index}"


def table_as_markdown(content: Mapping[str, Any]) -> str:
    """Return a table in Markdown."""
    rows = [content["columns"], ["---"] * len(content["columns"]), *content["rows"]]
    return "\n".join(f"| {' | '.join(map(_markdown_cell, row))} |" for row in rows)


def _markdown_cell(value: object) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def values_of(outcome: Outcome) -> dict[str, Value]:
    """Return how a run ended as values to log; the problem only if there is one."""
    problem: dict[str, Value] = {"hexloop/problem": outcome.problem} if outcome.problem else {}
    return {"hexloop/outcome": outcome.kind, **problem}


def flat(values: Mapping[str, object], separator: str = "/", prefix: str = "") -> dict[str, object]:
    """Return nested mappings as one, with names such as "optimizer/lr"."""
    flattened: dict[str, object] = {}
    for name, value in values.items():
        path = f"{prefix}{separator}{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, separator, path)
        else:
            flattened[path] = value
    return flattened


def parameters_of(run: RunInformation) -> dict[str, object]:
    """Return the arguments over the model's configuration, with the adapter's as `peft_config`."""
    combined = {**run.model_configuration, **run.configuration}
    if run.adapter_configuration:
        combined["peft_config"] = dict(run.adapter_configuration)
    return combined
