"""Runs of several processes on a GPU: with nccl in a world of one, and with gloo two processes on the same GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """
import json, os, sys

import torch

from hexloop import Trainer, TrainingArguments
from tests.end_to_end.small.models import net, rows

folder, steps, given = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
args = TrainingArguments(
    output_dir=folder, report_to="none", disable_tqdm=True, learning_rate=0.01, logging_steps=1,
    train_sampling_strategy="sequential", save_strategy="steps", save_steps=4, max_steps=8, **given,
)
trainer = Trainer(net(), args, train_dataset=rows(64))
trainer.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-4") if steps else None)
backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else None
if args.process_index == 0:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("FOUND", json.dumps({"losses": losses, "device": str(args.device), "backend": backend}))
"""

WORLDS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "DDP on nccl": (1, 8, {}),
    "DDP on nccl in bf16": (1, 8, {"bf16": True}),
    "FSDP 2": (1, 8, {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, "min_num_params": 1}}),
    "FSDP 1": (1, 8, {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 1, "min_num_params": 1}}),
    "FSDP 2 with offload": (
        1,
        8,
        {"fsdp": "full_shard auto_wrap offload", "fsdp_config": {"fsdp_version": 2, "min_num_params": 1}},
    ),
    "two processes on gloo": (2, 4, {"ddp_backend": "gloo"}),
}
"""Number of processes, batch size of each, and further arguments. All see the same samples at each step."""


def launched(folder: Path, processes: int, resumed: bool, given: dict[str, Any]) -> dict[str, Any]:
    """Run the script with torchrun, or alone for 0 processes, and return what it found."""
    script = folder / "script.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes else []
    command = [sys.executable, *launcher, str(script), str(folder / "run"), str(int(resumed)), json.dumps(given)]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=240, cwd=root, env=environment(root)
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FOUND "))
    found: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return found


def environment(root: Path) -> dict[str, str]:
    """Return this process's environment, with the project's root among the folders of modules."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process without a launcher."""
    found = launched(tmp_path_factory.mktemp("alone"), 0, False, {"per_device_train_batch_size": 8})
    assert found["device"] == "cuda:0"
    losses: list[float] = found["losses"]
    return losses


@pytest.mark.parametrize("world", WORLDS)
def test_a_world_trains_as_one_process_and_resumes(world: str, alone: list[float], tmp_path: Path) -> None:
    """The losses are those of one process without a launcher, and those of a resumed run those of the run itself."""
    processes, size, given = WORLDS[world]
    given = {**given, "per_device_train_batch_size": size}
    whole = launched(tmp_path, processes, False, given)
    assert whole["device"] == "cuda:0"
    assert given.get("ddp_backend", "nccl") in whole["backend"]
    assert whole["losses"] == pytest.approx(alone, rel=3e-2 if "bf16" in given else 1e-4)
    resumed = launched(tmp_path, processes, True, given)
    assert resumed["losses"] == whole["losses"]
