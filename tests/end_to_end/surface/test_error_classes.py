"""Where transformers raises an error, hexloop raises one of the same class, so that code that catches it works."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers
from torch.optim import SGD
from torch.utils.data import IterableDataset

import hexloop
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import Problem
from tests.end_to_end.small.models import net, rows


class Unlimited(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(rows(4))


class OldCollator:
    def collate_batch(self, samples: Any) -> Any:
        return samples


class WithoutLoss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: Any, labels: Any = None) -> Any:
        return {"logits": self.layer(x)}


def arguments(library: ModuleType, folder: Path, **given: Any) -> Any:
    quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "num_train_epochs": 1}
    return library.TrainingArguments(**{"output_dir": str(folder), **quiet, **given})


def trainer(library: ModuleType, folder: Path, given: dict[str, Any] | None = None, **parts: Any) -> Any:
    chosen = {"train_dataset": rows(8), "eval_dataset": rows(4), **parts}
    if "model_init" not in chosen:
        chosen.setdefault("model", net())
    return library.Trainer(args=arguments(library, folder, **(given or {})), **chosen)


def empty_checkpoint(library: ModuleType, folder: Path) -> None:
    (folder / "checkpoint-3").mkdir(parents=True)
    trainer(library, folder).train(resume_from_checkpoint=str(folder / "checkpoint-3"))


def resumed(library: ModuleType, folder: Path, resume_from: Any) -> None:
    trainer(library, folder).train(resume_from_checkpoint=resume_from)


def trained(library: ModuleType, folder: Path, given: dict[str, Any] | None = None, **parts: Any) -> None:
    trainer(library, folder, given, **parts).train()


SGD_OF_ANOTHER = SGD(net().parameters(), 0.1)
BEST_OF_UNKNOWN = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "metric_for_best_model": "unknown",
    "load_best_model_at_end": True,
}
EARLY = hexloop.EarlyStoppingCallback
UNBUILT = ("galore_adamw", "apollo_adamw_layerwise")
"""Optimizers that need `optim_target_modules`."""

Case = Callable[[ModuleType, Path], object]

CASES: dict[str, Case] = {
    "no model": lambda library, folder: library.Trainer(args=arguments(library, folder)),
    "model and model_init": lambda library, folder: trainer(library, folder, model=net(), model_init=net),
    "model_init of two": lambda library, folder: trainer(library, folder, model_init=lambda one, two: net()),
    "model_init returns None": lambda library, folder: trainer(library, folder, model_init=lambda: None),
    "call without model_init": lambda library, folder: trainer(library, folder).call_model_init(),
    "optimizer and its class": lambda library, folder: trainer(
        library, folder, optimizers=(SGD_OF_ANOTHER, None), optimizer_cls_and_kwargs=(SGD, {})
    ),
    "model_init and optimizer": lambda library, folder: trainer(
        library, folder, model_init=WithoutLoss, optimizers=(SGD_OF_ANOTHER, None)
    ),
    "evaluation without data": lambda library, folder: trainer(
        library, folder, {"eval_strategy": "epoch"}, eval_dataset=None
    ),
    "no length": lambda library, folder: trainer(library, folder, train_dataset=Unlimited()),
    "old collator": lambda library, folder: trainer(library, folder, data_collator=OldCollator()),
    "no callback": lambda library, folder: trainer(library, folder, callbacks=[3]),
    "unknown keyword": lambda library, folder: trainer(library, folder, tokeniser=None),
    "unknown keyword of train": lambda library, folder: trainer(library, folder).train(resume=True),
    "unknown argument": lambda library, folder: arguments(library, folder, learning_rates=1),
    "unknown key": lambda library, folder: arguments(library, folder, accelerator_config={"even": True}),
    "missing file": lambda library, folder: arguments(library, folder, accelerator_config="missing.json"),
    "class instead of object": lambda library, folder: arguments(
        library, folder, accelerator_config=vars(library).get("AcceleratorConfig", hexloop.AcceleratorConfig)
    ),
    "half precisions": lambda library, folder: arguments(library, folder, fp16=True, bf16=True),
    "unequal strategies": lambda library, folder: arguments(
        library, folder, load_best_model_at_end=True, eval_strategy="epoch", save_strategy="steps"
    ),
    "compute_metrics by batch": lambda library, folder: trainer(
        library, folder, {"batch_eval_metrics": True}, compute_metrics=lambda prediction: {}
    ),
    "no training data": lambda library, folder: trained(library, folder, train_dataset=None),
    "no evaluation data": lambda library, folder: trainer(library, folder, eval_dataset=None).evaluate(),
    "unknown evaluation data": lambda library, folder: trainer(
        library, folder, eval_dataset={"one": rows(2)}
    ).get_eval_dataloader("other"),
    "no loss": lambda library, folder: trained(library, folder, model=WithoutLoss()),
    "unknown metric": lambda library, folder: trained(library, folder, BEST_OF_UNKNOWN),
    "unknown metric of a schedule": lambda library, folder: trained(
        library,
        folder,
        {
            "eval_strategy": "epoch",
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "metric_for_best_model": "unknown",
        },
    ),
    "early stopping without a metric": lambda library, folder: trained(
        library, folder, {"eval_strategy": "epoch"}, callbacks=[library.EarlyStoppingCallback(1)]
    ),
    "early stopping without evaluation": lambda library, folder: trained(
        library, folder, {"metric_for_best_model": "loss"}, callbacks=[library.EarlyStoppingCallback(1)]
    ),
    "callback that is not there": lambda library, folder: trainer(library, folder).remove_callback(
        library.EarlyStoppingCallback(1)
    ),
    "search": lambda library, folder: trainer(library, folder).hyperparameter_search(),
    "no checkpoint": lambda library, folder: resumed(library, folder, True),
    "missing checkpoint": lambda library, folder: resumed(library, folder, str(folder / "checkpoint-3")),
    "empty checkpoint": empty_checkpoint,
    "unknown interval": lambda library, folder: library.IntervalStrategy("never"),
    "unknown tracker": lambda library, folder: trainer(library, folder, {"report_to": "unknown"}),
    "missing tracker": lambda library, folder: trainer(library, folder, {"report_to": "comet_ml"}),
    "missing flyte": lambda library, folder: trainer(library, folder, {"report_to": "flyte"}),
    **{
        f"optim={name}": lambda library, folder, name=name: trained(library, folder, {"optim": name})  # type: ignore[misc]
        for name in UNBUILT
    },
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_the_class_of_an_error_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """An `except` or `pytest.raises` for the one catches the other."""
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # whatever it is
        CASES[name](transformers, tmp_path / "transformers")
    builtin = next(kind for kind in theirs.type.__mro__ if kind.__module__ == "builtins")
    with pytest.raises(builtin):
        CASES[name](hexloop, tmp_path / "hexloop")


@pytest.mark.parametrize("kind", [KeyError, TypeError, FileNotFoundError, ImportError, RuntimeError, AssertionError])
def test_an_error_is_of_the_kinds_of_its_problems(kind: type[Exception]) -> None:
    """Whatever Python requires of such a class; its message is that of its problems."""
    error = ConfigurationError([Problem("The 'one' is wrong.", ("one",), kind), "So is the other."])

    for each in (error, copy(error)):  # which calls what pickling calls
        assert isinstance(each, kind)
        assert isinstance(each, ConfigurationError)
        assert str(each) == ("2 problems in the configuration:\n  1. The 'one' is wrong.\n  2. So is the other.")
        assert type(each).__name__ == "ConfigurationError"


def test_kinds_of_several_problems_are_joined() -> None:
    """Also if one is derived from another, or from ValueError."""
    kinds = [LookupError, KeyError, None, TypeError, ValueError]
    error = ConfigurationError([Problem(f"Problem {number}.", (), kind) for number, kind in enumerate(kinds)])

    assert isinstance(error, KeyError)
    assert isinstance(error, TypeError)
    assert type(ConfigurationError("One.")) is ConfigurationError
