"""Two processes that train on the same GPU."""

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

WORLDS: dict[str, dict[str, Any]] = {
    "DDP": {},
    "DDP in bf16": {"bf16": True},
    "FSDP 2": {"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, "min_num_params": 1}},
}
"""Further arguments of two processes that share the GPU, over gloo, because nccl refuses to share a GPU."""


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
def test_two_processes_train_as_one_and_resume(world: str, alone: list[float], tmp_path: Path) -> None:
    """The losses are those of one process with the whole batch, and those of a resumed run are those of the run."""
    given = {**WORLDS[world], "per_device_train_batch_size": 4, "ddp_backend": "gloo"}
    whole = launched(tmp_path, 2, False, given)
    assert whole["device"] == "cuda:0"
    assert "gloo" in whole["backend"]
    assert whole["losses"] == pytest.approx(alone, rel=3e-2 if "bf16" in given else 1e-4)
    assert launched(tmp_path, 2, True, given)["losses"] == whole["losses"]
