"""Rules of groups, averages and layer-wise steps with each other, and with optimizers that have traits of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexloop import ConfigurationError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

SLOWER = [{"params": "*weight", "learning_rate_factor": 0.5}]
OF_ITS_OWN = [{"params": "*weight", "ndim": 2, "optimizer": "sgd", "learning_rate": 0.01}]
SWITCHING = [{"params": "*weight", "ndim": 2, "optimizer": "schedule_free_adamw"}]
EMA = {"ema_decay": 0.9}
PROJECTED = {"optim_target_modules": "all-linear"}

TOGETHER: dict[str, dict[str, Any]] = {
    "averages, layer-wise": {**EMA, "optim_layerwise": True},
    "averages, muon": {**EMA, "optim": "muon"},
    "averages, muon, bf16": {**EMA, "optim": "muon", "bf16": True},
    "averages, several optimizers": {**EMA, "param_groups": OF_ITS_OWN},
    "averages, lomo": {**EMA, "optim": "lomo"},
    "averages, fp16": {**EMA, "fp16": True},
    "averages, layer-wise projections": {**EMA, **PROJECTED, "optim": "galore_adamw_layerwise"},
    "averages, layer-wise, 8 bits": {**EMA, "optim": "adamw_torch_8bit", "optim_layerwise": True},
    "averages, best model": {**EMA, "eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True},
    "rules, layer-wise": {"param_groups": SLOWER, "optim_layerwise": True},
    "several optimizers, layer-wise": {"param_groups": OF_ITS_OWN, "optim_layerwise": True},
    "a rule that switches modes": {"param_groups": SWITCHING},
    "rules, schedule-free": {"param_groups": SLOWER, "optim": "schedule_free_adamw"},
    "rules, lomo": {"param_groups": SLOWER, "optim": "lomo"},
    "rules, rates in tensors": {"param_groups": SLOWER, "optim": "adamw_torch_8bit"},
    "rules, adafactor": {"param_groups": SLOWER, "optim": "adafactor"},
    "rules, a schedule of a metric": {
        "param_groups": SLOWER, "lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 2,
    },
    "schedule-free, layer-wise": {"optim": "schedule_free_adamw", "optim_layerwise": True},
    "muon, layer-wise": {"optim": "muon", "optim_layerwise": True},
    "muon, fp16": {"optim": "muon", "fp16": True},
}  # fmt: skip

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rules, projections": (
        {**PROJECTED, "param_groups": SLOWER, "optim": "galore_adamw"},
        "makes its parameter groups",
    ),
    "layer-wise, joint": ({"optim": "grokadamw", "optim_layerwise": True}, "clips the gradients of all parameters"),
    "layer-wise, fp16": ({"optim_layerwise": True, "fp16": True}, "choose bf16"),
    "two averages": ({**EMA, "optim": "schedule_free_adamw"}, "ema_decay"),
}


def trainer_of(folder: Path, given: dict[str, Any]) -> Any:
    arguments = {"max_steps": 8, "num_train_epochs": 9, "save_strategy": "steps", "save_steps": 4, **given}
    parts = {"model": net(), "eval_dataset": rows(8)}
    return small_trainer(folder, parts=parts, gradient_accumulation_steps=2, **arguments)


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", TOGETHER.values(), ids=TOGETHER)
def test_features_of_optimizers_resume_together(given: dict[str, Any], tmp_path: Path) -> None:
    """A resumed run has the weights of one that was not interrupted; they are bit-identical."""
    whole = trainer_of(tmp_path, given)
    untrained = {name: tensor.clone() for name, tensor in weights(whole).items()}
    whole.train()
    assert not same_weights(weights(whole), untrained)
    resumed = trainer_of(tmp_path, given)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert same_weights(weights(resumed), weights(whole))


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_together_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Before the first step, with what to choose instead."""
    with pytest.raises(ConfigurationError, match=words):
        trainer_of(tmp_path, given).train()
