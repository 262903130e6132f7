"""Training in 8 bits, and in bfloat16 alone, in several real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hexloop import Trainer
from tests.engines.several.training import WORDS, Trained, Training, distance, ended, fresh, run

WIDTH = 32


class Block(nn.Module):
    """A residual layer, which FSDP gathers as a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return hidden values of the same shape."""
        return hidden + torch.tanh(self.linear(hidden))


class Reader(nn.Module):
    """Predicts each token from itself; of its four linear layers, the two blocks' can multiply in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits of shape (rows, tokens, 31), and the mean loss over the labels that count."""
        logits = self.out(self.blocks(self.first(self.words(words))))
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class OfReader(Trainer):
    """Trains the model of this module instead of the one that it is given."""

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(Reader(), *args, **kwargs)


class OfReaderInBfloat16(Trainer):
    """The same, with weights in bfloat16."""

    def __init__(self, model: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(Reader().to(torch.bfloat16), *args, **kwargs)


EVERY_EPOCH = {"eval_strategy": "epoch", "num_train_epochs": 2, "save_strategy": "steps", "save_steps": 4}

FSDP: dict[str, Any] = {
    "fsdp": "full_shard",
    "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Block"]},
}


def in_8_bits(fp8: dict[str, Any] | None = None, **given: Any) -> Training:
    """Return a run in fp8 of one process."""
    emulated = {"backend": "torchao", "emulate": True, **(fp8 or {})}
    return Training(kind=OfReader, rows=29, arguments={**EVERY_EPOCH, "fp8": emulated, **given})


def losses(trained: Trained) -> list[float]:
    return [entry["loss"] for entry in trained.logged if "loss" in entry]


def local_weights(trainer: Any) -> dict[str, Any]:
    """Return this process's shards of the parameters."""
    sharded = trainer.adapters.parallelism.layout.parameters(trainer.model)
    return {name: parameter._local_tensor for name, parameter in sharded.items()}


def gathered_in_8_bits(trainer: Any) -> None:
    """Check that the weights of the blocks' layers are gathered in 8 bits, with scales that were computed together."""
    for name, held in local_weights(trainer).items():
        if "blocks" in name and "bias" not in name:
            assert type(held).__name__ == "WeightWithDynamicFloat8CastTensor"
            assert held._precomputed_scale is not None
        else:
            assert type(held) is Tensor


def gathered_in_16_bits(trainer: Any) -> None:
    """Check that they are not."""
    assert all(type(held) is Tensor for held in local_weights(trainer).values())


ENGINES: dict[str, Training] = {
    "DDP": in_8_bits().of(2),
    "FSDP 2": in_8_bits(None, **FSDP).of(2, engine="FSDPReader", afterwards=gathered_in_8_bits),
    "FSDP 2, gathered in bf16": in_8_bits({"enable_fsdp_float8_all_gather": False}, **FSDP).of(
        2, engine="FSDPReader", afterwards=gathered_in_16_bits
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", ENGINES)
def test_two_processes_in_8_bits_match_one(tmp_path: Path, name: str) -> None:
    """Losses are those of one process, but for the scales of other batches; a run that resumes is bitwise equal.

    The files have the names and the types of the model, whatever FSDP keeps the weights as.
    """
    pytest.importorskip("torchao")
    training = ENGINES[name]
    alone = run(in_8_bits(), fresh(tmp_path / "1"))
    both = run(training, fresh(tmp_path / "2"))
    assert losses(both) == pytest.approx(losses(alone), rel=0.03)
    assert losses(both)[-1] < losses(both)[0]
    assert both.weights.keys() == alone.weights.keys() == Reader().state_dict().keys()
    assert all(value.dtype == torch.float32 for value in both.weights.values())
    assert distance(both.weights, alone.weights) < 0.03
    resumed = run(training.of(2, resume=str(tmp_path / "2" / "checkpoint-4")), fresh(tmp_path / "3"))
    assert resumed.logged == both.logged
    assert distance(resumed.weights, both.weights) == 0.0


def test_fsdp_1_in_8_bits_is_refused(tmp_path: Path) -> None:
    """Its flat shards are not those of layers."""
    pytest.importorskip("torchao")
    config = {"version": 1, "transformer_layer_cls_to_wrap": ["Block"]}
    for said in ended(in_8_bits(fsdp="full_shard", fsdp_config=config).of(2), fresh(tmp_path)):
        assert "You chose the precision fp8 with FSDP 1" in said


# bfloat16 alone


def same_on_all_ranks(trainer: Any) -> None:
    """Check that the replicas of all weights are bitwise equal."""
    for parameter in trainer.model.parameters():
        bits = parameter.detach().contiguous().view(-1).view(torch.uint8)
        found = [torch.empty_like(bits) for _ in range(2)]
        dist.all_gather(found, bits)
        assert torch.equal(*found)


def in_bfloat16(options: str, **given: Any) -> Training:
    """Return a run of one process whose weights are in bfloat16."""
    optimizer = {"optim": "adamw_anyprecision", "optim_args": options, "learning_rate": 1e-3, "weight_decay": 0.1}
    return Training(kind=OfReaderInBfloat16, rows=29, arguments={**EVERY_EPOCH, **optimizer, **given})


@pytest.mark.one_in(4)
@pytest.mark.parametrize("engine", ["FSDP 2", "DDP"])
@pytest.mark.parametrize("options", ["rounding=stochastic", "use_kahan_summation=True"])
def test_two_processes_in_bfloat16_match_one(tmp_path: Path, engine: str, options: str) -> None:
    """Replicas round in the same way; a run that resumes is bitwise equal."""
    if engine == "DDP":
        training = in_bfloat16(options).of(2, afterwards=same_on_all_ranks)
    else:
        training = in_bfloat16(options, **FSDP).of(2, engine="FSDPReader")
    alone = run(in_bfloat16(options), fresh(tmp_path / "1"))
    both = run(training, fresh(tmp_path / "2"))
    assert losses(both) == pytest.approx(losses(alone), rel=0.03)
    assert all(value.dtype == torch.bfloat16 for value in both.weights.values())
    assert distance(both.weights, alone.weights) < 0.03
    resumed = run(training.of(2, resume=str(tmp_path / "2" / "checkpoint-4")), fresh(tmp_path / "3"))
    assert resumed.logged == both.logged
    assert distance(resumed.weights, both.weights) == 0.0
