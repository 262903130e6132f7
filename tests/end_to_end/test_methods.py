"""Every public method of transformers' Trainer exists with its parameters, and works or is refused by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hexloop import Trainer
from hexloop.adapters.trainable.torch.trainable import TorchTrainable
from hexloop.domain.errors import ConfigurationError, RunStateError
from tests.end_to_end.small.models import Net, Stream, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

FACTS = (Path(__file__).parents[1] / "reference" / "api.md").read_text(encoding="utf-8")


def methods(title: str) -> dict[str, list[str]]:
    """Return the table's methods under a title, with the names of their parameters in order."""
    section = FACTS.split(f"## {title}\n")[1].split("\n## ")[0]
    return {
        name: [each.strip() for each in given.split(",") if each.strip()]
        for name, given in re.findall(r"^- `(\w+)\(([^)]*)\)`", section, re.MULTILINE)
    }


def accepts(method: Any, names: list[str]) -> bool:
    """Return whether a method accepts these parameters in this order, and requires no other."""
    parameters = [each for each in inspect.signature(method).parameters.values() if each.name != "self"]
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
    plain = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    wanted = [name for name in names if not name.startswith("*")]
    further = [each for each in parameters if each.name not in wanted and each.default is each.empty]
    needed = [each for each in further if each.kind is each.POSITIONAL_OR_KEYWORD]
    return plain[: len(wanted)] == wanted and not needed and (open_ended or len(wanted) == len(names))


PROPERTIES = {"tokenizer"}


@pytest.mark.parametrize(("name", "names"), methods("Trainer").items())
def test_each_method_takes_transformers_parameters(name: str, names: list[str]) -> None:
    """The same parameters, by position and by name."""
    if name in PROPERTIES:
        assert isinstance(inspect.getattr_static(Trainer, name), property)
    else:
        assert accepts(getattr(Trainer, name), names)


@pytest.mark.parametrize("name", sorted(methods("Trainer")))
def test_each_default_matches_transformers(name: str) -> None:
    """A call that omits a parameter means the same."""
    theirs = getattr(transformers.Trainer, name, None)
    if theirs is None or name in PROPERTIES:
        return
    own = inspect.signature(getattr(Trainer, name)).parameters
    for parameter in inspect.signature(theirs).parameters.values():
        if parameter.name in own and parameter.default is not parameter.empty:
            told = getattr(own[parameter.name].default, "value", own[parameter.name].default)
            assert told == getattr(parameter.default, "value", parameter.default), parameter.name


REFUSED = {"propagate_args_to_deepspeed"}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_missing_features_are_refused_by_name(tmp_path: Path, name: str) -> None:
    """It is refused by name, with an alternative."""
    with pytest.raises(ConfigurationError, match=f"{name} is not supported: .*; .*"):
        getattr(small_trainer(tmp_path), name)()


# Old names


def test_a_tokenizer_is_a_processing_class(tmp_path: Path) -> None:
    """The old keyword and the old attribute work, and name the new ones."""

    class Tokenizer:
        pad_token_id = 0

    with pytest.warns(FutureWarning, match="processing_class"):
        trainer = small_trainer(tmp_path, parts={"tokenizer": (given := Tokenizer())})
    assert trainer.processing_class is trainer.callback_handler.processing_class is given
    with pytest.warns(FutureWarning, match=r"Trainer\.processing_class"):
        assert trainer.tokenizer is given
    with pytest.warns(FutureWarning, match=r"Trainer\.processing_class"):
        trainer.tokenizer = None
    assert trainer.processing_class is None
    with pytest.raises(ConfigurationError, match="both tokenizer and processing_class"):
        small_trainer(tmp_path, parts={"tokenizer": given, "processing_class": given})


def test_model_path_means_resume_from_checkpoint(tmp_path: Path) -> None:
    """The old keyword of train works, and names the new one; others are refused."""
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
    whole = small_trainer(tmp_path, **saving)
    whole.train()
    again = small_trainer(tmp_path, **saving)
    with pytest.warns(FutureWarning, match="resume_from_checkpoint"):
        again.train(model_path=str(tmp_path / "checkpoint-2"))

    assert same_weights(weights(again), weights(whole))
    with pytest.raises(TypeError, match="nonsense"):
        again.train(nonsense=1)


@pytest.mark.parametrize("name", ["torch_jit_model_eval", "ipex_optimize_model"])
def test_a_removed_optimization_method_returns_the_model(tmp_path: Path, name: str) -> None:
    """A warning names its replacement."""
    trainer = small_trainer(tmp_path)
    given = [None] if name == "torch_jit_model_eval" else []
    with pytest.warns(FutureWarning, match="torch_compile=True"):
        assert getattr(trainer, name)(trainer.model, *given) is trainer.model


def test_end_methods_are_refused_during_a_run(tmp_path: Path) -> None:
    """It is refused during a run, and does nothing otherwise."""
    trainer = small_trainer(tmp_path)
    events = trainer.stream()
    next(events)
    with pytest.raises(RunStateError, match="live"):
        trainer.end()
    events.close()
    trainer.end()


# Sizes


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"num_train_epochs": 2.5},
        {"max_steps": 7},
        {"gradient_accumulation_steps": 3, "num_train_epochs": 3},
        {"per_device_train_batch_size": 5, "dataloader_drop_last": True},
    ],
)
def test_the_sizes_of_a_run_match_transformers(tmp_path: Path, given: dict[str, Any]) -> None:
    """Epochs, steps and samples, in transformers' order."""
    defaults: dict[str, Any] = {"use_cpu": True, "per_device_train_batch_size": 4, "num_train_epochs": 1, **given}
    args = transformers.TrainingArguments(str(tmp_path), report_to="none", **defaults)
    theirs = transformers.Trainer(model=net(), args=args, train_dataset=rows(16))
    ours = small_trainer(tmp_path, **given)
    sizes = ours.set_initial_training_values(ours.args, ours.get_train_dataloader())

    assert sizes == theirs.set_initial_training_values(theirs.args, theirs.get_train_dataloader())
    assert ours.get_total_train_batch_size(ours.args) == theirs.get_total_train_batch_size(theirs.args)
    assert [ours.get_sp_size(), ours.get_cp_size(), ours.get_tp_size()] == [1, 1, 1]


def test_the_sizes_of_a_stream_match_transformers(tmp_path: Path) -> None:
    """If the length is unknown, training is counted in steps."""
    args = transformers.TrainingArguments(
        str(tmp_path), report_to="none", use_cpu=True, max_steps=5, per_device_train_batch_size=4
    )
    theirs = transformers.Trainer(model=net(), args=args, train_dataset=Stream(16))
    ours = small_trainer(tmp_path, parts={"train_dataset": Stream(16)}, max_steps=5)

    expected = theirs.set_initial_training_values(theirs.args, theirs.get_train_dataloader())
    assert ours.set_initial_training_values(ours.args, ours.get_train_dataloader()) == expected


# Windows and context managers


class Pairs(Trainer):
    """Returns windows of its own, and counts their rows."""

    counted: Any = None

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None) -> Any:
        samples, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.seen = [*getattr(self, "seen", []), len(samples)]
        return samples, items


class PairsOfFour(Trainer):
    """The same with the signature of transformers 4.47."""

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int) -> Any:  # type: ignore[override]
        return super().get_batch_samples(epoch_iterator, num_batches)


@pytest.mark.parametrize("kind", [Pairs, PairsOfFour])
def test_an_override_with_standard_windows_changes_nothing(tmp_path: Path, kind: type[Trainer]) -> None:
    """An override of `get_batch_samples` that returns the standard windows."""
    given: dict[str, Any] = {"gradient_accumulation_steps": 3, "num_train_epochs": 2}
    own, plain = small_trainer(tmp_path, kind, **given), small_trainer(tmp_path, **given)
    own.train()
    plain.train()

    assert same_weights(weights(own), weights(plain))
    assert history(own) == history(plain)


def test_an_overridden_count_reaches_the_loss(tmp_path: Path) -> None:
    """The loss is divided by the count that `get_batch_samples` returns."""
    counts: list[Any] = []

    class Counting(Trainer):
        def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None) -> Any:
            return super().get_batch_samples(epoch_iterator, num_batches, device)[0], 1234

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        counts.append(num_items_in_batch)
        return mse_loss(outputs["logits"], labels)

    small_trainer(tmp_path, Counting, {"compute_loss_func": loss}).train()

    assert counts == [1234] * 4


def test_each_window_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks sum their counts once per window, even if an overridden method has counted already."""
    windows, count_items = [], TorchTrainable.count_items

    def counting(trainable: TorchTrainable, window: Sequence[Any]) -> Any:
        windows.append(len(window))
        return count_items(trainable, window)

    monkeypatch.setattr(TorchTrainable, "count_items", counting)
    small_trainer(tmp_path, Pairs, gradient_accumulation_steps=2, num_train_epochs=2).train()

    assert windows == [2, 2, 2, 2]


def test_get_batch_samples_works_without_a_run(tmp_path: Path) -> None:
    """It returns as many batches as there are, and no count."""
    batches, count = small_trainer(tmp_path).get_batch_samples(iter([1, 2, 3]), 5, torch.device("cpu"))

    assert batches == [1, 2, 3]
    assert count is None


@pytest.mark.parametrize("name", ["compute_loss_context_manager", "autocast_smart_context_manager"])
def test_an_overridden_context_wraps_every_loss(tmp_path: Path, name: str) -> None:
    """In steps and in predictions, with the standard methods."""
    formats: list[torch.dtype] = []

    class Seeing(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            formats.append(self.layers[0](x).dtype)
            return super().forward(x, labels)

    def context(self: Any, *_: Any) -> Any:
        return torch.autocast("cpu", torch.bfloat16)

    trainer = small_trainer(tmp_path, type("Own", (Trainer,), {name: context}), {"model": net(kind=Seeing)})
    trainer.train()
    trainer.evaluate(rows(4))

    assert formats == [torch.bfloat16] * 5


class WrittenOut(Trainer):
    """Contains the code of transformers' step."""

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class WithoutContext(Trainer):
    """Calls the model itself."""

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        outputs = model(**inputs)
        loss: Tensor = mse_loss(outputs["logits"], inputs["labels"]) / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return loss.detach()


class WrittenOutOverOwnWindows(WrittenOut, Pairs):
    """Overrides both."""


@pytest.mark.parametrize("kind", [WrittenOut, WithoutContext, WrittenOutOverOwnWindows])
def test_an_overridden_step_uses_the_run_s_precision(tmp_path: Path, kind: type[Trainer]) -> None:
    """It trains like the standard step under mixed precision, and leaves the model's forward unchanged."""
    formats: list[torch.dtype] = []

    class Seeing(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            formats.append(self.layers[0](x).dtype)
            return super().forward(x, labels)

    given: dict[str, Any] = {"bf16": True, "gradient_accumulation_steps": 3}
    own, plain = small_trainer(tmp_path, kind, {"model": net(kind=Seeing)}, **given), small_trainer(tmp_path, **given)
    own.train()
    plain.train()

    assert formats == [torch.bfloat16] * 4
    assert "forward" not in vars(own.model)
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (own, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


# Attributes that subclasses read


def test_attributes_that_subclasses_read_exist(tmp_path: Path) -> None:
    """Transformers' attributes have transformers' values."""
    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to="none")
    theirs = transformers.Trainer(model=net(), args=args, train_dataset=rows(4))
    ours = small_trainer(tmp_path)

    for name in ("is_in_train", "is_model_parallel", "place_model_on_device", "model_accepts_loss_kwargs"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("can_return_loss", "hp_name", "label_names", "optimizer", "lr_scheduler", "_train_batch_size"):
        expected = 4 if name == "_train_batch_size" else getattr(theirs, name)
        assert getattr(ours, name) == expected, name


def test_a_subclass_may_disable_the_count(tmp_path: Path) -> None:
    """Then it does not receive the number of items."""
    told: list[Any] = []

    class Counted(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None, num_items_in_batch: Any = None, **_: Any) -> Any:
            told.append(num_items_in_batch)
            return super().forward(x, labels)

    class Without(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.model_accepts_loss_kwargs = False

    small_trainer(tmp_path, Without, {"model": net(kind=Counted)}).train()
    small_trainer(tmp_path, parts={"model": net(kind=Counted)}).train()

    assert told[:4] == [None] * 4
    assert None not in told[4:]


def test_parts_that_exclude_each_other_are_refused(tmp_path: Path) -> None:
    """All are reported at once, before the first step."""
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1)
    with pytest.raises(ConfigurationError) as raised:
        small_trainer(
            tmp_path,
            parts={
                "model_init": net,
                "optimizers": (optimizer, None),
                "optimizer_cls_and_kwargs": (torch.optim.SGD, {}),
                "data_collator": 3,
            },
        )

    assert len(raised.value.problems) == 3


def test_compute_loss_follows_attributes_that_are_assigned(tmp_path: Path) -> None:
    """Between two calls of the standard method, within a run or outside of one."""
    found: list[float] = []

    def one(*_: Any, **__: Any) -> Tensor:
        return torch.ones(1, requires_grad=True).sum()

    class Changing(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.compute_loss_func = None if len(found) % 2 else one
            loss = super().compute_loss(*args, **kwargs)
            found.append(float(loss.detach()))
            return loss

    trainer = small_trainer(tmp_path, Changing)
    trainer.train()
    trainer.compute_loss(trainer.model, {name: value[None] for name, value in rows(1)[0].items()})
    assert found[::2] == [1.0, 1.0, 1.0]
    assert 1.0 not in found[1::2]
