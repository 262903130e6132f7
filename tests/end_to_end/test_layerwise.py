"""Optimizers that update parameters within the backward pass, and those that project gradients, in runs."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import hexloop
from hexloop import ConfigurationError, Trainer
from hexloop.adapters.engines.single.engine import SingleProcess
from hexloop.domain.errors import RunStateError
from tests.end_to_end.small.trainers import arguments, history, same_weights, weights

pytestmark = pytest.mark.filterwarnings("ignore:This implementation of AdamW is deprecated:FutureWarning")

TARGETS = {"optim_target_modules": ["inner", "outer"], "optim_args": "rank=3, update_proj_gap=4"}
WIDE = {"optim_target_modules": "all-linear", "optim_args": "rank=1, scale=128, scale_type=tensor, proj=svd"}

PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adamw": ({"optim": "adamw_torch"}, {"optim": "adamw_torch", "optim_layerwise": True}),
    "adafactor": ({"optim": "adafactor"}, {"optim": "adafactor", "optim_layerwise": True}),
    "galore": ({"optim": "galore_adamw", **TARGETS}, {"optim": "galore_adamw_layerwise", **TARGETS}),
    "galore, adafactor": ({"optim": "galore_adafactor", **TARGETS}, {"optim": "galore_adafactor_layerwise", **TARGETS}),
    "apollo": ({"optim": "apollo_adamw", **TARGETS}, {"optim": "apollo_adamw_layerwise", **TARGETS}),
    "apollo, mini": ({"optim": "apollo_adamw", **WIDE}, {"optim": "apollo_adamw_layerwise", **WIDE}),
    "lomo": ({"optim": "sgd"}, {"optim": "lomo"}),  # which has no state, so that both are the same
    "8 bits": ({"optim": "adamw_bnb_8bit"}, {"optim": "adamw_bnb_8bit", "optim_layerwise": True}),
    "quantized": ({"optim": "adamw_torch_8bit"}, {"optim": "adamw_torch_8bit", "optim_layerwise": True}),
}
"""Arguments of optimizers that step at the end and in the backward pass, with the same mathematics."""


class Words(nn.Module):
    """(batch, 5) tokens -> (batch, 6). The embedding has 4160 elements, of which bitsandbytes quantizes the state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(40, 104)
        self.inner = nn.Linear(104, 48)
        self.norm = nn.LayerNorm(48)
        self.outer = nn.Linear(48, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, tokens: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return the outputs, and the mean squared error if there are labels."""
        hidden = self.norm(torch.tanh(self.inner(self.embedding(tokens).mean(1))))
        out = self.frozen(self.outer(hidden))
        return {"logits": out} if labels is None else {"loss": mse_loss(out, labels), "logits": out}


def rows(count: int = 48) -> list[dict[str, Tensor]]:
    source = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 40, (count, 5), generator=source)
    labels = torch.randn(40, 6, generator=source)[tokens].sum(1)
    return [{"tokens": tokens[number], "labels": labels[number]} for number in range(count)]


def trainer_of(folder: Path, kind: type[Trainer] = Trainer, **given: Any) -> Trainer:
    usual = {"max_steps": 10, "weight_decay": 0.1, "adam_beta2": 0.9, "max_grad_norm": 0.0}
    return kind(model=Words(), args=arguments(folder, **{**usual, **given}), train_dataset=rows(), loggers=[])


def trained(folder: Path, **given: Any) -> Trainer:
    trainer = trainer_of(folder, **given)
    trainer.train()
    return trainer


def logged(trainer: Any) -> list[tuple[float, ...]]:
    names = ("loss", "grad_norm", "learning_rate")
    return [tuple(entry[name] for name in names) for entry in trainer.state.log_history if "loss" in entry]


def assert_alike(one: Trainer, other: Trainer, tolerance: float = 1e-6) -> None:
    assert len(logged(one)) == 10
    for found, expected in zip(logged(one), logged(other), strict=True):
        assert found == pytest.approx(expected, rel=tolerance, abs=1e-9)
    for name, each in weights(one).items():
        assert torch.allclose(each, weights(other)[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.one_in(100)
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("max_norm", [0.0, 0.2])
@pytest.mark.parametrize("pair", PAIRS)
def test_they_equal_the_optimizer_that_steps_at_the_end(
    pair: str, max_norm: float, accumulation: int, tmp_path: Path
) -> None:
    """Losses, gradient norms, rates and weights, with accumulation and clipping."""
    common = {"gradient_accumulation_steps": accumulation, "max_grad_norm": max_norm}
    whole, layerwise = (trained(tmp_path / str(number), **given, **common) for number, given in enumerate(PAIRS[pair]))
    assert min(loss for loss, *_ in logged(whole)[5:]) < logged(whole)[0][0], (
        "it learned nothing, so nothing was compared"
    )
    assert_alike(layerwise, whole)
    if max_norm:
        assert max(norm for _, norm, _ in logged(whole)) > max_norm, "nothing was clipped"
    assert layerwise.optimizer.state_dict().keys() == whole.optimizer.state_dict().keys()


RESUMED: dict[str, dict[str, Any]] = {
    **{pair: {**given[1], "max_grad_norm": 0.5} for pair, given in PAIRS.items()},
    "galore, at the end": PAIRS["galore"][0],
    "galore, both sides": {"optim": "galore_adamw", **TARGETS, "optim_args": "rank=3, proj_type=full"},
    "galore, in reverse": {"optim": "galore_adamw", **TARGETS, "optim_args": "rank=3, proj_type=reverse_std"},
    "apollo, at the end": PAIRS["apollo"][0],
    "adalomo": {"optim": "adalomo", "gradient_accumulation_steps": 2},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case", RESUMED)
def test_they_resume_exactly(case: str, tmp_path: Path) -> None:
    """Losses, norms, rates and weights after a resume are bit-identical; nothing in the checkpoint is pickled."""
    given = {**RESUMED[case], "save_strategy": "steps", "save_steps": 5}
    whole = trained(tmp_path, **given)
    checkpoint = tmp_path / "checkpoint-5"
    assert {path.suffix for path in checkpoint.iterdir()} <= {".json", ".safetensors"}
    resumed = trainer_of(tmp_path, **given)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert history(resumed)[:-1] == history(whole)[:-1]
    assert same_weights(weights(resumed), weights(whole))


def test_a_run_may_change_when_it_steps(tmp_path: Path) -> None:
    """The state is the same, so that a run may be resumed layer-wise, or the other way round."""
    whole, layerwise = ({**given, "save_strategy": "steps", "save_steps": 5} for given in PAIRS["galore"])
    first = trained(tmp_path, **whole)
    resumed = trainer_of(tmp_path, **layerwise)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert_alike(resumed, first)


OF_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "galore_adamw": {**TARGETS, "max_grad_norm": 1.0, "lr_scheduler_type": "linear"},
    "galore_adafactor": {**TARGETS, "max_grad_norm": 1.0, "lr_scheduler_type": "linear"},
    "apollo_adamw": {**TARGETS, "max_grad_norm": 1.0, "lr_scheduler_type": "linear"},
    "galore_adamw_layerwise": TARGETS,
    "apollo_adamw_layerwise": WIDE,
    "lomo": {"lr_scheduler_type": "linear"},
}


@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_losses_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Without what transformers leaves out.

    That is clipping, the schedule and different seeds of projections with layer-wise steps, and Adam's options and the
    weight decay.
    """
    given: dict[str, Any] = {
        "optim": name,
        "max_steps": 10,
        "learning_rate": 0.01,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "adam_epsilon": 1e-6,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **OF_TRANSFORMERS[name],
    }
    losses = []
    for library in (hexloop, transformers):
        args = library.TrainingArguments(output_dir=str(tmp_path / library.__name__), **given)
        model = Words()
        model.frozen.requires_grad_(True)  # transformers numbers frozen parameters, too, by which APOLLO projects
        trainer = library.Trainer(model=model, args=args, train_dataset=rows())
        trainer.remove_callback(getattr(library, "PrinterCallback", object))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    # transformers rounds what it logs to six decimals
    assert losses[0] == pytest.approx(losses[1], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", ["galore_adamw", "galore_adafactor", "apollo_adamw"])
def test_groups_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """With `reproduce` the class, its options and the groups are; otherwise the groups have a weight decay."""
    model = Words()
    model.frozen.requires_grad_(True)
    given = {"optim": name, "weight_decay": 0.1, "adam_beta1": 0.8, "use_cpu": True, "report_to": "none", **TARGETS}
    found = []
    for library, further in ((hexloop, {"reproduce": "transformers"}), (transformers, {}), (hexloop, {})):
        args = library.TrainingArguments(output_dir=str(tmp_path), **given, **further)
        made, options = library.Trainer.get_optimizer_cls_and_kwargs(args, model)
        groups = [
            {**group, "params": sorted(map(id, group["params"])), "weight_decay": group.get("weight_decay", 0.0)}
            for group in options.pop("params")
        ]
        options.pop("no_deprecation_warning", None)
        found.append((made, options, groups))
    assert found[0] == found[1]
    assert found[2][0] is found[1][0]
    assert [group["weight_decay"] for group in found[2][2]] == [0.1, 0.0, 0.1]
    adam = name != "galore_adafactor"
    assert found[2][1].get("betas") == ((0.8, 0.999) if adam else None)


@pytest.mark.parametrize("name", ["Lomo", "AdaLomo"])
def test_lomo_is_that_of_its_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are those of the package's class, driven as the package says: `fused_backward` with each loss."""
    lomo_optim: Any = pytest.importorskip("lomo_optim")
    monkeypatch.setattr(Tensor, "cuda", lambda self: self)  # which AdaLomo calls when it is constructed
    trainer = trained(tmp_path, optim=name.lower(), weight_decay=0.0, train_sampling_strategy="sequential")
    model = Words()
    optimizer = getattr(lomo_optim, name)(model, lr=0.01)
    for number in range(10):
        batch = [rows()[(4 * number + index) % 48] for index in range(4)]
        loss = model(*(torch.stack([row[key] for row in batch]) for key in ("tokens", "labels")))["loss"]
        optimizer.fused_backward(loss, 0.01 * (1 - number / 10))
    for key, each in model.named_parameters():
        assert torch.allclose(trainer.model.get_parameter(key), each, rtol=0, atol=1e-7), key
    assert isinstance(trainer.optimizer, getattr(lomo_optim, name))


class OwnStep(Trainer):
    """Runs the backward pass by itself, as scripts for transformers do."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """See `Trainer.training_step`."""
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss, learning_rate=self.get_learning_rates()[0])
        return loss.detach()


@pytest.mark.parametrize("max_norm", [0.0, 0.2])
def test_an_overridden_training_step(max_norm: float, tmp_path: Path) -> None:
    """`accelerator.backward` takes the steps, as in the standard method."""
    given = {"optim": "lomo", "max_grad_norm": max_norm}
    own = trainer_of(tmp_path / "own", OwnStep, **given)
    own.train()
    assert_alike(own, trained(tmp_path / "standard", **given))


def test_a_user_s_optimizer(tmp_path: Path) -> None:
    """An optimizer that was passed is stepped layer by layer as well; afterwards it is as it was."""
    model = Words()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    args = arguments(tmp_path, max_steps=3, optim_layerwise=True)
    trainer = Trainer(model=model, args=args, train_dataset=rows(), optimizers=(optimizer, None), loggers=[])
    trainer.train()
    assert {int(state["step"]) for state in optimizer.state.values()} == {3}
    model(**{key: value[None] for key, value in rows()[0].items()})["loss"].backward()
    assert model.inner.weight.grad is not None, "its hooks are left after the run"


def test_clipping_is_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the default of `max_grad_norm` a warning says that the backward pass runs twice."""
    with caplog.at_level(logging.WARNING, "hexloop"):
        trained(tmp_path / "a", optim="lomo", max_steps=1, max_grad_norm=1.0)
        trained(tmp_path / "b", optim="lomo", max_steps=1, max_grad_norm=1.0, gradient_accumulation_steps=2)
        trained(tmp_path / "c", optim="lomo", max_steps=1)
    assert [each for each in caplog.messages if "twice" in each] == [
        "Layer-wise steps with max_grad_norm=1 run the backward pass twice, because the norm of all gradients has to "
        "be known before the first update. Set max_grad_norm=0 to run it once, without clipping."
    ]


def test_a_run_without_it_pays_nothing(tmp_path: Path) -> None:
    """No hook is registered, and the parallelism is the usual one."""
    trainer = trainer_of(tmp_path, max_steps=1)
    assert type(trainer.adapters.parallelism) is SingleProcess
    trainer.train()
    assert all(each._post_accumulate_grad_hooks is None for each in trainer.model.parameters())


class OwnClipping(Trainer):
    """Clips by itself."""

    def _clip_grad_norm(self, model: Any) -> Any:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"optim": "galore_adamw"}, "needs optim_target_modules"),
    ({"optim": "apollo_adamw", "optim_target_modules": ["attn"]}, "selects no linear layer"),
    ({"optim": "galore_adamw", **TARGETS, "optim_args": "rnak=3"}, "did you mean rank"),
    ({"optim": "galore_adamw_8bit_layerwise", **TARGETS}, "runs on cuda only"),
    ({"optim": "lomo", "optim_args": "clip_grad_norm=1.0"}, "use max_grad_norm"),
    ({"optim": "lomo", "fp16": True}, "precision fp16"),
    ({"optim": "lomo", "reproduce": "transformers"}, "transformers neither clips nor accumulates"),
    ({"optim_layerwise": True, "reproduce": "transformers"}, "transformers steps at the end"),
    ({"optim_layerwise": True, "torch_compile": True, "max_grad_norm": 1.0}, "second backward pass"),
    ({"optim_layerwise": True, "use_liger_kernel": True, "max_grad_norm": 1.0}, "second backward pass"),
    ({"optim_layerwise": True, "torch_compile": True, "capture_step": True}, "are not recorded"),
    ({"optim": "grokadamw", "optim_layerwise": True}, "clips the gradients of all parameters together"),
    (
        {
            "optim": "lomo",
            "gradient_accumulation_steps": 2,
            "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
        },
        "sync_each_batch",
    ),
]


@pytest.mark.parametrize(("given", "problem"), REFUSED)
def test_what_is_refused(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    """One message each, before the first step."""
    with pytest.raises(ConfigurationError, match=problem):
        trainer_of(tmp_path, **given).train()


def test_own_clipping_is_refused(tmp_path: Path) -> None:
    """An override that would be called without gradients."""
    with pytest.raises(ConfigurationError, match="_clip_grad_norm or _get_grad_norm is overridden"):
        trainer_of(tmp_path, OwnClipping, optim="lomo").train()


def test_the_class_of_the_package_is_refused(tmp_path: Path) -> None:
    """Its hooks would update the weights before gradients are added up."""
    lomo_optim: Any = pytest.importorskip("lomo_optim")
    model = Words()
    args = arguments(tmp_path, max_steps=1, optim_layerwise=True)
    trainer = Trainer(
        model=model, args=args, train_dataset=rows(), optimizers=(lomo_optim.Lomo(model, lr=0.01), None), loggers=[]
    )
    with pytest.raises(ConfigurationError, match="set optim='lomo' instead"):
        trainer.train()


class TwoLosses(Trainer):
    """Runs a backward pass for each of two losses."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """See `Trainer.training_step`."""
        for _ in range(2):
            loss = self.compute_loss(model, inputs)
            self.accelerator.backward(loss)
        return loss.detach()


def test_two_backward_passes_in_a_step_are_refused(tmp_path: Path) -> None:
    """The first one takes the step, so that the second would take another."""
    with pytest.raises(RunStateError, match="Add the losses and run one backward pass"):
        trainer_of(tmp_path, TwoLosses, optim="lomo").train()
