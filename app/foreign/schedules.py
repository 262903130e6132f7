"""The state of a learning-rate schedule as the reference library's schedulers have it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hexloop.domain.json_documents import json_value
from hexloop.domain.state import RunState
from hexloop.ports.state import Part


def foreign_schedule(parts: Mapping[str, Part], groups: Sequence[Mapping[str, Any]], state: RunState) -> dict[str, Any]:
    """The state dict of the torch scheduler that the reference library makes for the schedule of a checkpoint.

    A torch scheduler of the user's has its own; a schedule that is a function of the step is a `LambdaLR`, and the one
    that follows a metric is `ReduceLROnPlateau`. Raises ValueError for the greedy one, which is neither.
    """
    rates = [float(group["lr"]) for group in groups]
    if "scheduler" in parts:
        kept: dict[str, Any] = json_value(parts["scheduler"])["state"]
        return kept
    if "adaptive" in parts:
        return _plateau(json_value(parts["adaptive"])["state"], rates, state)
    return {
        "base_lrs": [float(group.get("initial_lr", group["lr"])) for group in groups],
        "last_epoch": state.updates,
        "_step_count": state.updates + 1,
        "_is_initial": False,
        "_get_lr_called_within_step": False,
        "_last_lr": rates,
        "lr_lambdas": [None] * len(groups),
    }


def _plateau(memory: Mapping[str, Any], rates: list[float], state: RunState) -> dict[str, Any]:
    if "cooldown_counter" not in memory or "warmup_counter" in memory:
        raise ValueError("the greedy schedule's state has no place in the reference library's")
    entries: dict[str, Any] = {
        "num_bad_epochs": memory["num_bad_epochs"],
        "cooldown_counter": memory["cooldown_counter"],
        "last_epoch": state.step,
        "_last_lr": rates,
    }
    best = memory["best"]
    return entries if best is None or not math.isfinite(best) else {**entries, "best": best}
