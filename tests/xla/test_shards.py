"""FSDP on XLA in its first version, in one process: compared with torch on the CPU, and with the other engines.

Several processes cannot meet on the CPU. How their shards lie is tested in tests/unit/engines/test_xla_options.py.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hexloop import ConfigurationError
from hexloop.adapters.engines.xla.engine import recompute
from hexloop.domain.errors import RunStateError
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, small_trainer
from tests.xla.test_fsdp import losses as losses_of
from tests.xla.test_fsdp import run
from tests.xla.test_training import Tied, losses, trained

FIRST: dict[str, Any] = {"fsdp": "full_shard", "fsdp_config": {"xla": True, "min_num_params": 20}}
SAVING: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 5}


def settings(**given: Any) -> dict[str, Any]:
    """Return the arguments of a run with these settings of torch_xla's."""
    return {**FIRST, "fsdp_config": {**FIRST["fsdp_config"], "xla_fsdp_settings": given}}


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    """Return the weights that the trainer saves of its model."""
    found: dict[str, torch.Tensor] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return found


CASES: dict[str, dict[str, Any]] = {
    "adamw": {"weight_decay": 0.1, "max_grad_norm": 0.1, **FIRST},
    "sgd, accumulated, recomputed": {
        "optim": "sgd",
        "gradient_accumulation_steps": 2,
        **FIRST,
        "fsdp_config": {**FIRST["fsdp_config"], "xla_fsdp_grad_ckpt": True},
    },
    "by rows, gathered again": settings(
        shard_param_on_dim_0=True, disable_reshard_on_root=False, sync_on_finalization=True
    ),
}


@pytest.mark.parametrize("case", [*CASES][:1] + [pytest.param(each, marks=pytest.mark.matrix) for each in [*CASES][1:]])
def test_it_trains_as_torch_does(tmp_path: Path, case: str) -> None:
    """The losses of 50 steps, the evaluations and the weights agree to 1e-5."""
    given = {**CASES[case], "eval_strategy": "steps", "eval_steps": 10}
    ours = trained(tmp_path / "xla", **given)
    plain = {name: value for name, value in given.items() if not name.startswith("fsdp")}
    theirs = trained(tmp_path / "cpu", use_cpu=True, **plain)

    assert ours.adapters.parallelism.capabilities.name == "xla_fsdp"
    assert type(ours.model_wrapped).__name__ == "XlaFullyShardedDataParallel"
    assert ours.is_fsdp_xla_v1_enabled
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5, abs=1e-6)
    for one, other in zip(history(ours), history(theirs), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
    expected = theirs.model.state_dict()
    assert weights(ours).keys() == expected.keys()
    for name, tensor in weights(ours).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-5)
    assert ours.get_num_trainable_parameters() == theirs.get_num_trainable_parameters()
    groups = [[len(group["params"]) for group in each.optimizer.param_groups] for each in (ours, theirs)]
    assert groups[0] == groups[1]


@pytest.mark.matrix
def test_it_computes_in_bf16(tmp_path: Path) -> None:
    """By the setting, and by autocast, whose losses are those of torch's bf16 to 1e-2."""
    theirs = trained(tmp_path / "cpu", bf16=True, use_cpu=True)
    by_setting = trained(tmp_path / "setting", **settings(compute_dtype="bfloat16"))
    assert losses(by_setting) == pytest.approx(losses(theirs), rel=5e-2, abs=5e-2)
    assert losses(by_setting) != losses(trained(tmp_path / "fp32", **FIRST))
    by_autocast = trained(tmp_path / "autocast", bf16=True, **FIRST)
    assert losses(by_autocast) == pytest.approx(losses(theirs), rel=1e-2, abs=1e-2)


def test_recomputed_models_have_no_cache(caplog: pytest.LogCaptureFixture) -> None:
    """As in transformers; each unit is recomputed once, however often the model is prepared."""
    model: Any = net()
    model.config = SimpleNamespace(use_cache=True)
    units = [model.layers[0]]
    for _ in range(2):
        recompute(model, units)
    assert model.config.use_cache is False
    assert [each.message for each in caplog.records if "use_cache" in each.message] == caplog.messages[:1]
    assert units[0]._xla_checkpointed_forward_original.__func__ is nn.Linear.forward


class Normed(Net):
    """With buffers, which are not sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return super().forward(self.norm(x), labels)


def test_whole_trained_weights_are_saved(tmp_path: Path) -> None:
    """Under the user's names, buffers with them, in a verified checkpoint and by save_model."""
    torch.manual_seed(7)
    trainer = trained(tmp_path, model=Normed(), **SAVING, **FIRST)
    trainer.save_model(str(tmp_path / "saved"))
    again = Normed()
    for folder in (tmp_path / "checkpoint-12", tmp_path / "saved"):
        saved = load_file(folder / "model.safetensors")
        again.load_state_dict(saved)
        assert all(torch.equal(tensor, saved[name]) for name, tensor in weights(trainer).items())
    assert again.norm.num_batches_tracked == 12
    assert not torch.equal(saved["layers.0.weight"], net().state_dict()["layers.0.weight"])


@pytest.mark.matrix
def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """Within a unit they are one shard."""
    torch.manual_seed(7)
    model = Tied()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ours = trained(tmp_path / "xla", model=model, max_steps=10, fsdp="full_shard", fsdp_config={"xla": True})
    again = Tied()
    again.load_state_dict(state)
    theirs = trained(tmp_path / "cpu", model=again, max_steps=10, use_cpu=True)
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)
    found = weights(ours)
    assert torch.equal(found["first.weight"], found["second.weight"])


@pytest.mark.matrix
def test_a_model_is_trained_further_by_another_trainer(tmp_path: Path) -> None:
    """It stays sharded, so it cannot be evaluated before, nor trained by another engine."""
    model = net()
    trained(tmp_path / "one", model=model, max_steps=5, **FIRST)
    fresh = small_trainer(tmp_path, parts={"model": model, "eval_dataset": rows(8)}, use_cpu=False, **FIRST)
    with pytest.raises(RunStateError, match="another Trainer has sharded it"):
        fresh.evaluate()
    with pytest.raises(ConfigurationError, match="was sharded by FSDP on XLA; train it in the same way"):
        trained(tmp_path, model=model)
    trainer = trained(tmp_path / "other", model=model, max_steps=5, **FIRST)
    assert trainer.evaluate()["eval_loss"] > 0
    plain = net()
    trained(tmp_path / "cpu one", model=plain, max_steps=5, use_cpu=True)
    theirs = trained(tmp_path / "cpu other", model=plain, max_steps=5, use_cpu=True)
    assert losses(trainer) == pytest.approx(losses(theirs), rel=1e-5, abs=1e-6)


@pytest.mark.matrix
def test_it_resumes_exactly_and_with_other_engines(tmp_path: Path) -> None:
    """Its own engine continues bit-identically in a fresh process; v2, one device and the CPU nearly so, and back."""
    second = {"fsdp": "full_shard", "fsdp_config": {"xla": True, "xla_fsdp_v2": True}}
    whole = run(tmp_path / "whole", devices=1, **SAVING, **FIRST)
    checkpoint = tmp_path / "whole" / "checkpoint-5"
    again = run(tmp_path / "again", checkpoint, devices=1, **SAVING, **FIRST)
    assert whole["engine"] == again["engine"] == "xla_fsdp"
    assert again["weights"] == whole["weights"]
    assert again["history"][:-1] == whole["history"][:-1]

    others: dict[str, dict[str, Any]] = {"v2": {**second, "devices": 4}, "alone": {"devices": 1}}
    for name, given in others.items():
        found = run(tmp_path / name, checkpoint, **SAVING, **given)
        assert losses_of(found) == pytest.approx(losses_of(whole), rel=1e-5, abs=1e-6)
        back = run(tmp_path / f"from {name}", tmp_path / name / "checkpoint-10", devices=1, **SAVING, **FIRST)
        assert losses_of(back) == pytest.approx(losses_of(whole), rel=1e-5, abs=1e-6)


@pytest.mark.filterwarnings("ignore:The run that resumes from .* may differ in its last bits:UserWarning")
def test_it_resumes_on_the_cpu_and_back(tmp_path: Path) -> None:
    """With the moments of the optimizer, which have the shapes of the whole parameters in a checkpoint."""
    sharded = trained(tmp_path / "sharded", **SAVING, **FIRST)
    checkpoint = str(tmp_path / "sharded" / "checkpoint-5")
    moments = load_file(Path(checkpoint) / "optimizer.safetensors")
    assert moments["layers.0.weight.exp_avg"].shape == net().state_dict()["layers.0.weight"].shape
    alone = trained(tmp_path / "alone", resume=checkpoint, use_cpu=True, **SAVING)
    back = trained(tmp_path / "back", resume=str(tmp_path / "alone" / "checkpoint-10"), **SAVING, **FIRST)
    for other in (alone, back):
        assert losses(other) == pytest.approx(losses(sharded), rel=1e-5, abs=1e-6)


@pytest.mark.matrix
def test_a_run_goes_back_to_its_last_good_state(tmp_path: Path) -> None:
    """Shards that a copy in memory holds are restored: a batch that is not finite leaves no trace."""
    data = rows(64)
    data[20] = {**data[20], "x": torch.full((4,), float("nan"))}
    given: dict[str, Any] = {"use_cpu": False, "on_nonfinite": "skip", **FIRST}
    trainer = small_trainer(tmp_path, parts={"train_dataset": data}, **given)
    trainer.train()
    assert all(torch.isfinite(each).all() for each in weights(trainer).values())
    assert all(map(math.isfinite, losses(trainer)[-5:]))
