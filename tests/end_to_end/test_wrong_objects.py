"""Wrong objects, returned values and models are refused with what is wrong, before the first step if possible."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hexloop
from hexloop import ConfigurationError, Trainer
from hexloop.adapters.logger.console import Console
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.errors import DataError
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import arguments, small_trainer, weights

ADAPTERS = ("device", "precision", "parallelism", "collectives", "storage", "hub", "clock", "interrupts", "journal")


class Half:
    """Has one method of most ports."""

    name = capabilities = world_size = address = None

    def write(self, *_: Any) -> None: ...

    def start(self, *_: Any) -> None: ...

    def monotonic(self) -> float:
        return 0.0

    def note(self, *_: Any) -> None: ...


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("value", ["bf17", 3, MemoryStorage, Half(), Half])
def test_an_adapter_of_a_wrong_kind_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    """An unknown name, a number, a class, or an object without methods of the port; one problem, with the port."""
    if name == "storage" and isinstance(value, str):
        return  # a folder of that name
    with pytest.raises(ConfigurationError, match=rf"^{name} takes a .* object \(with the methods ") as raised:
        small_trainer(tmp_path, parts={name: value})
    assert isinstance(raised.value, TypeError)
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize("value", ["tensorbord", ["tensorbord"], 3, [Console], Console, Half(), [Half()]])
def test_loggers_of_a_wrong_kind_are_refused(value: Any, tmp_path: Path) -> None:
    """A misspelt name, a list of them, a number, a class, and an object without the methods of a logger."""
    with pytest.raises(ConfigurationError, match="loggers takes a list of Logger objects") as raised:
        small_trainer(tmp_path, parts={"loggers": value})
    assert len(raised.value.problems) == 1


ADVICE: dict[str, tuple[dict[str, Any], str]] = {
    "a class": ({"storage": MemoryStorage}, r"pass an object, MemoryStorage\(\.\.\.\)"),
    "missing methods": ({"storage": Half()}, "its class Half lacks sync, read, list, move, remove and digest"),
    "a misspelt precision": ({"precision": "bf61"}, r"did you mean 'bf16'\? Or set"),
    "fp8": ({"precision": "fp8"}, "choose among fp32, tf32, bf16, fp16|did you mean"),
    "an unknown device": ({"device": "cdua"}, "did you mean 'cuda'"),
    "a misspelt tracker": ({"loggers": "tensorbord"}, "did you mean 'tensorboard'"),
    "a class of a logger": ({"loggers": [Console]}, r"pass an object, Console\(\.\.\.\)"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_the_refusal_says_what_to_pass(case: str, tmp_path: Path) -> None:
    """For each kind of mistake."""
    parts, message = ADVICE[case]
    with pytest.raises(ConfigurationError, match=message):
        small_trainer(tmp_path, parts=parts)


def test_all_wrong_adapters_are_refused_together(tmp_path: Path) -> None:
    """One problem for each."""
    with pytest.raises(ConfigurationError) as raised:
        small_trainer(tmp_path, parts={"clock": 3, "precision": "bf61", "loggers": [4], "hub": "me/model"})
    assert len(raised.value.problems) == 4


@pytest.mark.parametrize("device", ["cpu", "CPU", torch.device("cpu")])
def test_a_device_may_be_named(device: Any, tmp_path: Path) -> None:
    """By a text, or as torch does; the arguments have it as well."""
    trainer = small_trainer(tmp_path, parts={"device": device}, use_cpu=False)
    assert trainer.adapters.device.name == "cpu"
    assert trainer.args.device == torch.device("cpu")
    assert trainer.args.n_gpu == 0
    assert trainer.train().global_step == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda:0", "cuda", torch.device("cuda", 1)])
def test_a_device_that_is_not_there_is_refused(device: Any, tmp_path: Path) -> None:
    """As if the arguments named it."""
    with pytest.raises(ConfigurationError, match=r"The device cuda.* cannot be used: torch does not find it"):
        small_trainer(tmp_path, parts={"device": device}, use_cpu=False)


def test_a_device_that_the_arguments_exclude_is_refused(tmp_path: Path) -> None:
    """Neither is silently ignored."""
    with pytest.raises(ConfigurationError, match="device='cuda:0' and use_cpu=True, which exclude each other"):
        small_trainer(tmp_path, parts={"device": "cuda:0"}, use_cpu=True)


@pytest.mark.parametrize(("name", "given"), [("bf16", {"bf16": True}), ("fp32", {})])
def test_a_precision_may_be_named(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    """It trains as the arguments of that precision do."""
    named = small_trainer(tmp_path / "named", parts={"precision": name})
    chosen = small_trainer(tmp_path / "chosen", **given)
    assert named.adapters.precision.name == name
    named.train()
    chosen.train()
    assert all(torch.equal(weights(chosen)[key], value) for key, value in weights(named).items())


@pytest.mark.parametrize("kind", [str, Path])
def test_a_storage_may_be_a_folder(kind: type[Any], tmp_path: Path) -> None:
    """Checkpoints are written there, and a run resumes from there."""
    parts = {"storage": kind(tmp_path / "elsewhere")}
    small_trainer(tmp_path / "out", parts=parts, save_strategy="steps", save_steps=2, max_steps=2).train()
    assert (tmp_path / "elsewhere" / "checkpoint-2" / "manifest.json").is_file()
    resumed = small_trainer(tmp_path / "out", parts=parts, save_strategy="steps", save_steps=2, max_steps=4)
    assert resumed.train(resume_from_checkpoint=True).global_step == 4


def test_a_storage_may_be_a_url(tmp_path: Path) -> None:
    """Of any scheme that output_dir may have."""
    trainer = small_trainer(tmp_path, parts={"storage": "memory://of_this_test"}, save_strategy="steps", save_steps=4)
    trainer.train()
    assert "checkpoint-4" in {entry.name.partition("/")[0] for entry in trainer.adapters.storage.list("")}


@pytest.mark.parametrize("loggers", ["json_lines", ["json_lines"], ("json_lines",), "tensorboard"])
def test_loggers_may_be_named(loggers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in report_to, one or several; TensorBoard writes where it does with report_to."""
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs"))
    small_trainer(tmp_path / "out", parts={"loggers": loggers}).train()
    found = (tmp_path / "logs").rglob("events.out*") if loggers == "tensorboard" else tmp_path.rglob("log.jsonl")
    assert [*found]


def test_a_logger_needs_no_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single logger is meant as a list of one."""
    small_trainer(tmp_path, parts={"loggers": Console(sys.stdout)}).train()
    assert "loss" in capsys.readouterr().out


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "model by name": ({"model": "gpt2"}, "model is 'gpt2', which is not a model"),
    "class of a model": ({"model": Net}, r"which is not a model; pass .*: an object of this class, Net\(\.\.\.\)"),
    "one optimizer": ({"optimizers": torch.optim.SGD(net().parameters())}, "(?s)optimizers is .* not a pair"),
    "three optimizers": ({"optimizers": (None, None, None)}, "not a pair"),
    "class of an optimizer": ({"optimizers": (torch.optim.SGD, None)}, "SGD.* as its optimizer; .* choose by optim in"),
    "name of a schedule": ({"optimizers": (None, "cosine")}, "'cosine' as its scheduler; .*lr_scheduler_type"),
    "optimizer without its arguments": ({"optimizer_cls_and_kwargs": torch.optim.SGD}, "optimizer_cls_and_kwargs is"),
    "logits": ({"preprocess_logits_for_metrics": 3}, "preprocess_logits_for_metrics is 3, which cannot be called"),
    "name of data": ({"train_dataset": "imdb"}, "train_dataset is 'imdb', a text, and not data"),
    "name of data to evaluate": ({"eval_dataset": "imdb"}, "eval_dataset is 'imdb', a text"),
    "class of data": ({"train_dataset": list}, r"a class; pass an object, list\(...\)"),
    "number of samples": ({"train_dataset": 3}, "train_dataset is 3, which has neither __getitem__ nor __iter__"),
    "loader": (
        {"train_dataset": DataLoader(TensorDataset(torch.ones(2)))},
        "which makes batches, .*; pass its dataset",
    ),
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
