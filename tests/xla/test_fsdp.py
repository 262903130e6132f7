"""FSDP on XLA by SPMD: one process with four virtual devices, compared with one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
from pathlib import Path
import torch, torch_xla
from tests.end_to_end.small.models import Net, rows
from tests.end_to_end.small.trainers import history, small_trainer

folder, resume, given = Path(sys.argv[1]), sys.argv[2] or None, json.loads(sys.argv[3])
torch.manual_seed(7)
chosen = {"max_steps": 50, "num_train_epochs": 13, "use_cpu": False, "max_grad_norm": 0.5, **given}
trainer = small_trainer(folder, parts={"model": Net(), "eval_dataset": rows(8, seed=1)}, **chosen)
trainer.train(resume_from_checkpoint=resume)
trainer.save_model(str(folder / "saved"))
sharding = [torch_xla._XLAC._get_xla_sharding_spec(each) for each in trainer.model.parameters()]
weights = {name: each.cpu().tolist() for name, each in trainer.model.state_dict().items()}
print(json.dumps({"history": history(trainer), "weights": weights, "sharding": sharding,
                  "engine": trainer.adapters.parallelism.capabilities.name}))
"""

FSDP: dict[str, Any] = {
    "fsdp": "full_shard",
    "fsdp_config": {"xla": True, "xla_fsdp_v2": True, "xla_fsdp_grad_ckpt": True},
}


def run(folder: Path, resume: Path | None = None, devices: int = 4, **given: Any) -> Any:
    """Run the script above in a process of its own with virtual devices, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(resume or ""), json.dumps(given)], check=False,
        capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def losses(found: Any) -> list[float]:
    return [entry["loss"] for entry in found["history"] if "loss" in entry]


def test_it_trains_as_one_device_does(tmp_path: Path) -> None:
    """The losses of 50 clipped steps agree to 1e-5; weights are sharded, and saved as they were trained."""
    sharded = run(tmp_path / "sharded", eval_strategy="epoch", **FSDP)
    whole = run(tmp_path / "whole", devices=1, eval_strategy="epoch")

    assert (sharded["engine"], whole["engine"]) == ("xla_fsdp_v2", "xla")
    assert any("devices=[4,1]" in each for each in sharded["sharding"])
    assert losses(sharded) == pytest.approx(losses(whole), rel=1e-5, abs=1e-6)
    saved = load_file(tmp_path / "sharded" / "saved" / "model.safetensors")
    for name, values in sharded["weights"].items():
        assert torch.equal(saved[name], torch.tensor(values))
        torch.testing.assert_close(torch.tensor(values), torch.tensor(whole["weights"][name]), rtol=1e-4, atol=1e-5)


def test_it_resumes_exactly_and_on_one_device(tmp_path: Path) -> None:
    """A checkpoint is that of a single process: its own engine continues bit-identically, one device nearly so."""
    saving: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 5}
    whole = run(tmp_path / "whole", **saving, **FSDP)
    checkpoint = tmp_path / "whole" / "checkpoint-5"
    again = run(tmp_path / "again", checkpoint, **saving, **FSDP)
    alone = run(tmp_path / "alone", checkpoint, devices=1, **saving)

    assert again["weights"] == whole["weights"]
    assert again["history"][:-1] == whole["history"][:-1]
    assert losses(alone) == pytest.approx(losses(whole), rel=1e-5, abs=1e-6)
