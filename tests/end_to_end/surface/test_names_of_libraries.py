"""Names and objects of transformers' Trainer that libraries use, and what they do with them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.optim import SGD
from torch.utils.data import IterableDataset

import hexloop
from hexloop import HfArgumentParser, JITCheckpointCallback, TrainingArguments
from hexloop.domain.errors import ConfigurationError, RunStateError
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer

pytestmark = pytest.mark.filterwarnings("ignore:These modules imported classes of transformers")

SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "constant_with_warmup": {},
    "linear": {},
    "cosine": {"num_cycles": 1.5},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"lr_end": 1e-3, "power": 2.0},
    "inverse_sqrt": {},
    "cosine_with_min_lr": {"min_lr": 0.01},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
    "warmup_stable_decay": {"num_decay_steps": 3},
}


def scheduler_of(library: Any, name: str) -> Any:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    return library.get_scheduler(name, optimizer, 2, 10, scheduler_specific_kwargs=SCHEDULES[name])


@pytest.mark.parametrize("name", SCHEDULES)
def test_functions_of_schedules_carry_their_options(name: str) -> None:
    """The keywords of `lr_lambdas[0]` are those of transformers, and other values of them count."""
    ours, theirs = scheduler_of(hexloop, name).lr_lambdas[0], scheduler_of(transformers, name).lr_lambdas[0]
    given = getattr(theirs, "keywords", {})
    assert ours.keywords == pytest.approx(given) if "type" not in str(given) else ours.keywords == given
    assert [ours(step) for step in range(12)] == [theirs(step) for step in range(12)]
    if "num_training_steps" in given:
        longer = {**given, "num_training_steps": 20}
        expected = [theirs.func(step, **longer) for step in range(12)]
        assert [ours.func(step, **longer) for step in range(12)] == pytest.approx(expected)
        assert [ours(step) for step in range(12)] == [theirs(step) for step in range(12)]
    copied = copy.deepcopy(ours)
    assert [copied(step) for step in range(12)] == [ours(step) for step in range(12)]
    assert scheduler_of(hexloop, name).state_dict()["lr_lambdas"] in ([None], [{}])


def test_the_schedule_of_a_trainer_carries_its_options(tmp_path: Path) -> None:
    """Also after a resume with another batch size has stretched it."""
    trainer = small_trainer(tmp_path, lr_scheduler_type="cosine", warmup_steps=1)
    trainer.create_optimizer_and_scheduler(7)
    expected = {"num_warmup_steps": 1, "num_training_steps": 7, "num_cycles": 0.5}
    assert [each.keywords for each in trainer.lr_scheduler.lr_lambdas] == [expected, expected]


@pytest.mark.parametrize("value", [0, -1, 0.5, 2.0, "2", "often", True])
def test_steps_between_releases_of_memory_are_a_whole_number(value: Any) -> None:
    """Texts and fractions are a ValueError; the command line is read as before."""
    with pytest.raises(ValueError, match="torch_empty_cache_steps"):
        TrainingArguments("out", use_cpu=True, torch_empty_cache_steps=value)
    words = ["--output_dir", "out", "--use_cpu", "--torch_empty_cache_steps", "3"]
    (parsed,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words)
    assert parsed.torch_empty_cache_steps == 3


def test_all_wrappers_of_torch_are_removed(tmp_path: Path) -> None:
    """`unwrap_model` returns the user's model from DataParallel and from a compiled one, in any order."""
    trainer = small_trainer(tmp_path)
    model = trainer.model
    compiled: Any = torch.compile(model)
    for wrapped in (nn.DataParallel(model), compiled, nn.DataParallel(compiled), torch.compile(nn.DataParallel(model))):
        assert trainer.accelerator.unwrap_model(wrapped) is model


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(rows(10))


@pytest.mark.parametrize("data", [rows(10), Stream()], ids=["indexed", "stream"])
def test_evaluation_loaders_with_persistent_workers_are_kept(data: Any, tmp_path: Path) -> None:
    """The same object for the same data, which is read from its start each time; others for other data or settings."""
    kept: dict[str, Any] = {"dataloader_persistent_workers": True, "dataloader_num_workers": 1}
    trainer = small_trainer(tmp_path, parts={"eval_dataset": {"one": data, "other": rows(6)}}, **kept)
    one = trainer.get_eval_dataloader("one")
    first = trainer.evaluate(data)
    assert trainer.get_eval_dataloader("one") is one
    assert trainer.get_eval_dataloader("other") is trainer.get_eval_dataloader("other") is not one
    assert trainer.get_eval_dataloader(data) is trainer.get_eval_dataloader(data) is not one
    assert trainer.get_eval_dataloader(rows(3)) is not trainer.get_eval_dataloader(rows(3))
    assert trainer.evaluate(data)["eval_loss"] == trainer.evaluate(data)["eval_loss"] == first["eval_loss"]
    trainer.args.per_device_eval_batch_size = 2
    assert trainer.get_eval_dataloader("one") is not one
    plain = small_trainer(tmp_path, parts={"eval_dataset": data})
    assert plain.get_eval_dataloader() is not plain.get_eval_dataloader()
    assert plain.evaluate()["eval_loss"] == pytest.approx(first["eval_loss"])


def test_the_callback_of_just_in_time_checkpoints(tmp_path: Path) -> None:
    """It is among the callbacks, under the name that transformers gives it, and knows its Trainer."""
    with hexloop.takeover():
        from transformers.trainer_jit_checkpoint import JITCheckpointCallback as TakenOver
    taken_over: Any = TakenOver
    assert taken_over is JITCheckpointCallback
    trainer = small_trainer(tmp_path, enable_jit_checkpoint=True)
    (found,) = [each for each in trainer.callback_handler.callbacks if isinstance(each, JITCheckpointCallback)]
    assert found.trainer is trainer
    trainer.train()
    assert not any(
        isinstance(each, JITCheckpointCallback) for each in small_trainer(tmp_path).callback_handler.callbacks
    )
    with pytest.raises(ConfigurationError, match="enable_jit_checkpoint=True"):
        small_trainer(tmp_path, parts={"callbacks": [JITCheckpointCallback()]})


class Embedded(nn.Module):
    """A model with input embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(4, 8)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, x: torch.Tensor) -> Any:
        return self.embeddings(x)


def test_noise_on_embeddings_in_a_loop_of_user_code(tmp_path: Path) -> None:
    """The methods of transformers 5.0 add and remove it."""
    trainer = small_trainer(tmp_path, parts={"model": Embedded()}, neftune_noise_alpha=5.0)
    tokens = torch.tensor([[1, 2]])
    model = trainer._activate_neftune(trainer.model).train()
    assert not torch.equal(model(tokens), model(tokens))
    trainer._deactivate_neftune(model)
    assert torch.equal(model(tokens), model(tokens))
    trainer._activate_neftune(model)
    trainer.neftune_hook_handle.remove()
    assert torch.equal(model(tokens), model(tokens))
    trainer.neftune_hook_handle = None
    with pytest.raises(RunStateError):
        trainer._deactivate_neftune(model)
    trainer.neftune_noise_alpha = None
    with pytest.raises(ConfigurationError):
        trainer._activate_neftune(model)


def test_gathering_by_the_old_names(tmp_path: Path) -> None:
    """Nested tensors, as tensors and as arrays."""
    trainer = small_trainer(tmp_path)
    nested = {"a": torch.ones(2, dtype=torch.bfloat16), "b": [torch.zeros(1, 3)]}
    assert trainer._nested_gather(nested)["b"][0].shape == (1, 3)
    assert trainer._nested_gather(None) is None
    assert trainer._gather_and_numpify(nested, "eval")["a"].tolist() == [1.0, 1.0]
    assert trainer._pad_across_processes(torch.zeros(1, 3)).shape == (1, 3)


class WithCache(nn.Module):
    """A model whose configuration names no outputs to ignore."""

    def __init__(self, cache: str) -> None:
        super().__init__()
        self.net, self.config, self.cache = net(), type("Config", (), {})(), cache

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return {**self.net(x, labels), self.cache: x}


@pytest.mark.parametrize("cache", ["past_key_values", "cache"])
def test_the_cache_is_no_prediction(cache: str, tmp_path: Path) -> None:
    """It is left out under the name that the installed release of transformers gives it, as there."""
    predictions = small_trainer(tmp_path, parts={"model": WithCache(cache)}).predict(rows(4)).predictions
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    data: Any = rows(4)
    theirs = transformers.Trainer(WithCache(cache), args).predict(data).predictions
    assert isinstance(predictions, tuple) == isinstance(theirs, tuple)
