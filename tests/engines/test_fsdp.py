"""Several real processes under torch's FSDP, both generations of it, train as one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from hexloop.app.command_line import main
from tests.engines.several.training import Training, distance, ended, fresh, run
from tests.engines.test_ddp import same

ENGINES = {1: "FullyShardedDataParallel", 2: "FSDPReader"}
LAYERS = {"transformer_layer_cls_to_wrap": ["Linear"]}


def fsdp(version: int, strategy: str = "full_shard", config: dict[str, Any] | None = None, **given: Any) -> Training:
    """A run of two processes under the generation `version`, each of whose layers is gathered by itself."""
    settings = {"version": version, **LAYERS, **(config or {})}
    arguments = {"eval_strategy": "epoch", "fsdp": strategy, "fsdp_config": settings, **given}
    return Training(processes=2, engine=ENGINES[version], arguments=arguments)


def alone(training: Training) -> Training:
    """The same in one process, without an engine."""
    kept = {name: value for name, value in training.arguments.items() if not name.startswith(("fsdp", "save"))}
    return training.of(1, arguments=kept)


@pytest.mark.parametrize("version", [1, 2])
def test_two_processes_train_as_one_does(tmp_path: Path, version: int) -> None:
    """What is logged, evaluated and learned is the same; resumed, bitwise in two and up to rounding in one.

    Each process writes its share of the weights and of the moments, and the model's files are those of any model.
    """
    training = fsdp(version, save_strategy="steps", save_steps=4, num_train_epochs=2).of(2, rows=29)
    one = run(alone(training), fresh(tmp_path / "1"))
    both = run(training, fresh(tmp_path / "2"))
    same(one, both)
    saved = tmp_path / "2" / "checkpoint-4"
    index = json.loads((saved / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    assert set(index["weight_map"]) == set(one.weights)
    assert len(list(saved.glob("optimizer-0000?-of-00002.safetensors"))) == 2
    resumed = run(training.of(2, resume=str(saved)), fresh(tmp_path / "3"))
    assert resumed.logged == both.logged
    assert distance(resumed.weights, both.weights) == 0.0
    same(one, run(alone(training).of(1, resume=str(saved)), fresh(tmp_path / "4")))


def evaluate(trainer: Any) -> None:
    """An evaluation outside of a run."""
    trainer.evaluate()


@pytest.mark.parametrize("version", [1, 2])
def test_an_evaluation_computes_with_the_weights_that_were_loaded_last(tmp_path: Path, version: int) -> None:
    """Those of the best checkpoint, though the evaluation before they were loaded had gathered others."""
    training = fsdp(
        version, "shard_grad_op", num_train_epochs=2, save_strategy="epoch", load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,
    ).of(2, afterwards=evaluate)  # fmt: skip
    trained = run(training, fresh(tmp_path / "run"))
    first, last, afterwards = (entry["eval_loss"] for entry in trained.logged if "eval_loss" in entry)
    assert last < first
    assert afterwards == first


def evaluate_and_train_again(trainer: Any) -> None:
    """An evaluation, of whose weights nothing may stay behind, and a second run."""
    trainer.evaluate()
    trainer.train()


@pytest.mark.parametrize("version", [1, 2])
def test_a_trainer_that_has_evaluated_trains_again(tmp_path: Path, version: int) -> None:
    """What the second run logs and learns is what one process does, where gathered weights are kept after a forward."""
    training = fsdp(version, "shard_grad_op", num_train_epochs=1).of(2, afterwards=evaluate_and_train_again)
    same(run(alone(training), fresh(tmp_path / "1")), run(training, fresh(tmp_path / "2")))


STRATEGIES: dict[str, tuple[str, dict[str, Any]]] = {
    "full_shard": ("full_shard auto_wrap", {}),
    "shard_grad_op": ("shard_grad_op", {}),
    "no_shard": ("no_shard", {}),
    "hybrid_shard": ("hybrid_shard", {"halves": True}),
    "hybrid_shard_zero2": ("hybrid_shard_zero2", {"halves": True}),
    "recomputed": ("full_shard", {"activation_checkpointing": True, "forward_prefetch": True}),
    "by size": ("full_shard", {"transformer_layer_cls_to_wrap": None, "min_num_params": 500}),
    "whole": ("full_shard", {"transformer_layer_cls_to_wrap": None, "auto_wrap_policy": "NO_WRAP"}),
}


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_trains_as_one_process_does(tmp_path: Path, version: int, name: str) -> None:
    """Two and four processes, with gradients that meet in every micro-batch, and in a window's last alone."""
    strategy, config = STRATEGIES[name]
    one = run(alone(fsdp(version)).of(1, batch=1), fresh(tmp_path / "1"))
    for processes in (2, 4):
        mesh = {"device_mesh": [2, processes // 2]} if config.get("halves") else {}
        settings = {**{key: value for key, value in config.items() if key != "halves"}, **mesh}
        for each in (True, False):
            accumulation = {"gradient_accumulation_kwargs": {"sync_each_batch": each}}
            training = fsdp(version, strategy, settings, accelerator_config=accumulation).of(processes, batch=1)
            same(one, run(training, fresh(tmp_path / f"{processes} {each}")))


@pytest.mark.matrix
@pytest.mark.parametrize("offload", [True, False])
def test_weights_in_host_memory_train_identically(tmp_path: Path, offload: bool) -> None:
    """FSDP 2 with its parameters kept on the host learns what it learns without."""
    training = fsdp(2, "full_shard offload" if offload else "full_shard")
    same(run(alone(training), fresh(tmp_path / "1")), run(training, fresh(tmp_path / "2")))


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
def test_four_processes_resume_bit_for_bit(tmp_path: Path, version: int) -> None:
    """Sums of four are not commutative, and dropout draws in every process: yet nothing differs."""
    training = fsdp(version, save_strategy="steps", save_steps=5, num_train_epochs=2, weight_decay=0.1)
    training = training.of(4, depth=40, dropout=0.1)
    whole = run(training, fresh(tmp_path / "whole"))
    for step in (5, 10):
        resumed = run(
            training.of(4, resume=str(tmp_path / "whole" / f"checkpoint-{step}")), fresh(tmp_path / f"from {step}")
        )
        assert resumed.logged == whole.logged
        assert distance(resumed.weights, whole.weights) == 0.0


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
def test_the_weights_may_be_put_together_in_one_file(tmp_path: Path, version: int) -> None:
    """At each save where it is asked for, and off-line from a checkpoint of shards: the same file, to the bit."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "num_train_epochs": 1}
    for kind in ("full", "sharded"):
        training = fsdp(version, config={"state_dict_type": f"{kind}_state_dict".upper()}, **saving)
        run(training, fresh(tmp_path / kind))
    files = sorted(path.name for path in (tmp_path / "full/checkpoint-4").glob("model*"))
    assert files == ["model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "full/weights").glob("model*")) == files
    assert main(["checkpoints", "consolidate", str(tmp_path / "sharded/checkpoint-4")]) == 0
    consolidated = load_file(tmp_path / "sharded/checkpoint-4-consolidated/model.safetensors")
    whole = load_file(tmp_path / "full/checkpoint-4/model.safetensors")
    assert consolidated.keys() == whole.keys()
    assert distance(consolidated, whole) == 0.0
    training = fsdp(version, **saving).of(2, resume=str(tmp_path / "full/checkpoint-4"))
    resumed = run(training, fresh(tmp_path / "resumed")).weights
    assert distance(resumed, load_file(tmp_path / "full/weights/model.safetensors")) == 0.0


ENDS: dict[str, Training] = {
    "one": alone(fsdp(2)),
    "ddp 2": alone(fsdp(2)).of(2, engine="DistributedDataParallel"),
    "fsdp1 2": fsdp(1),
    "fsdp1 4": fsdp(1).of(4),
    "fsdp2 2": fsdp(2),
    "fsdp2 4": fsdp(2).of(4),
}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("saved", "goes_on"),
    [
        ("one", "fsdp1 2"), ("one", "fsdp2 4"), ("ddp 2", "fsdp2 2"), ("fsdp2 2", "fsdp2 4"), ("fsdp2 4", "fsdp1 2"),
        ("fsdp1 2", "fsdp2 4"), ("fsdp1 4", "ddp 2"), ("fsdp2 4", "one"), ("fsdp1 4", "fsdp1 2"),
    ],
)  # fmt: skip
def test_a_checkpoint_goes_on_under_any_engine(tmp_path: Path, saved: str, goes_on: str) -> None:
    """The same is learned from the middle of an epoch on, by another number of processes and another engine."""
    steps = {"save_strategy": "steps", "save_steps": 4, "logging_steps": 3}
    first, second = (
        each.of(each.processes, arguments={**each.arguments, **steps}) for each in (ENDS[saved], ENDS[goes_on])
    )
    whole = run(first, fresh(tmp_path / "whole"))
    resumed = run(second.of(second.processes, resume=str(tmp_path / "whole" / "checkpoint-4")), fresh(tmp_path / "2"))
    same(whole, resumed)


@pytest.mark.matrix
def test_what_is_wrong_with_the_settings_is_said_at_once(tmp_path: Path) -> None:
    """Every process refuses, before it meets the others, with all that is wrong."""
    training = fsdp(2, "full_shard", {"min_num_parms": 3, "xla": True, "device_mesh": [2, 2]}, optim="lomo")
    for said in ended(training, fresh(tmp_path / "run")):
        assert "did you mean min_num_params" in said
        assert "hexloop has no engine for XLA" in said
        assert "full_shard has one replica" in said


@pytest.mark.matrix
def test_a_file_of_weights_holds_no_more_than_the_share_of_a_process(tmp_path: Path) -> None:
    """The files of four processes are about equal, and hold every tensor once."""
    training = fsdp(2, save_strategy="steps", save_steps=4).of(4, depth=16)
    run(training, fresh(tmp_path / "run"))
    sizes: list[int] = []
    names: list[str] = []
    for file in sorted((tmp_path / "run" / "checkpoint-4").glob("model-*.safetensors")):
        with safe_open(file, "pt") as tensors:
            held = list(tensors.keys())
            sizes.append(sum(tensors.get_tensor(name).numel() for name in held))
            names += held
    assert len(sizes) == 4
    assert len(names) == len(set(names))
    assert max(sizes) < 1.5 * sum(sizes) / 4
    assert torch.tensor(sizes).min() > 0
