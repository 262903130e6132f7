"""Metrics for people: one readable line per record, on any text stream."""

from __future__ import annotations

from typing import TextIO

from hexloop.ports.logger import FINISHED, Outcome, Record, RunInformation, Value


class Console:
    """Logger adapter that writes to `stream`, such as `sys.stdout`. The stream is not closed.

    Args:
        stream: where the lines go, such as `sys.stdout`.
    """

    in_loop = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total_steps: int | None = None

    def start(self, run: RunInformation) -> str | None:
        """Store the length of the run; nothing is written."""
        self._total_steps = run.total_steps
        return None

    def write(self, record: Record) -> None:
        """Write and flush one line."""
        cells = [f"step {self._step(record.step)}", f"epoch {record.epoch:.2f}"]
        cells += [f"{name} {_text(value)}" for name, value in record.values.items() if name not in ("step", "epoch")]
        self._stream.write("  ".join(cells) + "\n")
        self._stream.flush()

    def finish(self, outcome: Outcome = FINISHED) -> None:
        """No-op."""

    def _step(self, step: int) -> str:
        """Return the step out of the total, padded so that the columns align."""
        if self._total_steps is None:
            return str(step)
        return f"{step:{len(str(self._total_steps))}d}/{self._total_steps}"


def _text(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else " ".join(str(value).split())
