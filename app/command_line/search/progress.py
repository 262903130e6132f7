"""The progress of a search on the terminal: a row for each trial that has ended, and below them those that train."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, TextIO

from attrs import Factory, define, field

from hexloop.app.callbacks.beside_bars import is_terminal
from hexloop.app.callbacks.console import duration_text, terminal_width
from hexloop.domain.redaction import printable, redact, redacted
from hexloop.domain.search.records import RecordedTrial

UP, ERASE = "\x1b[A", "\r\x1b[J"

WIDTHS = {"trial": 6, "state": 9, "objective": 11, "best": 11, "took": 9}
"""The columns before the parameters, and how many characters each has."""

HEAD = "".join(name.ljust(width) for name, width in WIDTHS.items()) + "parameters"


@define
class SearchProgress:
    """Prints the trials of a search.

    On a terminal there are aligned rows, and the trials that train are redrawn below them; elsewhere each end of a
    trial is a line. minimized: for each objective, whether less is better; of several, none is the best.
    clock: returns seconds from any point in time.
    """

    minimized: Sequence[bool]
    stream: TextIO = field(factory=lambda: sys.stdout)
    clock: Any = monotonic
    draws: bool = Factory(lambda self: is_terminal(self.stream), takes_self=True)
    best: float | None = None
    _running: dict[int, tuple[RecordedTrial, float]] = field(factory=dict)
    _objectives: dict[int, str] = field(factory=dict)  # the last ones: the record forgets those of trials that ended
    _drawn: int = 0
    _headed: bool = False

    def started(self, trial: RecordedTrial) -> None:
        """Show a trial that trains."""
        self._running[trial.number] = trial, self.clock()
        self._show(None)

    def reported(self, trial: RecordedTrial) -> None:
        """Show the newest report of a trial."""
        self._objectives[trial.number] = ", ".join(map(_number, trial.reports[max(trial.reports)]))
        if self.draws:
            self._show(None)

    def ended(self, trial: RecordedTrial) -> None:
        """Show a trial that has ended."""
        self._running.pop(trial.number, None)
        self.count(trial)
        self._show(trial)
        self._objectives.pop(trial.number, None)

    def stopped(self, trial: RecordedTrial) -> None:
        """Show a trial no longer, because it was stopped to be resumed later."""
        self._running.pop(trial.number, None)
        self._show(None)

    def count(self, trial: RecordedTrial) -> None:
        """Take a trial that has ended into account for the best one."""
        value = _first(trial.values)
        if len(self.minimized) > 1 or value is None or value != value:
            return
        better = self.best is None or (value < self.best if self.minimized[0] else value > self.best)
        self.best = value if better else self.best

    def _show(self, ended: RecordedTrial | None) -> None:
        """Print the row of a trial that has ended, and draw those that train again."""
        if not self.draws:
            if ended is not None:
                print(_clean(self._line(ended)), file=self.stream, flush=True)
            return
        text = UP * self._drawn + ERASE
        if not self._headed:
            text, self._headed = f"{text}{self._cut(HEAD)}\n", True
        if ended is not None:
            text += f"{self._cut(self._row(ended, ended.seconds))}\n"
        rows = [self._cut(self._row(each, self.clock() - since)) for each, since in self._running.values()]
        self._drawn = len(rows)
        self.stream.write(text + "".join(f"{row}\n" for row in rows))
        self.stream.flush()

    def _row(self, trial: RecordedTrial, seconds: float) -> str:
        state = "training" if trial.state is None else trial.state.value
        best = "" if self.best is None or trial.state is None else _number(self.best)
        cells = (f"{trial.number}", state, self._objectives_of(trial), best, duration_text(seconds))
        row = "".join(f"{cell} ".ljust(width) for cell, width in zip(cells, WIDTHS.values(), strict=True))
        reason = "" if not trial.reason else f"({trial.reason.removeprefix(f'{state} ')}) "
        return f"{row}{reason}{_parameters(trial.parameters)}"

    def _line(self, trial: RecordedTrial) -> str:
        assert trial.state is not None
        text = f"trial {trial.number} {trial.state.value}"
        if trial.reason:
            text += f" ({trial.reason.removeprefix(f'{trial.state.value} ')})"
        if objectives := self._objectives_of(trial):
            text += f", {'objective' if len(self.minimized) == 1 else 'objectives'} {objectives}"
        if self.best is not None:
            text += f", best {_number(self.best)}"
        return f"{text}, took {duration_text(trial.seconds)}: {_parameters(trial.parameters)}"

    def _objectives_of(self, trial: RecordedTrial) -> str:
        return ", ".join(map(_number, trial.values)) if trial.values else self._objectives.get(trial.number, "")

    def _cut(self, row: str) -> str:
        """Return a row that fits a line of the terminal, so that it can be redrawn."""
        room = max(terminal_width() - 1, 20)
        row = _clean(row)
        return row if len(row) <= room else f"{row[: room - 3]}..."


def _first(values: Sequence[float] | None) -> float | None:
    return values[0] if values else None


def _parameters(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in redacted(dict(parameters)).items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return f"{value:.6g}"


def _clean(text: str) -> str:
    return printable(redact(text))
