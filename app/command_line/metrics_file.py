"""Metrics as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hexloop.domain.json_documents import finite_json


def metrics_text(metrics: Mapping[str, Any], checkpoint: str | None) -> str:
    """The metrics, and the checkpoint that they belong to, as JSON; without the epoch, as nothing is trained."""
    measured = {name: value for name, value in metrics.items() if name != "epoch"}
    return (
        json.dumps({"checkpoint": checkpoint, **finite_json(measured)}, indent=2, allow_nan=False, default=str) + "\n"
    )
