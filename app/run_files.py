"""The files of a checkpoint that are a run's, and not its model's."""

from __future__ import annotations

import re

from hexloop.adapters.contents.checkpoint.contents import RUN_SETUP, RUN_STATE

KEEPERS = ("optimizer", "scheduler", "scaler", "losses", "data", "random")
"""Who keeps something between steps, besides the model."""

TRAINER_STATE = "trainer_state.json"

_KEPT = re.compile(rf"({'|'.join(KEEPERS)})(-rank-\d{{5}}|-\d{{5}}-of-\d{{5}})?\.(json|safetensors)")


def is_of_run(path: str) -> bool:
    """Whether a file of this name says how a run stands, be it written by one process or by each of several."""
    return path in (RUN_STATE, RUN_SETUP, TRAINER_STATE) or _KEPT.fullmatch(path) is not None
