"""Overridden save methods in checkpoints of several processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from hexloop import Trainer
from tests.engines.several.training import Training, distance, fresh, run
from tests.engines.test_fsdp import fsdp


class SavingItself(Trainer):
    """Saves in its own layout: rank 0 the weights, each rank a file; and a file before each checkpoint."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        dist.barrier()  # transformers calls it on every rank, too
        folder = Path(str(output_dir))
        folder.mkdir(exist_ok=True)
        (folder / f"rank-{os.environ['RANK']}.txt").write_text("mine")
        (folder / "shared.txt").write_text(os.environ["RANK"])
        (folder / "random.json").write_text('"mine"')
        if self.args.should_save and hasattr(self.model, "words"):
            save_file({"mine": self.model.out.bias.detach().new_zeros(1)}, folder / "model.safetensors")

    def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
        folder = Path(str(self.args.output_dir), f"checkpoint-{self.state.global_step}")
        folder.mkdir(exist_ok=True)
        (folder / f"before-{os.environ['RANK']}.txt").write_text("mine")
        super()._save_checkpoint(model, trial)


class CallingStandard(Trainer):
    """Calls the overridden method, which writes sharded weights, and adds a file."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            Path(str(output_dir), "extra.txt").write_text("mine")


SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "num_train_epochs": 2}


def named_in_manifest(checkpoint: Path) -> set[str]:
    return set(json.loads((checkpoint / "manifest.json").read_text())["files"])


@pytest.mark.matrix
def test_two_processes_write_and_resume(tmp_path: Path) -> None:
    """The checkpoint contains each rank's files, rank 0's where two write the same; resume is bitwise equal."""
    training = Training(arguments=SAVING, kind=SavingItself, rows=29).of(2)
    whole = run(training.of(2, saves=False), fresh(tmp_path / "whole"))
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    found = {path.name for path in checkpoint.iterdir()}

    assert {"rank-0.txt", "rank-1.txt", "before-0.txt", "before-1.txt", "random.json"} <= found
    assert found - {"manifest.json"} == named_in_manifest(checkpoint)
    assert (checkpoint / "shared.txt").read_text() == "0"
    assert (checkpoint / "random.json").read_text() == '"mine"'
    assert {"run_state.json", "run_state-rank-00001.json", "hexloop-model.safetensors"} <= found
    assert set(load_file(checkpoint / "model.safetensors")) == {"mine"}
    assert not list((tmp_path / "whole").glob(".hexloop/replaced-*"))
    resumed = run(training.of(2, resume=str(checkpoint), saves=False), fresh(tmp_path / "resumed"))
    assert resumed.logged == whole.logged
    last = load_file(tmp_path / "whole" / "checkpoint-8" / "hexloop-model.safetensors")
    assert distance(load_file(tmp_path / "resumed" / "checkpoint-8" / "hexloop-model.safetensors"), last) == 0.0


@pytest.mark.parametrize("version", [2, pytest.param(1, marks=pytest.mark.matrix)])
def test_sharded_weights_are_resumed(tmp_path: Path, version: int) -> None:
    """The checkpoint contains what each rank wrote, next to the run's own shards."""
    training = fsdp(version, **SAVING).of(2, kind=CallingStandard, rows=29)
    whole = run(training, fresh(tmp_path / "whole"))
    checkpoint = tmp_path / "whole" / "checkpoint-4"
    names = named_in_manifest(checkpoint)

    assert {"extra.txt", "model.safetensors.index.json", "model-00002-of-00002.safetensors"} <= names
    assert {"hexloop-model.safetensors.index.json", "hexloop-model-00002-of-00002.safetensors"} <= names
    for prefix in ("", "hexloop-"):
        index = json.loads((checkpoint / f"{prefix}model.safetensors.index.json").read_text())
        assert set(index["weight_map"].values()) <= names
    resumed = run(training.of(2, resume=str(checkpoint)), fresh(tmp_path / "resumed"))
    assert resumed.logged == whole.logged
    assert distance(resumed.weights, whole.weights) == 0.0
