"""Every optimizer that hexloop creates by name matches transformers'."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from torch import nn

import hexloop
from hexloop import ConfigurationError, Trainer, TrainingArguments
from hexloop.adapters.trainable.torch.optimizers import ALIASES, OPTIMIZERS, Row, choose_optimizer, row_named
from hexloop.app.arguments.choices import OWN_OPTIMIZERS
from tests.end_to_end.parity.compare import Tolerance, assert_same_log, assert_same_weights
from tests.end_to_end.parity.data import samples_for
from tests.end_to_end.parity.models import make_model
from tests.end_to_end.parity.runs import BOTH, run_both
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


def runs_here(row: Row) -> bool:
    """Return whether an optimizer can be made on a CPU with the packages of the tests."""
    return row.refused is None and not row.only_on


STEPS = 12
"""Updates of a comparison: enough for every kind of state to be used again."""

CASES: dict[str, dict[str, Any]] = {
    "adamw_torch": {"learning_rate": 3e-3, "adam_beta1": 0.8, "adam_epsilon": 1e-6},
    "adamw_torch_fused": {"learning_rate": 3e-3, "adam_beta2": 0.95},
    "sgd": {"learning_rate": 0.1, "optim_args": "momentum=0.9, nesterov=True"},
    "sgd, dampened": {"learning_rate": 0.1, "optim_args": "momentum=0.8,dampening=0.1"},
    "adagrad": {"learning_rate": 1e-2, "optim_args": "lr_decay=0.01,eps=1e-8"},
    "rmsprop": {"learning_rate": 1e-3, "optim_args": "momentum=0.5,alpha=0.9,eps=1e-6,centered=1"},
    "adafactor": {"learning_rate": 1e-2},
}


def arguments_of(case: str, **further: Any) -> dict[str, Any]:
    common = {"optim": case.partition(",")[0], "max_steps": STEPS, "per_device_train_batch_size": 4}
    return {**common, "weight_decay": 0.05, "warmup_steps": 3, **CASES[case], **further}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", CASES)
def test_it_trains_identically(case: str, tmp_path: Path) -> None:
    """Logged losses, norms and rates, and final weights, are equal."""
    model, data = make_model("convolution"), samples_for("convolution", 60)
    ours, reference = run_both(tmp_path, model, arguments_of(case), train_dataset=data)
    losses = ours.series("loss")
    assert len(losses) == STEPS
    assert min(losses[6:]) < losses[0], "it learned nothing, so nothing was compared"
    steps = [[entry for entry in outcome.log if "loss" in entry] for outcome in (ours, reference)]
    assert {"loss", "grad_norm", "learning_rate"} <= steps[0][0].keys()
    assert_same_log(steps[0], steps[1], 1e-5)
    assert_same_weights(ours.weights, reference.weights, Tolerance(model=1e-5))
    assert type(ours.trainer.optimizer) is type(reference.trainer.optimizer.optimizer)


@pytest.mark.parametrize("case", CASES)
def test_the_class_and_its_arguments(case: str, tmp_path: Path) -> None:
    """`get_optimizer_cls_and_kwargs` returns what transformers returns."""
    given = arguments_of(case, output_dir=str(tmp_path), use_cpu=True, report_to="none")
    made, kwargs = Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(**given))
    theirs = transformers.Trainer.get_optimizer_cls_and_kwargs(transformers.TrainingArguments(**given))
    assert (made, kwargs) == theirs


RESUMED: dict[str, dict[str, Any]] = {
    "rmsprop": {"optim": "rmsprop", "optim_args": "momentum=0.5,centered=true"},
    "adagrad": {"optim": "adagrad", "optim_args": "lr_decay=0.01"},
    "adafactor": {"optim": "adafactor", "weight_decay": 0.01},
    "adafactor, scaled": {"optim": "adafactor", "optim_args": "scale_parameter=True,beta1=0.9"},
}


@pytest.mark.parametrize("given", RESUMED.values(), ids=RESUMED)
def test_a_run_resumes_exactly(given: dict[str, Any], tmp_path: Path) -> None:
    """A checkpoint without a pickle contains the optimizer's whole state; the rest of the run is bitwise equal."""
    saving = {"save_strategy": "steps", "save_steps": 3, "max_steps": 8, "num_train_epochs": 2, **given}
    whole = small_trainer(tmp_path / "whole", **saving)
    whole.train()
    rest = small_trainer(tmp_path / "rest", **saving)
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert rest.state.global_step == 8
    assert same_weights(weights(whole), weights(rest))
    assert history(whole) == history(rest)
    assert not list((tmp_path / "whole").rglob("*.pt"))


def test_the_table_has_the_names_of_transformers_and_own_ones() -> None:
    """Those of version 5, and those that arguments take besides."""
    assert OPTIMIZERS.keys() == {*(member.value for member in hexloop.OptimizerNames), *OWN_OPTIMIZERS}
    for name in OWN_OPTIMIZERS:
        assert TrainingArguments("out", optim=name).optim == name
        assert TrainingArguments("out").set_optimizer(name).optim == name


@pytest.mark.parametrize(("old", "today"), ALIASES.items())
def test_names_of_earlier_releases_are_torchs_own(old: str, today: str) -> None:
    """The row that replaces them makes the optimizer."""
    assert row_named(old) is OPTIMIZERS[today]


EVERY_ARGUMENT: dict[str, dict[str, Any]] = {
    "ademamix": {"optim_args": "beta3=0.99,alpha=3,t_alpha=7,t_beta3=9,beta1=0.7,eps=1e-5"},
    "stable_adamw": {"optim_args": "max_lr=0.1"},
    "grokadamw": {"optim_args": "alpha_init=0.9,lamb=1,gamma=0.2,grokking_signal_decay_rate=0.3,gradient_clipping=2"},
    "schedule_free_adamw": {"optim_args": "r=0.5,weight_lr_power=1", "warmup_steps": 4},
    "schedule_free_sgd": {"optim_args": "r=0.5", "warmup_steps": 4},
    "adamw_torch_4bit": {"optim_args": "bf16_stochastic_round=True"},
}


def takes_groups(row: Any) -> bool:
    """Return whether both libraries pass the usual parameter groups to a class; see `test_layerwise.py` for others."""
    return not (row.needs_targets or row.layer_wise)


@pytest.mark.parametrize("name", [name for name, row in OPTIMIZERS.items() if runs_here(row) and takes_groups(row)])
def test_what_is_passed_to_the_class_is_what_transformers_passes(name: str, tmp_path: Path) -> None:
    """With `reproduce` it is the same, but for what a CPU without Triton needs; otherwise Adam's options are added."""
    own = {"learning_rate": 0.01, "adam_beta1": 0.8, "adam_epsilon": 1e-6, "weight_decay": 0.1}
    given = {"optim": name, "output_dir": str(tmp_path), "use_cpu": True, **own, **EVERY_ARGUMENT.get(name, {})}
    args = TrainingArguments(reproduce="transformers", **given)
    made, kwargs = Trainer.get_optimizer_cls_and_kwargs(args)
    every = Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(**given))
    if name in ("adamw_torch_fp8", "adamw_anyprecision", "muon"):  # of hexloop alone
        assert every == (made, kwargs)
        return
    theirs, passed = transformers.Trainer.get_optimizer_cls_and_kwargs(transformers.TrainingArguments(**given))
    triton = {"triton": False} if name == "stable_adamw" else {}
    assert (made, kwargs) == (theirs, {**passed, **triton})
    adam = {"betas": (0.8, 0.999), "eps": 1e-6} if name == "grokadamw" else {}
    assert every == (theirs, {**kwargs, **adam})


def test_adafactor_without_transformers() -> None:
    """If transformers is not installed, the error says what to install."""
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "from hexloop.adapters.trainable.torch.optimizers import choose_optimizer\n"
        "choose_optimizer('adafactor', 0.1, (0.9, 0.99), 1e-8, None, 'cpu')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "which is not installed; run `pip install 'transformers>=5.0'`" in ended.stderr


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("sgd", "momentun=0.9", "SGD has no momentun; did you mean momentum?"),
        ("sgd", "lr=0.9", "lr cannot be set there; use learning_rate"),
        ("rmsprop", "zzz=1,qqq=2", "RMSprop has no zzz; choose among .*RMSprop has no qqq"),
        ("adafactor", "relative_step=True", "relative_step computes its own rates"),
        ("sgd", "momentum=fast", "momentum=fast is not valid: it takes a number; give one"),
        ("adafactor", "warmup_init=perhaps", "warmup_init=perhaps is not valid: it takes True or False; give one"),
        ("adamw_torch_8bit", "block_size=2.5", "block_size=2.5 is not valid: it takes a whole number; give one"),
        ("sgd", "beta1=0.9", "SGD has no beta1"),
        ("sdg", None, "There is no optimizer optim='sdg'; did you mean 'sgd'"),
    ],
)
def test_options_that_an_optimizer_does_not_have(name: str, text: str | None, wanted: str) -> None:
    """All are refused in one error; transformers ignores them."""
    with pytest.raises(ConfigurationError, match=f"(?s){wanted}"):
        choose_optimizer(name, 0.1, (0.9, 0.99), 1e-8, text, "cpu")


def test_a_decay_that_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    """The groups have their own weight decay; the log says so."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        _, options = choose_optimizer("sgd", 0.1, (0.9, 0.99), 1e-8, "weight_decay=0.1,nesterov=YES,momentum=1", "cpu")
    assert options == {"lr": 0.1, "weight_decay": 0.1, "nesterov": True, "momentum": 1.0}
    assert "weight_decay in optim_args has no effect" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("adamw_torch", "beta2=0.5", {"betas": (0.9, 0.5)}),
        ("adamw_torch", "betas=(0.5, 0.6), eps=1e-3", {"betas": (0.5, 0.6), "eps": 1e-3}),
        ("adamw_torch", "foreach=None,amsgrad=1", {"foreach": None, "amsgrad": True}),
        ("adafactor", "eps=(1e-20,1e-2),beta1=0.9,clip_threshold=2", {"eps": (1e-20, 1e-2), "beta1": 0.9}),
        ("ademamix", "beta3=0.99,t_alpha=1e2,alpha=3", {"betas": (0.9, 0.99, 0.99), "t_alpha": 100, "alpha": 3.0}),
        ("stable_adamw", "kahan_sum=False,max_lr=1,decouple_lr=yes", {"kahan_sum": False, "max_lr": 1.0}),
        ("adamw_anyprecision", "momentum_dtype=bfloat16,rounding=stochastic", {"momentum_dtype": torch.bfloat16}),
        ("adamw_torch_8bit", "block_size=128", {"block_size": 128}),
    ],
)
def test_options_have_the_types_of_the_signature(name: str, text: str, wanted: dict[str, Any]) -> None:
    """Texts become numbers, truth values, tuples, None or torch's types."""
    _, options = choose_optimizer(name, 0.1, (0.9, 0.99), 1e-8, text, "cpu")
    found = {key: options[key] for key in wanted}
    assert found == wanted
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in wanted.items()}


class TwoRates(Trainer):
    """Has groups with different rates, from a `create_optimizer` without arguments, as in earlier releases."""

    def create_optimizer(self) -> Any:  # type: ignore[override]
        first, *others = self.model.parameters()
        groups = [{"params": [first], "lr": 0.2}, {"params": others}]
        self.optimizer = torch.optim.SGD(groups, lr=0.1)
        return self.optimizer


def test_rates_and_groups(tmp_path: Path) -> None:
    """The methods of earlier releases describe the optimizer's groups; each group's rate decays from its own."""
    trainer = small_trainer(tmp_path, TwoRates, max_steps=4)
    for ask in (trainer.get_learning_rates, trainer.get_optimizer_group):
        with pytest.raises(ConfigurationError, match="no optimizer yet; call create_optimizer"):
            ask()
    trainer.create_optimizer()
    first, second, *_ = trainer.model.parameters()
    assert trainer.get_learning_rates() == [0.2, 0.1]
    assert trainer.get_optimizer_group(second) is trainer.optimizer.param_groups[1]
    for of_no_group in (torch.zeros(1), None):
        assert list(map(len, trainer.get_optimizer_group(of_no_group))) == [1, 3]
    assert trainer.get_optimizer_group()[0] == [first]
    count = sum(each.numel() for each in trainer.model.parameters())
    assert trainer.get_num_trainable_parameters() == count
    first.requires_grad = False
    assert trainer.get_num_trainable_parameters() == count - first.numel()
    first.requires_grad = True
    trainer.train()
    assert [entry["learning_rate"] for entry in trainer.state.log_history[:4]] == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert trainer.get_learning_rates() == [0.0, 0.0]


class OverWholeModel(torch.optim.SGD):
    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__(list(model.parameters())[:1], lr=lr)


class OfMany(torch.optim.SGD):
    def __init__(self, each: dict[Any, torch.optim.Optimizer], lr: float) -> None:
        super().__init__(list(each), lr=lr)


class Factory:
    """A factory in transformers' sense: created without arguments, then called with the model and the options."""

    def __call__(self, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(model.parameters())[:3], **options)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda model: (torch.optim.SGD, {"lr": 0.1}), [2, 2]),
        (lambda model: (torch.optim.SGD, {"lr": 0.1, "params": [{"params": list(model.parameters())[1:]}]}), [3]),
        (lambda model: (OverWholeModel, {"lr": 0.1, "model": model}), [1]),
        (lambda model: (OfMany, {"lr": 0.1, "optimizer_dict": {next(iter(model.parameters())): None}}), [1]),
        (lambda model: (Factory, {"lr": 0.1}), [3]),
    ],
    ids=["class", "params", "model", "optimizer_dict", "factory"],
)
def test_an_optimizer_class_and_its_options(make: Any, sizes: list[int], tmp_path: Path) -> None:
    """It gets the groups, or what its options name; the passed options are not modified."""
    counts = []
    for library in (hexloop, transformers):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        given = make(model)
        options = dict(given[1])
        args = library.TrainingArguments(str(tmp_path), weight_decay=0.1, use_cpu=True, report_to="none")
        trainer = cast(Any, library.Trainer)(model=model, args=args, optimizer_cls_and_kwargs=given)
        optimizer = trainer.create_optimizer()
        counts.append([len(group["params"]) for group in optimizer.param_groups])
        if library is hexloop:
            assert given[1] == options
    assert counts == [sizes, sizes]


@pytest.mark.parametrize("name", ["adamw_bnb_8bit", "paged_lion_8bit", "rmsprop_bnb_8bit", "adamw_torch", "lion_32bit"])
@pytest.mark.parametrize("given_as", ["name", "class"])
def test_embeddings_keep_32_bit_state(name: str, given_as: str, tmp_path: Path) -> None:
    """With an optimizer of 8 bits of bitsandbytes, as in transformers; no global table grows with the models."""
    from bitsandbytes.optim import GlobalOptimManager

    before = len(GlobalOptimManager.get_instance().module_weight_config_triple)
    model = nn.Sequential(nn.Embedding(80, 64), nn.Linear(64, 80))
    args = TrainingArguments(str(tmp_path), optim=name, use_cpu=True, report_to="none")
    parts = {"optimizer_cls_and_kwargs": Trainer.get_optimizer_cls_and_kwargs(args)} if given_as == "class" else {}
    optimizer = Trainer(model, args, **parts).create_optimizer()  # type: ignore[arg-type]
    model(torch.arange(80)).square().mean().backward()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Paged optimizers are not supported on CPU")
        optimizer.step()
    kept = [
        optimizer.state[layer.weight]["state1"].dtype for layer in model if "state1" in optimizer.state[layer.weight]
    ]
    assert kept == {"adamw_torch": [], "lion_32bit": [torch.float32] * 2}.get(name, [torch.float32, torch.uint8])
    assert len(GlobalOptimManager.get_instance().module_weight_config_triple) == before


@pytest.mark.parametrize("metric", [None, "eval_loss"])
def test_a_scheduler_that_needs_metrics(metric: str | None, tmp_path: Path) -> None:
    """A scheduler of the user gets the metric of each evaluation, by default the loss."""
    seen = []
    for library in (hexloop, transformers):
        model = make_model("convolution")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        args = library.TrainingArguments(
            str(tmp_path / library.__name__),
            eval_strategy="steps",
            eval_steps=3,
            max_steps=9,
            metric_for_best_model=metric if library is hexloop else "loss",
            **BOTH,
        )
        trainer = cast(Any, library.Trainer)(
            model=model,
            args=args,
            train_dataset=samples_for("convolution", 60),
            eval_dataset=samples_for("convolution", 12, seed=1),
            optimizers=(optimizer, scheduler),
        )
        trainer.train()
        seen.append([entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 1


def test_adafactor_with_relative_steps(tmp_path: Path) -> None:
    """With its schedule the rates are logged as in transformers; without one the error says how to use it."""
    logs = []
    for library in (hexloop, transformers):
        model = make_model("convolution")
        adafactor = cast(Any, transformers.Adafactor)
        optimizer = adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
        schedule = (hexloop if library is hexloop else transformers.optimization).get_adafactor_schedule(optimizer)
        args = library.TrainingArguments(str(tmp_path / library.__name__), max_steps=8, **BOTH)
        trainer = cast(Any, library.Trainer)(
            model=model, args=args, train_dataset=samples_for("convolution", 64), optimizers=(optimizer, schedule)
        )
        trainer.train()
        logs.append([(entry["loss"], entry["learning_rate"]) for entry in trainer.state.log_history if "loss" in entry])
    assert [pair[1] for pair in logs[0]] == pytest.approx([pair[1] for pair in logs[1]], rel=1e-5)
    assert [pair[0] for pair in logs[0]] == pytest.approx([pair[0] for pair in logs[1]], rel=1e-5)
    model = make_model("convolution")
    optimizer = cast(Any, transformers.Adafactor)(model.parameters(), lr=None)
    trainer = small_trainer(tmp_path, parts={"model": model, "optimizers": (optimizer, None)}, max_steps=1)
    with pytest.raises(ConfigurationError, match="get_adafactor_schedule"):
        trainer.train()


def test_lr_end_is_relative_to_the_optimizer_s_rate(tmp_path: Path) -> None:
    """With the user's optimizer, lr_end is relative to its rate and not to the arguments', as in transformers."""
    rates = []
    for library in (hexloop, transformers):
        model = make_model("convolution")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        given: dict[str, Any] = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 0.1}}
        args = library.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **given)
        trainer = cast(Any, library.Trainer)(model=model, args=args, optimizers=(optimizer, None))
        scheduler = trainer.create_scheduler(num_training_steps=10, optimizer=optimizer)
        for _ in range(5):
            optimizer.step()
            scheduler.step()
        rates.append(scheduler.get_last_lr())
    assert rates[0] == rates[1] == [pytest.approx(0.3)]
