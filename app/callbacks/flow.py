"""The default flow of a run."""

from __future__ import annotations

from hexloop.app.callbacks.base import TrainerCallback


class DefaultFlowCallback(TrainerCallback):
    """Stands for the run's triggers: while it is among the callbacks, the arguments say when to log, evaluate and save.

    A marker without events of its own, since the triggers belong to the loop and run without any callback.
    """
