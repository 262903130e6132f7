"""A folder of runs as a sweep over arguments and seeds leaves it, for pictures of pages and for counting clicks."""

from __future__ import annotations

import json
import math
import time
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from hexloop.domain.run_folder import JOURNAL, system_file

STEPS, EVERY = 600, 3
"""How many steps a run has, and how many lie between two logs."""

RATES, OPTIMIZERS, SEEDS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), ("adamw_torch", "sgd"), 5


SLOW = 7
"""The number of the run that waits for data, and whose loss has a spike."""


def settings_of(number: int, rate: float, optimizer: str, seed: int) -> dict[str, Any]:
    """Return the arguments of a run."""
    return {
        "learning_rate": rate, "optim": optimizer, "seed": seed, "per_device_train_batch_size": 16, "max_steps": STEPS,
        "num_train_epochs": 3.0, "eval_strategy": "steps", "weight_decay": 0.01 if number % 2 else 0.0, "bf16": True,
        "warmup_steps": 20, "board_control": True, "output_dir_hint": "None",
    }  # fmt: skip


def notes_of(number: int, settings: dict[str, Any], now: float) -> list[dict[str, Any]]:
    """Return the journal of a run: one in ten is running, one failed, and one was stopped; one is slow."""
    draw = Random(number)
    state = {3: "running", 13: "running", 23: "failed", 33: "stopped"}.get(number, "finished")
    steps = STEPS if state == "finished" else STEPS * 2 // 3
    pace = 1.6 if number == SLOW else 0.4
    start = now - steps * pace - (0 if state == "running" else 3600 * (1 + number))
    rate, quality = settings["learning_rate"], 1.0 / (1 + abs(math.log10(settings["learning_rate"]) + 2.7))
    began = {"kind": "began", "time": start, "run": f"{number:032x}", "step": 0, "total_steps": STEPS,
             "settings": settings, "defaults": {"learning_rate": 5e-5, "seed": 42, "optim": "adamw_torch"},
             "command": f"python train.py --learning_rate {rate} --seed {settings['seed']}"}  # fmt: skip
    notes: list[dict[str, Any]] = [began]
    for step in range(EVERY, steps + 1, EVERY):
        loss = 0.4 + (2.2 - quality) * math.exp(-step * quality / 150) + draw.gauss(0, 0.03)
        if number == SLOW and step == 300:
            loss += 6.0  # a spike
        values = {"loss": round(loss, 4), "grad_norm": round(1 + draw.random(), 4), "epoch": round(step / 200, 3),
                  "learning_rate": rate * (1 - step / STEPS)}  # fmt: skip
        notes.append(
            {"kind": "logged", "time": start + step * pace, "step": step, "samples": step * 16, "values": values}
        )
        if step % 60 == 0:
            accuracy = min(0.5 + 0.4 * quality * (1 - math.exp(-step / 200)) + draw.gauss(0, 0.01), 0.99)
            evaluated = {"eval_loss": round(loss + 0.05, 4), "eval_accuracy": round(accuracy, 4), "eval_runtime": 2.0}
            notes.append({"kind": "logged", "time": start + step * pace + 0.2, "step": step, "values": evaluated})
    if number == SLOW:
        waited = steps * (pace - 0.4)
        spent = {"step": steps * 0.35, "data": waited, "saving": steps * 0.02, "evaluating": steps * 0.03}
        notes.append({"kind": "goodput", "time": start + steps * pace, "step": steps, "seconds": spent})
    end = start + steps * pace + 1
    if state == "finished":
        notes.append({"kind": "ended", "time": end, "step": steps, "stopped": False, "reasons": []})
    elif state == "failed":
        notes.append({"kind": "ended", "time": end, "step": steps})
    elif state == "stopped":
        notes.append({"kind": "ended", "time": end, "step": steps, "stopped": True, "reasons": ["signal SIGTERM"]})
    return notes


def write_sweep(folder: Path) -> list[str]:
    """Write the runs below a folder, and return their names."""
    names, now = list[str](), time.time()
    for number, (rate, optimizer, seed) in enumerate(product(RATES, OPTIMIZERS, range(SEEDS))):
        settings = settings_of(number, rate, optimizer, seed)
        name = f"{optimizer.split('_')[0]}-lr{rate:g}-seed{seed}"
        path = folder / name / JOURNAL
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{json.dumps(note)}\n" for note in notes_of(number, settings, now)))
        samples = [
            {"time": now - 600 + each, "step": each, "cpu": 50.0, "process_memory": 1e9 + each * 1e6, "memory": 4e9}
            for each in range(0, STEPS, 5)
        ]
        began = {"kind": "began", "run": f"{number:032x}", "rank": 0, "host": "here", "process": 1, "step": 0}
        lines = [{**began, "time": now - 601}, *samples]
        (folder / name / system_file(0)).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        (folder / name / "predictions.txt").write_text("A text that the model wrote.\n" * 3)
        names.append(name)
    return names
