"""What shows a run for as long as it lasts."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from typing import ClassVar

from hexloop.app.callbacks.base import TrainerCallback
from hexloop.app.callbacks.trainer_state import TrainerState


class ProgressDisplay(TrainerCallback, ABC):
    """A callback that has something on show from the beginning of a run to its end.

    Only the first process of all shows anything. A display that fails is given up with a warning, and the run goes on.
    """

    shown_as: ClassVar[str]
    """What the warning calls it."""

    _given_up = False

    @abstractmethod
    def close(self) -> None:
        """Show nothing more of this run. Called however it ends, with an error as well; may be called twice."""

    def give_up(self, error: Exception) -> None:
        """Show nothing from now on, and say why."""
        self._vanish()
        self._given_up = True
        warnings.warn(
            f"The {self.shown_as} failed ({type(error).__name__}: {error}); the run goes on without it. "
            "Set disable_tqdm=True to have none.",
            stacklevel=4,
        )

    @abstractmethod
    def _vanish(self) -> None:
        """Forget what is shown, without showing anything any more."""

    def _shows(self, state: TrainerState) -> bool:
        return state.is_world_process_zero and not self._given_up
