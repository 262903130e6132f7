"""Training in several real processes under torch's FSDP, versions 1 and 2, matches one process."""

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
    """Return a run of two processes under FSDP `version`, with each layer as a unit."""
    settings = {"version": version, **LAYERS, **(config or {})}
    arguments = {"eval_strategy": "epoch", "fsdp": strategy, "fsdp_config": settings, **given}
    return Training(processes=2, engine=ENGINES[version], arguments=arguments)


def alone(training: Training) -> Training:
    """Return the result of the same run in one process, without an engine."""
    kept = {name: value for name, value in training.arguments.items() if not name.startswith(("fsdp", "save"))}
    return training.of(1, arguments=kept)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("version", [1, 2])
def test_training_in_two_processes_matches_one(tmp_path: Path, version: int) -> None:
    """Logs, evaluation and weights match; resume is bitwise equal in two processes and equal up to rounding in one.

    Each process writes its shard of the weights and moments; the model files have the usual format.
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
    """Evaluate outside a run."""
    trainer.evaluate()


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
def test_an_evaluation_uses_the_weights_loaded_last(tmp_path: Path, version: int) -> None:
    """The best checkpoint's weights are used, although the evaluation before loading had gathered others."""
    training = fsdp(
        version, "shard_grad_op", num_train_epochs=2, save_strategy="epoch", load_best_model_at_end=True,
        metric_for_best_model="eval_loss", greater_is_better=True,
    ).of(2, afterwards=evaluate)  # fmt: skip
    trained = run(training, fresh(tmp_path / "run"))
    first, last, afterwards = (entry["eval_loss"] for entry in trained.logged if "eval_loss" in entry)
    assert last < first
    assert afterwards == first


def evaluate_and_train_again(trainer: Any) -> None:
    """Evaluate, keep no gathered weights, and train a second time."""
    trainer.evaluate()
    trainer.train()


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
def test_a_trainer_trains_again_after_an_evaluation(tmp_path: Path, version: int) -> None:
    """The second run matches one process, where gathered weights are kept after a forward pass."""
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
def test_every_strategy_matches_one_process(tmp_path: Path, version: int, name: str) -> None:
    """Two and four processes, with gradients reduced in every micro-batch, and only in the last of a window."""
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
    """FSDP 2 with parameters offloaded to the host trains as without offloading."""
    training = fsdp(2, "full_shard offload" if offload else "full_shard")
    same(run(alone(training), fresh(tmp_path / "1")), run(training, fresh(tmp_path / "2")))


@pytest.mark.matrix
@pytest.mark.parametrize("version", [1, 2])
def test_four_processes_resume_bitwise(tmp_path: Path, version: int) -> None:
    """Sums of four depend on order, and every process uses dropout; resume is bitwise equal all the same."""
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
def test_sharded_weights_can_be_consolidated_into_one_file(tmp_path: Path, version: int) -> None:
    """At each save if requested, and offline from a sharded checkpoint: the two files are identical."""
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
    ("saved", "resumed_by"),
    [
        ("one", "fsdp1 2"), ("one", "fsdp2 4"), ("ddp 2", "fsdp2 2"), ("fsdp2 2", "fsdp2 4"), ("fsdp2 4", "fsdp1 2"),
        ("fsdp1 2", "fsdp2 4"), ("fsdp1 4", "ddp 2"), ("fsdp2 4", "one"), ("fsdp1 4", "fsdp1 2"),
    ],
)  # fmt: skip
def test_a_checkpoint_resumes_under_any_engine(tmp_path: Path, saved: str, resumed_by: str) -> None:
    """From the middle of an epoch, training matches with another number of processes and another engine."""
    steps = {"save_strategy": "steps", "save_steps": 4, "logging_steps": 3}
    first, second = (
        each.of(each.processes, arguments={**each.arguments, **steps}) for each in (ENDS[saved], ENDS[resumed_by])
    )
    whole = run(first, fresh(tmp_path / "whole"))
    resumed = run(second.of(second.processes, resume=str(tmp_path / "whole" / "checkpoint-4")), fresh(tmp_path / "2"))
    same(whole, resumed)


@pytest.mark.matrix
def test_all_wrong_options_are_reported_before_the_rendezvous(tmp_path: Path) -> None:
    """Every process refuses before the rendezvous, and reports all problems."""
    training = fsdp(2, "full_shard", {"min_num_parms": 3, "xla_fsdp_v2": True, "device_mesh": [2, 2]}, optim="lomo")
    for said in ended(training, fresh(tmp_path / "run")):
        assert "did you mean min_num_params" in said
        assert "it is for FSDP on XLA" in said
        assert "full_shard has one replica" in said


@pytest.mark.matrix
def test_a_weights_file_contains_only_the_shard_of_its_process(tmp_path: Path) -> None:
    """The files of four processes have about the same size, and contain every tensor once."""
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
