"""What shows a run for as long as it lasts."""

from __future__ import annotations

from abc import ABC, abstractmethod

from hexloop.app.callbacks.base import TrainerCallback


class ProgressDisplay(TrainerCallback, ABC):
    """A callback that has something on show from the beginning of a run to its end."""

    @abstractmethod
    def close(self) -> None:
        """Show nothing more of this run. Called however it ends, with an error as well; may be called twice."""
