"""No process holds the whole model while a sharded model is saved or loaded, measured in bytes."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.engines.processes import in_processes
from tests.engines.several.live_bytes import LiveBytes

LAYERS, WIDTH = 40, 512
LAYER = WIDTH * WIDTH * 4
WHOLE = LAYERS * LAYER
"""Bytes of the weights; the moments take twice as many."""

ENGINES: dict[str, dict[str, Any]] = {
    f"fsdp{version}": {
        "fsdp": "full_shard", "fsdp_config": {"version": version, "transformer_layer_cls_to_wrap": ["Linear"]},
    }
    for version in (1, 2)
} | {"zero3": {"deepspeed": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}}}  # fmt: skip


class Tower(nn.Module):
    """Many layers of the same size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return {"loss": x.square().mean()}


def held(engine: str, folder: str, rank: int, size: int) -> dict[str, float]:
    """Return the peak of a process's additional memory, in layers, while each part of its state is saved and loaded."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(1)
    from hexloop import Trainer, TrainingArguments
    from hexloop.adapters.contents.checkpoint import parts_of
    from hexloop.adapters.storage.local import LocalStorage
    from hexloop.app.assembly.state import is_sharded
    from hexloop.app.assembly.torch.state import model_state, optimizer_state

    arguments = TrainingArguments(
        folder, max_steps=2, save_steps=2, save_strategy="steps", per_device_train_batch_size=2, report_to=[],
        disable_tqdm=True, use_cpu=True, **ENGINES[engine],
    )  # fmt: skip
    trainer: Any = Trainer(Tower(), arguments, train_dataset=[{"x": torch.ones(WIDTH)} for _ in range(32)])
    trainer.train()
    assert arguments.world_size == size
    parts = trainer._collect_parts()
    assert is_sharded(parts.adapters.parallelism, parts.model)
    storage, found = LocalStorage(folder), {}
    names = [entry.name for entry in storage.list("checkpoint-2")]
    keepers: dict[str, Any] = {"model": model_state(parts), "optimizer": optimizer_state(parts)}
    for name, keeper in keepers.items():
        gc.collect()
        with LiveBytes() as live:
            exported = list(keeper.export())
        found[f"{name} saved"] = live.peak / LAYER
        del exported
        gc.collect()
        with LiveBytes() as live:
            keeper.load(parts_of(name, names, lambda path, start=0: storage.read(f"checkpoint-2/{path}", start)))
        found[f"{name} loaded"] = live.peak / LAYER
    return found


MOST: dict[str, int] = {"model saved": 1, "model loaded": 0, "optimizer saved": 2, "optimizer loaded": 2}
"""Limit of a process's additional memory, relative to its share of the weights, besides some layers and a chunk."""

ON_THE_WAY = 4 + (2 << 22) / LAYER
"""In layers: a few tensors, and two chunks of the file being read."""


@pytest.mark.matrix
@pytest.mark.parametrize(("engine", "size"), [("fsdp1", 4), ("fsdp2", 2), ("fsdp2", 4), ("zero3", 4)])
def test_a_process_holds_only_its_share(tmp_path: Path, engine: str, size: int) -> None:
    """Saving takes a second copy of its share, loading only its moments; shares shrink with the number of processes."""
    if engine == "zero3":
        pytest.importorskip("deepspeed")
    for outcome in in_processes(size, lambda rank: held(engine, str(tmp_path), rank, size)):
        if isinstance(outcome, BaseException):
            raise outcome
        assert outcome.keys() == MOST.keys()
        for phase, layers in outcome.items():
            assert layers <= MOST[phase] * LAYERS / size + ON_THE_WAY, (phase, outcome)
            if phase.endswith("saved"):
                assert layers >= MOST[phase] * LAYERS / size - 2, "the count misses something"
