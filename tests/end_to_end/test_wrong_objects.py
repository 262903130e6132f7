"""Wrong objects, returned values and models are refused with what is wrong, before the first step if possible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hexloop
from hexloop import ConfigurationError, Trainer
from hexloop.adapters.logger.console import Console
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.errors import DataError
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import arguments, small_trainer, weights

ADAPTERS = ("device", "precision", "parallelism", "collectives", "storage", "hub", "clock", "interrupts", "journal")


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("value", ["cuda:0", 3, MemoryStorage])
def test_an_adapter_of_a_wrong_kind_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    """A text, a number or a class, for every port; with the object that is expected."""
    with pytest.raises(ConfigurationError, match=f"{name} takes a .* object") as raised:
        small_trainer(tmp_path, parts={name: value})
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("value", ["tensorboard", ["tensorboard"], Console(sys.stdout), 3, [Console]])
def test_loggers_of_a_wrong_kind_are_refused(value: Any, tmp_path: Path) -> None:
    """A name, a list of names, a logger without a list, a number, a class."""
    with pytest.raises(ConfigurationError, match="loggers takes a list of Logger objects"):
        small_trainer(tmp_path, parts={"loggers": value})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "model by name": ({"model": "gpt2"}, "model is 'gpt2', which is not a model"),
    "class of a model": ({"model": Net}, "which is not a model"),
    "one optimizer": ({"optimizers": torch.optim.SGD(net().parameters())}, "(?s)optimizers is .* not a pair"),
    "three optimizers": ({"optimizers": (None, None, None)}, "not a pair"),
    "metrics": ({"compute_metrics": {"accuracy": 1}}, "compute_metrics is .* cannot be called"),
    "loss": ({"compute_loss_func": "mse"}, "compute_loss_func is 'mse'"),
    "one callback": ({"callbacks": hexloop.TrainerCallback()}, "callbacks is .* not a list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_part_of_a_wrong_kind_is_refused(case: str, tmp_path: Path) -> None:
    """Every other parameter of the constructor."""
    parts, message = WRONG[case]
    with pytest.raises(ConfigurationError, match=message):
        small_trainer(tmp_path, parts=parts)


class OwnLoss(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


class OwnEvaluation(Trainer):
    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        return None


class OwnModel(Trainer):
    def call_model_init(self, trial: Any = None) -> Any:
        return net()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (OwnLoss, {"compute_loss_func": "any value, so that the loss is not scaled"}),
        (OwnEvaluation, {"compute_metrics": {"accuracy": 1}}),
        (OwnModel, {"model_init": "small"}),
    ],
)
def test_a_part_that_only_an_override_uses_may_be_anything(
    kind: type[Trainer], given: dict[str, Any], tmp_path: Path
) -> None:
    """Libraries pass other objects by the names of functions to a Trainer whose method calls no function."""
    trainer = small_trainer(tmp_path, kind, parts=given)
    assert trainer.train().global_step == 4


@pytest.mark.parametrize("value", ["out", {"output_dir": "out"}])
def test_arguments_of_a_wrong_kind_are_refused(value: Any) -> None:
    """A folder or a dictionary instead of TrainingArguments."""
    with pytest.raises(ConfigurationError, match=r"args is .* pass TrainingArguments"):
        Trainer(net(), value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("learning_rate", "one of the training arguments"),
        ("batches", "leave it out"),
        ("train_datset", "did you mean train_dataset"),
        ("compute_metric", "did you mean compute_metrics"),
        ("devices", "did you mean device"),
    ],
)
def test_an_unknown_keyword_suggests_a_related_one(name: str, said: str, tmp_path: Path) -> None:
    """Of all parameters of the constructor, or the training argument of that name."""
    with pytest.raises(TypeError, match=said):
        small_trainer(tmp_path, parts={name: 1})


@pytest.mark.parametrize("value", [{"should_save": True}, True, "stop", (1,)])
@pytest.mark.parametrize("event", ["on_init_end", "on_train_begin", "on_step_end", "on_log", "on_train_end"])
def test_a_callback_that_returns_something_else_is_named(value: Any, event: str, tmp_path: Path) -> None:
    """At every event; a control or nothing is what it may return."""
    callback = type("Mine", (hexloop.TrainerCallback,), {event: lambda *_, **__: value})()
    with pytest.raises(
        ConfigurationError, match=rf"returned a {type(value).__name__} \(.*which has no switches"
    ) as raised:
        small_trainer(tmp_path, parts={"callbacks": [callback]}).train()
    assert isinstance(raised.value, TypeError)


def test_a_frozen_model_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """There is nothing to train; parameters of the user's own optimizer may be elsewhere."""
    model = net().requires_grad_(False)
    with pytest.raises(ConfigurationError, match="no parameter that is trained"):
        small_trainer(tmp_path / "frozen", parts={"model": model}).train()
    outside = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(outside.parameters(), 0.1)
    before = outside.weight.detach().clone()
    trainer = small_trainer(
        tmp_path / "outside",
        parts={
            "model": model,
            "optimizers": (optimizer, None),
            "compute_loss_func": lambda outputs, labels, **_: (outside(outputs["logits"]) - labels).square().mean(),
        },
    )
    trainer.train()
    assert not torch.equal(outside.weight, before)


LOSSES: dict[str, tuple[Any, str]] = {
    "detached": (lambda loss: loss.detach(), "does not depend on a parameter"),
    "a number": (lambda loss: loss.item(), "is a float"),
    "None": (lambda loss: None, "is a NoneType"),
    "several": (lambda loss: loss * torch.ones(3), "not a single number"),
    "a dictionary": (lambda loss: {"loss": loss}, "is a dict"),
}


@pytest.mark.parametrize("reproduce", [None, "transformers"])
@pytest.mark.parametrize("case", LOSSES)
def test_a_loss_without_a_backward_pass_is_explained(case: str, reproduce: str | None, tmp_path: Path) -> None:
    """From an overridden compute_loss; before any weight changes."""
    change, message = LOSSES[case]

    class Mine(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return change(model(**inputs)["loss"])

    trainer = small_trainer(tmp_path, kind=Mine, reproduce=reproduce)
    before = weights(trainer)
    with pytest.raises(DataError, match=message):
        trainer.train()
    assert all(torch.equal(before[name], value) for name, value in weights(trainer).items())


def test_an_invalid_generation_config_is_refused_before_the_first_step(tmp_path: Path) -> None:
    """If the run saves; nothing is trained then. A run that saves nothing trains."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small: dict[str, Any] = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 16, "n_positions": 8}
    model: Any = GPT2LMHeadModel(GPT2Config(**small, bos_token_id=0, eos_token_id=0))
    model.generation_config.do_sample, model.generation_config.temperature = False, 0.5
    data = [{"input_ids": torch.arange(6), "labels": torch.arange(6)}] * 4
    for strategy in ("steps", "no"):
        given = arguments(tmp_path / strategy, save_strategy=strategy, max_steps=1)
        trainer = Trainer(model, given, train_dataset=data, loggers=[])
        if strategy == "no":
            trainer.train()
        else:
            with pytest.raises(ConfigurationError, match="generation_config is inconsistent"):
                trainer.train()
        assert trainer.state.global_step == (strategy == "no")


@pytest.mark.parametrize("own", [False, True])
def test_a_schedule_may_read_the_optimizer_s_state_and_gradients(own: bool, tmp_path: Path) -> None:
    """The AdafactorSchedule of both libraries shows the rates of the optimizer, also after a resume."""
    import transformers
    from transformers.optimization import Adafactor, AdafactorSchedule

    from hexloop.adapters.scheduler.torch import AdafactorSchedule as OwnSchedule

    def trained(library: Any, folder: Path, resume: str | None = None) -> Any:
        model = net()
        kind: Any = Adafactor
        optimizer = kind(model.parameters(), lr=None, relative_step=True, warmup_init=True)
        schedule: Any = OwnSchedule if own and library is hexloop else AdafactorSchedule
        args = library.TrainingArguments(
            str(folder), max_steps=4, logging_steps=1, per_device_train_batch_size=4, use_cpu=True, report_to="none",
            save_strategy="steps", save_steps=2, disable_tqdm=True, train_sampling_strategy="sequential",
        )  # fmt: skip
        optimizers = (optimizer, schedule(optimizer))
        trainer = library.Trainer(model=model, args=args, train_dataset=rows(16), optimizers=optimizers)
        trainer.train(resume_from_checkpoint=resume)
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
        return rates, float(optimizer.param_groups[0]["lr"])

    theirs, last = trained(transformers, tmp_path / "theirs")
    ours = trained(hexloop, tmp_path / "ours")
    assert theirs[-1] > 0
    assert ours == (pytest.approx(theirs), pytest.approx(last))
    assert trained(hexloop, tmp_path / "resumed", str(tmp_path / "ours" / "checkpoint-2")) == ours
