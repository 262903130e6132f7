"""`hexloop checkpoints consolidate` writes a model's weights to one file."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, load_file

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.fsspec import FsspecStorage
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from hexloop.ports.storage import File, Storage
from tests.unit.command_line.commands import Commands
from tests.unit.command_line.small_checkpoints import flip

WIDTH, COUNT = 1024, 12


def _bytes(array: Any) -> memoryview:
    return memoryview(array.tobytes())


class Weights:
    """Tensors with the given number of rows of 4 KiB or 2 KiB each."""

    def __init__(self, rows: int) -> None:
        self.arrays = {
            f"layer.{number}": np.full((rows, WIDTH), number, "<f4" if number % 3 else "<f2") for number in range(COUNT)
        }

    def export(self) -> Iterator[Part]:
        for name, array in self.arrays.items():
            dtype = {"float32": "F32", "float16": "F16"}[str(array.dtype)]
            yield Part(name, dtype, array.shape, 0, array.size, partial(_bytes, array))

    def load(self, parts: Any) -> None:
        raise NotImplementedError


def save(storage: Storage, rows: int = 4) -> Weights:
    """Save a checkpoint at step 5 with twelve weight files, a configuration and the run's state."""
    weights = Weights(rows)
    contents = CheckpointContents(
        {"model": weights},
        lambda: [File("config.json", [b"{}"]), File("tokens/vocab.txt", [b"a b"]), File("trainer_state.json", [b"{}"])],
        max_shard_size=rows * WIDTH * 4,
    )
    for _ in CheckpointStore(storage, contents).save(RunState(run="run", step=5)):
        pass
    return weights


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_checkpoint_becomes_a_model_folder(commands: Commands, tmp_path: Path, kind: str) -> None:
    """The folder has one weight file and the model's description, but no run state."""
    place = "runs" if kind == "folder" else f"memory://{uuid.uuid4().hex}"
    storage: Storage = LocalStorage(place) if kind == "folder" else FsspecStorage(place)
    weights = save(storage)
    assert sum(entry.name.startswith("model-") for entry in storage.list("checkpoint-5")) == COUNT
    outcome = commands("checkpoints", "consolidate", f"{place}/checkpoint-5")
    assert (outcome.code, outcome.errors) == (0, "")
    assert outcome.last_line.endswith(f"{place}/checkpoint-5-consolidated")
    names = [entry.name for entry in storage.list("checkpoint-5-consolidated")]
    assert names == ["config.json", "model.safetensors", "tokens"]
    found = load(b"".join(storage.read("checkpoint-5-consolidated/model.safetensors")))
    assert found.keys() == weights.arrays.keys()
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


def test_checkpoint_is_not_modified(commands: Commands, tmp_path: Path) -> None:
    """No byte of the checkpoint changes, and no temporary files remain beside it."""
    save(LocalStorage("runs"))
    before = tree(tmp_path / "runs/checkpoint-5")
    assert commands("checkpoints", "consolidate", "runs/checkpoint-5", "--output", "models/mine").code == 0
    assert tree(tmp_path / "runs/checkpoint-5") == before
    assert [path.name for path in (tmp_path / "runs").glob("[!.]*")] == ["checkpoint-5"]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["mine"]


def test_torch_is_not_needed_and_memory_is_one_tensor(commands: Commands, tmp_path: Path) -> None:
    """Without torch, Python's peak memory stays below half of the files' size."""
    weights = save(LocalStorage("runs"), rows=1024)
    script = """
import sys, tracemalloc
sys.modules["torch"] = sys.modules["deepspeed"] = None
from hexloop.app.command_line import main
assert main(["checkpoints", "verify", "runs"]) == 0  # which imports what is imported
tracemalloc.start()
assert main(["checkpoints", "consolidate", "runs/checkpoint-5"]) == 0
print(tracemalloc.get_traced_memory()[1])
"""
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < sum(array.nbytes for array in weights.arrays.values()) / 2
    assert len(load_file(tmp_path / "runs/checkpoint-5-consolidated/model.safetensors")) == COUNT


def test_incomplete_checkpoints_are_rejected(commands: Commands, tmp_path: Path) -> None:
    """A damaged file and an unpublished or missing folder are reported, and nothing is written."""
    storage = LocalStorage("runs")
    save(storage)
    flip(storage, "checkpoint-5/model-00003-of-00012.safetensors")
    damaged = commands("checkpoints", "consolidate", "runs/checkpoint-5")
    assert damaged.code == 1
    assert "model-00003-of-00012.safetensors" in damaged.errors
    storage.remove("checkpoint-5/manifest.json")
    unpublished = commands("checkpoints", "consolidate", "runs/checkpoint-5")
    assert unpublished.code == 1
    assert "manifest.json" in unpublished.errors
    missing = commands("checkpoints", "consolidate", "runs/checkpoint-6")
    assert missing.code == 2
    assert "there is no such folder" in missing.errors
    assert [path.name for path in (tmp_path / "runs").glob("[!.]*")] == ["checkpoint-5"]


def test_nothing_is_overwritten(commands: Commands, tmp_path: Path) -> None:
    """An existing target, or one in the checkpoint, is rejected; leftovers of a failed attempt are replaced."""
    save(LocalStorage("runs"))
    (tmp_path / "taken").mkdir()
    for output, why in (("taken", "exists already"), ("runs/checkpoint-5/model", "nothing may be written into")):
        outcome = commands("checkpoints", "consolidate", "runs/checkpoint-5", "--output", output)
        assert outcome.code == 2
        assert why in outcome.errors
    (tmp_path / ".unfinished-mine").mkdir()
    (tmp_path / ".unfinished-mine/config.json").write_text("half")
    assert commands("checkpoints", "consolidate", "runs/checkpoint-5", "--output", "mine").code == 0
    assert json.loads((tmp_path / "mine/config.json").read_text()) == {}
    assert not (tmp_path / ".unfinished-mine").exists()


def test_unwritable_target_is_reported(commands: Commands, tmp_path: Path) -> None:
    """The error names the path and how to fix it."""
    save(LocalStorage("runs"))
    (tmp_path / "locked").write_text("a file")
    outcome = commands("checkpoints", "consolidate", "runs/checkpoint-5", "--output", "locked/mine")
    assert outcome.code == 1
    assert "locked" in outcome.errors
