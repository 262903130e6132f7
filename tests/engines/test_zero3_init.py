"""Models that ZeRO 3 partitions over real processes while they are created."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hexloop import Trainer, TrainingArguments, zero3_init
from hexloop.app.assembly.state import is_sharded
from hexloop.domain.errors import RunStateError
from tests.engines.processes import in_processes
from tests.engines.several.live_bytes import LiveBytes
from tests.engines.several.training import distance
from tests.engines.test_deepspeed import weights
from tests.engines.test_memory_per_rank import LAYER, LAYERS, WIDTH, Tower

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.matrix

WORDS = [{"input_ids": torch.arange(6) + number, "labels": torch.arange(6) + number} for number in range(16)]


def arguments(folder: Path, rank: int, size: int) -> TrainingArguments:
    """Return the arguments of one process, for two steps."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ["DS_ACCELERATOR"] = "cpu"
    torch.set_num_threads(1)
    given: dict[str, Any] = {"max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no", "report_to": []}
    stage = {"zero_optimization": {"stage": 3}}
    return TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, deepspeed=stage, **given)


def answers(size: int, function: Callable[[int], Any]) -> list[Any]:
    """Return the result of each process. Raises the error of any process."""
    outcomes = in_processes(size, function)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


def test_no_process_holds_the_whole_model_while_creating_it(tmp_path: Path) -> None:
    """A process holds its share and one layer; training matches that of a model created whole."""
    rows = [{"x": torch.linspace(0, number + 1, WIDTH)} for number in range(16)]

    def train_whole(rank: int) -> None:
        whole = Trainer(Tower(), arguments(tmp_path / "whole", rank, 2), train_dataset=rows)
        whole.train()
        whole.save_model()

    def train(rank: int) -> float:
        args = arguments(tmp_path / "spread", rank, 2)
        with zero3_init(args):
            nn.Linear(2, 2)  # importing this module imports the others
        with LiveBytes() as live, zero3_init(args):
            model = Tower()
        assert all(hasattr(parameter, "ds_id") for parameter in model.parameters())
        trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)
        for ask in (trainer.evaluate, trainer.save_model):
            with pytest.raises(RunStateError, match="no run has prepared it yet"):
                ask()
        trainer.train()
        assert is_sharded(trainer.adapters.parallelism, trainer.model)
        trainer.save_model()
        return live.peak / LAYER

    for layers in answers(2, train):
        assert LAYERS / 2 <= layers <= LAYERS / 2 + 4
    answers(2, train_whole)
    assert distance(weights(tmp_path / "whole"), weights(tmp_path / "spread")) == 0.0


def test_models_of_transformers_are_partitioned_while_they_are_created(tmp_path: Path) -> None:
    """With `model_init`, and within the context manager; loaded weights are those of the file."""
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=16)
    saved, kind = tmp_path / "saved", transformers.GPT2LMHeadModel
    torch.manual_seed(0)
    kind(config).save_pretrained(saved)

    def load() -> nn.Module:
        model: nn.Module = kind.from_pretrained(saved)
        return model

    def train(rank: int) -> None:
        for name in ("made", "within", "whole"):
            args = arguments(tmp_path / name, rank, 2)
            if name == "made":
                trainer = Trainer(model_init=load, args=args, train_dataset=WORDS)
            elif name == "within":
                with zero3_init(args):
                    trainer = Trainer(load(), args, train_dataset=WORDS)
            else:
                trainer = Trainer(load(), args, train_dataset=WORDS)
            spread = [hasattr(parameter, "ds_id") for parameter in trainer.model.parameters()]
            assert all(spread) if name != "whole" else not any(spread)
            trainer.train()
            trainer.save_model()

    answers(2, train)
    whole = weights(tmp_path / "whole")
    for name in ("made", "within"):
        assert distance(whole, weights(tmp_path / name)) == 0.0


def test_zero3_init_does_nothing_without_zero_3() -> None:
    """A script may use the context manager under any launcher."""
    with zero3_init(TrainingArguments("run", use_cpu=True)):
        model = nn.Linear(2, 2)
    assert model.weight.shape == (2, 2)
