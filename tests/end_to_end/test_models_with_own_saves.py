"""Models and callables of other libraries: methods and attributes of familiar names mean what they mean there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import ref

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import BertConfig

from hexloop import Trainer, default_data_collator
from hexloop.adapters.batches.torch.collate import collate_columns
from hexloop.adapters.batches.torch.passes import runs_no_user_code
from hexloop.adapters.batches.torch.workers import ShieldedIterator, _end
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}


class ValueHead(nn.Module):
    """Wraps a model as trl's value head does, with `config`, `save_pretrained` and `state_dict` of its own.

    Its `save_pretrained` cannot be called as transformers' can, and its state dict leaves out the wrapper's name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_model, self.config = net(), BertConfig()

    def forward(self, **inputs: Any) -> Any:
        return self.pretrained_model(**inputs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.pretrained_model.state_dict(*args, **kwargs)

    def save_pretrained(self, folder: str, state_dict: dict[str, Tensor]) -> None:
        raise AssertionError("this method is not transformers'")


class Adapted(Net):
    """A model whose `peft_config` and `save_pretrained` are not PEFT's."""

    peft_config: ClassVar = {"default": {"r": 2}}

    def save_pretrained(self) -> None:
        raise AssertionError("this method is not PEFT's")

    def can_generate(self) -> bool:
        raise AssertionError("this method is not transformers'")


class Processor:
    """Cannot save itself, and is false, as an empty collection is."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("make", [ValueHead, lambda: net(kind=Adapted)], ids=["wrapper", "adapters"])
def test_weights_are_written_for_models_of_other_libraries(make: Callable[[], Any], tmp_path: Path) -> None:
    """`save_model` and checkpoints contain the state dict and no configuration, and a run resumes from them."""
    trainer = small_trainer(tmp_path, parts={"model": make(), "processing_class": Processor()}, **SAVING)
    trainer.train()
    trainer.save_model()
    for folder in (tmp_path, tmp_path / "checkpoint-4"):
        saved = load_file(folder / "model.safetensors")
        assert same_weights(saved, weights(trainer))
        assert not (folder / "config.json").exists()
    again = small_trainer(tmp_path, parts={"model": make()}, **SAVING)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same_weights(weights(again), weights(trainer))


def test_a_given_state_dict_is_what_is_written(tmp_path: Path) -> None:
    """As libraries do it: an overridden `_save` changes the state dict and passes it on."""

    class Doubling(Trainer):
        def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
            super()._save(output_dir, {name: 2 * each for name, each in self.model.state_dict().items()})

    trainer = small_trainer(tmp_path, Doubling, {"model": ValueHead()})
    trainer.save_model()
    saved = load_file(tmp_path / "model.safetensors")
    assert same_weights(saved, {name: 2 * each for name, each in weights(trainer).items()})


# Callables


def summed(features: list[Any], scale: float = 1.0) -> Any:
    batch = default_data_collator(features)
    return {**batch, "x": batch["x"] * scale}


class Collator:
    """Has attributes of the names that a partial has, and is false, as an empty collection is."""

    def __init__(self) -> None:
        self.args, self.func, self.keywords = {"scale": 1.0}, None, ()

    def __call__(self, features: list[Any]) -> Any:
        return summed(features)

    def __len__(self) -> int:
        return 0

    def collate(self, features: list[Any]) -> Any:
        return summed(features)


COLLATORS: dict[str, Callable[..., Any]] = {
    "partial of keywords": partial(summed, scale=1.0),
    "partial of partial": partial(partial(summed), scale=1.0),
    "object": Collator(),
    "method": Collator().collate,
    "lambda": lambda features: summed(features, 1.0),
}


def measured(prediction: Any, scale: float) -> dict[str, float]:
    return {"mean": float(prediction.predictions.mean()) * scale}


def first(logits: Tensor, labels: Tensor, scale: float) -> Tensor:
    return logits * scale


def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None, scale: float = 1.0) -> Tensor:
    return nn.functional.mse_loss(outputs["logits"], labels) * scale


@pytest.mark.parametrize("reproduce", [None, "transformers"])
def test_every_kind_of_callable_is_called(reproduce: str | None, tmp_path: Path) -> None:
    """A partial, an object, a method or a lambda as collator and as other functions trains as the plain ones do."""

    def trained(name: str, collator: Any) -> tuple[dict[str, Tensor], float]:
        parts = {
            "model_init": partial(net, dropout=0.0, kind=Net),
            "compute_loss_func": partial(loss, scale=2.0),
            "data_collator": collator,
            "eval_dataset": rows(8),
            "compute_metrics": partial(measured, scale=1.0),
            "preprocess_logits_for_metrics": partial(first, scale=1.0),
        }
        trainer = small_trainer(tmp_path / name, parts=parts, reproduce=reproduce, eval_strategy="epoch", max_steps=2)
        assert trainer.data_collator is collator
        trainer.train()
        return weights(trainer), trainer.state.log_history[-2]["eval_mean"]

    plain, mean = trained("plain", summed)
    for name, collator in COLLATORS.items():
        found = trained(name, collator)
        assert same_weights(found[0], plain), name
        assert found[1] == mean, name


def test_only_our_own_partial_is_looked_into() -> None:
    """A partial that leaves out columns runs no code of the user's, any other may."""
    columns = frozenset({"x"})
    ours = partial(collate_columns, default_data_collator, columns)
    loaders: list[Any] = [
        torch.utils.data.DataLoader(rows(4), collate_fn=each)  # type: ignore[arg-type]
        for each in (default_data_collator, ours, partial(summed, scale=2.0), *COLLATORS.values())
    ]
    assert [runs_no_user_code(each) for each in loaders] == [True, True, False, *[False] * len(COLLATORS)]


EXIT = """
import multiprocessing.util
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer
import sys, json
given = json.loads(sys.argv[2])
trainer = small_trainer(sys.argv[1], parts={"eval_dataset": rows(8)}, dataloader_num_workers=1,
    dataloader_persistent_workers=True, eval_strategy="epoch", **given)
trainer.train()
batches = iter(trainer.get_eval_dataloader())
next(batches)
print("trained", flush=True)
"""


@pytest.mark.matrix
@pytest.mark.parametrize("reproduce", [pytest.param(None, marks=pytest.mark.matrix), "transformers"])
def test_a_program_exits_with_live_workers(reproduce: str | None, tmp_path: Path) -> None:
    """Also if it imported multiprocessing before torch, which then ends its own handling of workers first."""
    command = [sys.executable, "-c", EXIT, str(tmp_path), json.dumps({"reproduce": reproduce})]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (0, "trained"), done.stderr


def test_workers_that_are_ended_at_exit_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this, torch raises that a worker was killed."""
    iterator = ShieldedIterator(torch.utils.data.DataLoader(rows(4), num_workers=1))  # type: ignore[arg-type]
    monkeypatch.setattr(torch.utils.data._utils, "python_exit_status", True)  # as torch's exit function does
    _end(ref(iterator))
    os.waitid(os.P_PID, iterator._workers[0].pid or 0, os.WEXITED | os.WNOWAIT)
    assert not iterator._workers[0].is_alive()


def test_logs_contain_the_words_that_programs_look_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights that do not fit are reported with "missing keys" and "unexpected keys"."""
    trainer = small_trainer(tmp_path)
    trainer.save_model()
    full = load_file(tmp_path / "model.safetensors")
    trainer._save(str(tmp_path / "other"), {"unknown": torch.ones(2), **dict(list(full.items())[1:])})
    caplog.clear()
    trainer._load_from_checkpoint(str(tmp_path / "other"))
    assert f"missing keys: {next(iter(full))}" in caplog.text
    assert "unexpected keys: unknown" in caplog.text
    caplog.clear()
    trainer._load_from_checkpoint(str(tmp_path))
    assert "keys" not in caplog.text
