"""Entries that others planted in the outbox between two tiers: what hexloop cannot have made is not carried out."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.storage.tiered.storage import TieredStorage
from hexloop.domain.run_folder import OUTBOX

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "remove everything": {"action": "remove", "path": ""},
    "remove hexloop's folder": {"action": "remove", "path": ".hexloop"},
    "remove the outbox": {"action": "remove", "path": f"{OUTBOX}/x"},
    "move to nowhere": {"action": "move", "path": "checkpoint-1", "target": ""},
    "move into the outbox": {"action": "move", "path": "checkpoint-1", "target": f"{OUTBOX}/x"},
    "move a hidden file": {"action": "move", "path": ".cache", "target": "checkpoint-7"},
    "send to nowhere": {"action": "send", "path": "", "source": "checkpoint-1"},
    "send nothing": {"action": "send", "path": "checkpoint-7"},
    "send all": {"action": "send", "path": "checkpoint-7", "source": ".hexloop"},
    "send the outbox": {"action": "send", "path": "checkpoint-7", "source": OUTBOX},
}


@pytest.mark.parametrize("entry", IMPOSSIBLE)
def test_what_hexloop_cannot_have_made_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture, entry: str) -> None:
    """With a warning that names the entry. Nothing changes, and uploads go on."""
    fast, slow = LocalStorage(tmp_path / "fast"), LocalStorage(tmp_path / "slow")
    for tier in (fast, slow):
        tier.write("checkpoint-1/manifest.json", [b"{}"])
    slow.write(".cache/file", [b"cached"])
    slow.write(".hexloop/journal.jsonl", [b"journal"])
    name = f"{1:020}-0.json"
    fast.write(f"{OUTBOX}/{name}", [json.dumps({"number": 1, **IMPOSSIBLE[entry]}).encode()])
    before = {path: path.read_bytes() for path in (tmp_path / "slow").rglob("*") if path.is_file()}
    with caplog.at_level(logging.WARNING, logger="hexloop.outbox"):
        storage = TieredStorage(fast, slow)
        storage.write("checkpoint-9/weights", [b"weights"])
        storage.close(limit=60)
    assert f"{name} in {OUTBOX} is not carried out" in caplog.text
    written = tmp_path / "slow" / "checkpoint-9" / "weights"
    after = {path: path.read_bytes() for path in (tmp_path / "slow").rglob("*") if path.is_file()}
    assert after == {**before, written: b"weights"}
    assert not fast.list(OUTBOX)
