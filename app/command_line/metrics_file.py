"""Metrics as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
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


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is there with all its bytes or, whatever goes wrong, not at all; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
