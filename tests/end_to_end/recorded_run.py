"""A run as its journal and system metrics record it, of any length, without training one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hexloop.domain.run_folder import JOURNAL, system_file

START = 1.7e9
SPIKE = 40.0

INFORMATION: dict[str, Any] = {
    "kind": "information",
    "time": START,
    "host": {"name": "node-17", "processor": "a processor", "cpus": 64, "memory": 540_000_000_000, "devices": 2},
    "git": {"commit": "0123456789abcdef", "branch": "main", "changed_files": 2},
    "packages": {"torch": "2.13.0"},
    "model": {"name": "Net", "parameters": 1_000_000, "trainable_parameters": 1000, "bytes": 4_000_000},
    "data": {"training_samples": 60_000},
}


def record_run(folder: Path, steps: int, ranks: int = 2, name: str = "a") -> Path:
    """Write the files of a run of this many steps, one a second, with a spike of the gradient norm at two thirds."""
    notes: list[dict[str, Any]] = [
        {"kind": "began", "run": name, "step": 0, "time": START, "total_steps": steps, "settings": {"seed": 1}},
        INFORMATION,
    ]
    for step in range(1, steps + 1):
        norm = SPIKE if step == steps * 2 // 3 else 1 + (step % 7) / 10
        values = {"loss": 3 * math.exp(-3 * step / steps) + 0.1 * (step % 2), "grad_norm": norm, "epoch": step / 1000}
        values["num_input_tokens_seen"] = 1000 * step
        notes.append({"kind": "logged", "step": step, "samples": 8 * step, "time": START + step, "values": values})
    notes.append({"kind": "ended", "step": steps, "time": START + steps, "stopped": False, "reasons": []})
    journal = folder / JOURNAL
    journal.parent.mkdir(parents=True)
    journal.write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    for rank in range(ranks):
        began = {"kind": "began", "run": name, "rank": rank, "host": "node-17", "process": 1, "step": 0, "time": START}
        samples = [
            {
                "time": START + at * steps / 200,
                "step": at * steps // 200,
                "cpu": 40.0 + at % 10,
                "process_cpu": 100.0 + rank,
                "memory": 1e11,
                "memory_total": 5.4e11,
                "gpu_use": 90.0 - rank,
            }
            for at in range(1, 200)
        ]
        (folder / system_file(rank)).write_text("".join(f"{json.dumps(each)}\n" for each in [began, *samples]))
    return folder
