"""Parameter groups by rules, and groups that join, in two processes as in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve

from hexloop import Trainer, TrainerCallback
from tests.engines.several.training import Trained, Training, distance, ended, fresh, run

RULES = [
    {"params": "layers", "ndim": 2, "optimizer": "muon"},
    {"params": "out", "optimizer": "sgd", "optim_args": "momentum=0.9", "learning_rate_factor": 2},
]
DEPTH = [{"params": "*", "layer_decay": 0.7, "betas": [0.8, 0.95]}]
FSDP2 = {"fsdp": "full_shard", "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Linear"]}}

SETUPS: dict[str, tuple[Training, dict[str, Any]]] = {
    "several optimizers": (Training(2), {"param_groups": RULES}),
    "depth": (Training(2), {"param_groups": DEPTH}),
    "frozen": (Training(2), {"param_groups": [{"params": "layers.0", "frozen": True}]}),
    "muon": (Training(2), {"optim": "muon"}),
    "depth under FSDP 2": (Training(2, engine="FSDPReader"), {"param_groups": DEPTH, **FSDP2}),
    "two optimizers under FSDP 2": (Training(2, engine="FSDPReader"), {"param_groups": RULES[1:], **FSDP2}),
}


def alone(training: Training) -> Training:
    kept = {name: value for name, value in training.arguments.items() if not name.startswith("fsdp")}
    return training.of(1, arguments=kept)


def compare(one: Trained, other: Trained, apart: float = 1e-5) -> None:
    """Losses and rates of every log, and weights by their norm, to a relative difference."""
    assert len(one.logged) == len(other.logged)
    for first, second in zip(one.logged, other.logged, strict=True):
        for name in first:
            if name == "loss" or name.startswith("learning_rate"):
                assert second[name] == pytest.approx(first[name], rel=apart, abs=1e-9)
    assert distance(one.weights, other.weights) < apart


@pytest.mark.one_in(100)
@pytest.mark.parametrize("setup", SETUPS)
def test_rules_in_two_processes_are_those_of_one(setup: str, tmp_path: Path) -> None:
    """The run of two processes resumes bitwise."""
    training, arguments = SETUPS[setup]
    saving = {"save_strategy": "steps", "save_steps": 4, "weight_decay": 0.1, "max_grad_norm": 0.5}
    training = evolve(training, arguments={**saving, **arguments})
    both = run(training, fresh(tmp_path / "2"))
    apart = 1e-3 if "muon" in str(arguments) else 1e-5  # it orthogonalizes gradients in bfloat16
    compare(run(alone(training), fresh(tmp_path / "1")), both, apart)
    resumed = run(evolve(training, resume=str(tmp_path / "2" / "checkpoint-4")), fresh(tmp_path / "3"))
    assert resumed.logged == both.logged
    assert distance(resumed.weights, both.weights) == 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"optim": "muon", **FSDP2}, "updates whole matrices"),
        ({"param_groups": RULES, **FSDP2}, "updates whole matrices"),
        (
            {"param_groups": DEPTH, "deepspeed": {"zero_optimization": {"stage": 2}}},
            "param_groups with the parallelism",
        ),
        (
            {"param_groups": DEPTH, "fsdp": "full_shard", "fsdp_config": {"version": 1}},
            "param_groups with the parallel",
        ),
    ],
)
def test_what_an_engine_cannot_group_is_refused(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    if "deepspeed" in arguments:
        pytest.importorskip("deepspeed")
    errors = ended(Training(2, arguments=arguments), fresh(tmp_path))
    assert all(said in error for error in errors), errors


class Adding(TrainerCallback):
    """Adds a group of parameters that were trained, and in no group, at the start."""

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        if state.global_step == 3:
            inner = getattr(model, "module", model)
            optimizer.add_param_group({"params": [inner.out.bias], "lr": 0.02})


class WithoutBias(Trainer):
    """Makes an optimizer that lacks a parameter."""

    def create_optimizer(self, model: Any = None) -> Any:
        named = self.model.named_parameters()
        self.optimizer = torch.optim.AdamW([each for name, each in named if not name.endswith("out.bias")], lr=0.01)
        return self.optimizer


class Thawing(TrainerCallback):
    """Unfreezes a layer whose gradients the processes do not exchange."""

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 3:
            getattr(model, "module", model).layers[0].requires_grad_(True)


class AddingFrozen(TrainerCallback):
    """Adds a group of parameters whose gradients the processes do not exchange."""

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **_: Any
    ) -> None:
        if state.global_step == 3:
            layer = getattr(model, "module", model).layers[0].requires_grad_(True)
            optimizer.add_param_group({"params": list(layer.parameters()), "lr": 0.02})


def test_a_group_joins_in_every_process(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    training = Training(2, callbacks=(Adding,), kind=WithoutBias, arguments=saving)
    both = run(training, fresh(tmp_path / "2"))
    compare(run(training.of(1), fresh(tmp_path / "1")), both)
    resumed = run(evolve(training, resume=str(tmp_path / "2" / "checkpoint-6")), fresh(tmp_path / "3"))
    assert resumed.logged == both.logged
    assert distance(resumed.weights, both.weights) == 0.0


def test_gradients_that_are_not_exchanged_are_not_trained_on(tmp_path: Path) -> None:
    """What was frozen when the processes started cannot join: each would train its own."""
    frozen = {"param_groups": [{"params": "layers.0", "frozen": True}]}
    errors = ended(Training(2, callbacks=(AddingFrozen,), arguments=frozen), fresh(tmp_path / "added"))
    assert all("average the gradients of those parameters only" in error for error in errors), errors
    left = run(Training(2, callbacks=(Thawing,), arguments=frozen), fresh(tmp_path / "left"))
    alone = run(Training(1, arguments=frozen), fresh(tmp_path / "alone"))
    assert distance({"a": left.weights["layers.0.weight"]}, {"a": alone.weights["layers.0.weight"]}) == 0.0
