"""Checkpoints written by released versions load to the same state as in the version that wrote them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.reference import kept_checkpoints

FOLDERS = sorted(Path(kept_checkpoints.__file__).parent.glob("checkpoints_of_*"))
KINDS = [kind if kind == "fp32" else pytest.param(kind, marks=pytest.mark.matrix) for kind in kept_checkpoints.KINDS]


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_released_checkpoint_loads_bit_identically(folder: Path, kind: str) -> None:
    """Weights, moments, options, random states, schedule, log and callbacks, in each process of the run."""
    if kind == "zero2":
        pytest.importorskip("deepspeed")
    loaded = kept_checkpoints.in_processes("load", folder, kind)
    assert loaded == json.loads((folder / f"{kind}.json").read_text())
