"""Logs, printed plainly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hexloop.app.callbacks.base import TrainerCallback
from hexloop.app.callbacks.control import TrainerControl
from hexloop.app.callbacks.trainer_state import TrainerState


def readable(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The logs for the eye: floats to four significant digits, and without `total_flos`."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else value
        for name, value in logs.items()
        if name != "total_flos"
    }


class PrinterCallback(TrainerCallback):
    """Prints every log on standard output, from the first process of each machine."""

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Print `logs` on one line."""
        if logs is not None and state.is_local_process_zero:
            print(readable(logs))
