"""Metrics as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """`value` in terms of what JSON has: a number that is not finite becomes "NaN", "Infinity" or "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def metrics_text(metrics: Mapping[str, Any], checkpoint: str | None) -> str:
    """The metrics, and the checkpoint that they belong to, as JSON; without the epoch, as nothing is trained."""
    measured = {name: value for name, value in metrics.items() if name != "epoch"}
    return json.dumps({"checkpoint": checkpoint, **plain(measured)}, indent=2, allow_nan=False, default=str) + "\n"
