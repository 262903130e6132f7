"""Every overridable method of the Trainer is called if overridden, and its result is used."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from hexloop import ConfigurationError, EvalLoopOutput, Trainer, TrainerCallback, default_data_collator
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

ACCUMULATED: dict[str, Any] = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5}


def trained(folder: Path, kind: type[Trainer] = Trainer, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    """Return a Trainer after training."""
    trainer = small_trainer(folder, kind, parts, **given)
    trainer.train()
    return trainer


class Counting(Trainer):
    """Counts the calls of its methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.calls = 0
        super().__init__(*args, **kwargs)


# The step and the loss


class StepWithCount(Counting):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self.calls += 1
        return super().training_step(model, inputs, num_items_in_batch)


class StepWithoutCount(Counting):
    def training_step(self, model: Any, inputs: Any) -> Tensor:  # type: ignore[override]
        self.calls += 1
        loss = self.compute_loss(model, inputs) / 2
        loss.backward()
        return loss.detach()  # type: ignore[no-any-return]


class LossOfFour(Counting):
    """With the signature of transformers 4.24."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:  # type: ignore[override]
        self.calls += 1
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = mse_loss(outputs["logits"], labels)
        return (loss, outputs) if return_outputs else loss


class LossOfFive(Counting):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        self.calls += 1
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch)


class LossWithKeywords(Counting):
    def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().compute_loss(model, inputs, **kwargs)


class LossWithoutOutputs(Counting):
    def compute_loss(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)


class LossOfModelAndInputs(Counting):
    def compute_loss(self, model: Any, inputs: Any) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().compute_loss(model, inputs)


class LossAsDescribed(Counting):
    @wraps(Trainer.compute_loss)
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().compute_loss(*args, **kwargs)


OVERRIDES: list[type[Counting]] = [
    StepWithCount, StepWithoutCount, LossOfFour, LossOfFive, LossWithKeywords, LossWithoutOutputs, LossOfModelAndInputs,
    LossAsDescribed,
]  # fmt: skip


PRECISIONS = ((False, True), (True, False))
"""In turn, so that one in two cases are all overrides, in alternating precisions."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "bf16"),
    [(kind, bf16) for number, kind in enumerate(OVERRIDES) for bf16 in PRECISIONS[number % 2]],
)
def test_an_override_with_standard_behaviour_changes_nothing(tmp_path: Path, kind: type[Counting], bf16: bool) -> None:
    """Each is called once per micro-batch, and the weights equal those without it, in either precision."""
    trainer = trained(tmp_path, kind, bf16=bf16, **ACCUMULATED)

    assert trainer.calls == 4
    assert same_weights(weights(trainer), weights(trained(tmp_path, bf16=bf16, **ACCUMULATED)))


@pytest.mark.parametrize("kind", [LossOfFour, LossOfFive, LossWithKeywords])
def test_an_overridden_loss_is_used_in_evaluation(tmp_path: Path, kind: type[Counting]) -> None:
    """Evaluation uses `compute_loss`, too, with its outputs."""
    trainer = small_trainer(tmp_path, kind, {"eval_dataset": rows(6)})
    plain = small_trainer(tmp_path, parts={"eval_dataset": rows(6)})

    assert trainer.evaluate()["eval_loss"] == plain.evaluate()["eval_loss"]
    assert trainer.calls == 2


def test_an_overridden_loss_changes_the_training(tmp_path: Path) -> None:
    """The result of `compute_loss` is logged and trained on."""

    class Doubled(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return 2 * super().compute_loss(*args, **kwargs)

    doubled, plain = trained(tmp_path, Doubled, optim="sgd"), trained(tmp_path, optim="sgd")

    assert history(doubled)[0]["loss"] == 2 * plain.state.log_history[0]["loss"]
    assert not same_weights(weights(doubled), weights(plain))


def test_a_method_can_be_replaced_on_the_instance(tmp_path: Path) -> None:
    """A function assigned to a Trainer's attribute replaces the method."""
    trainer = small_trainer(tmp_path)
    calls: list[Any] = []

    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        calls.append(inputs)
        loss: Tensor = model(**inputs)["loss"]
        return loss

    trainer.compute_loss = compute_loss
    trainer.train()

    assert len(calls) == 4


def test_a_function_may_be_the_loss(tmp_path: Path) -> None:
    """`compute_loss_func(outputs, labels, num_items_in_batch=...)` replaces the model's own loss."""
    items: list[Any] = []

    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        items.append(int(num_items_in_batch))
        total: Tensor = mse_loss(outputs["logits"], labels, reduction="sum")
        return total / int(num_items_in_batch)

    parts = {"compute_loss_func": loss, "train_dataset": rows(10)}
    trainer = trained(tmp_path, parts=parts, **ACCUMULATED)
    plain = trained(tmp_path, parts={"train_dataset": rows(10)}, **ACCUMULATED)

    assert items == [8, 8, 2]
    for one, other in zip(weights(trainer).values(), weights(plain).values(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5)


# What a model may return


@dataclasses.dataclass
class Output:
    loss: Tensor | None
    logits: Tensor


class NamedOutput(NamedTuple):
    loss: Tensor
    logits: Tensor


class Returning(Net):
    """Returns the result of `form` for loss and logits."""

    form: Callable[[Any, Any], Any]

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        return self.form(outputs.get("loss"), outputs["logits"])


def as_model_output(loss: Any, logits: Any) -> Any:
    from transformers.modeling_outputs import SequenceClassifierOutput

    return SequenceClassifierOutput(loss=loss, logits=logits)


FORMS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda loss, logits: (loss, logits),
    "list": lambda loss, logits: [loss, logits],
    "named tuple": NamedOutput,
    "ordered dictionary": lambda loss, logits: OrderedDict(loss=loss, logits=logits),
    "ModelOutput": as_model_output,
    "dataclass": Output,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_may_return_its_loss_in_any_usual_form(tmp_path: Path, form: str) -> None:
    """Training and prediction match a model that returns a dictionary."""
    model = net(kind=type("Model", (Returning,), {"form": staticmethod(FORMS[form])}))
    trainer = trained(tmp_path, parts={"model": model})
    plain = trained(tmp_path)

    assert same_weights(weights(trainer), weights(plain))
    assert (trainer.predict(rows(6)).predictions == plain.predict(rows(6)).predictions).all()


# Evaluation


def test_an_overridden_prediction_step_is_used(tmp_path: Path) -> None:
    """It may call the standard one, and its result is the prediction."""

    class Shifted(Counting):
        def prediction_step(
            self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
        ) -> tuple[Tensor | None, Any, Any]:
            self.calls += 1
            assert not model.training
            loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
            return loss, logits + 1, labels

    trainer, plain = small_trainer(tmp_path, Shifted), small_trainer(tmp_path)

    assert trainer.predict(rows(6)).predictions == pytest.approx(plain.predict(rows(6)).predictions + 1)
    assert trainer.calls == 2


@pytest.mark.parametrize("reproduce", [None, "transformers"])
def test_a_model_called_by_an_overridden_prediction_step_computes_in_half(
    tmp_path: Path, reproduce: str | None
) -> None:
    """Outside of a run, too, and it returns float32: the predictions are those of the standard step."""

    class CallsModel(Trainer):
        def prediction_step(
            self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
        ) -> tuple[Tensor | None, Any, Any]:
            outputs = model(**self._prepare_inputs(inputs))
            assert outputs["logits"].dtype == torch.float32
            return outputs["loss"], outputs["logits"], inputs["labels"]

    own, plain, full = (
        small_trainer(tmp_path, kind, bf16=half, reproduce=reproduce).predict(rows(6)).predictions
        for kind, half in ((CallsModel, True), (Trainer, True), (Trainer, False))
    )
    assert (own == plain).all()
    assert (own != full).any()


def test_an_overridden_evaluation_loop_is_used(tmp_path: Path) -> None:
    """Its metrics are the result of `evaluate`, also during a run, and select the best model."""

    class Own(Counting):
        def evaluation_loop(self, dataloader: Any, description: str, *args: Any, **kwargs: Any) -> EvalLoopOutput:
            self.calls += 1
            output = super().evaluation_loop(dataloader, description, *args, **kwargs)
            assert output.metrics is not None
            return output._replace(metrics={**output.metrics, "eval_own": float(self.calls)})

    trainer = trained(
        tmp_path, Own, {"eval_dataset": rows(4)}, eval_strategy="steps", eval_steps=1, metric_for_best_model="own"
    )

    assert trainer.state.best_metric == 4.0
    assert [entry["eval_own"] for entry in trainer.state.log_history if "eval_own" in entry] == [1.0, 2.0, 3.0, 4.0]


def test_an_evaluation_loop_without_a_result_is_an_error(tmp_path: Path) -> None:
    """The standard evaluation does not take its place."""

    class Own(Counting):
        def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
            super().evaluation_loop(*args, **kwargs)

    trainer = small_trainer(tmp_path, Own, {"eval_dataset": rows(4)})
    with pytest.raises(ConfigurationError, match="evaluation_loop returned None"):
        trainer.evaluate()


def test_an_overridden_evaluate_is_used(tmp_path: Path) -> None:
    """Its result is passed to the callbacks once per evaluation and selects the best model."""
    told: list[Any] = []

    class Listening(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            told.append(kwargs["metrics"]["eval_loss"])

    class Own(Counting):
        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            self.calls += 1
            return {**super().evaluate(*args, **kwargs), "eval_own": -float(self.calls)}

    trainer = trained(
        tmp_path,
        Own,
        {"eval_dataset": rows(4), "callbacks": [Listening()]},
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="own",
        greater_is_better=False,
    )

    assert trainer.calls == len(told) == 2
    assert trainer.state.best_metric == -2.0


def test_an_overridden_evaluate_is_called_for_each_of_several_datasets(tmp_path: Path) -> None:
    """Its metrics for one of them select the best model, and callbacks are notified once per dataset."""
    asked: list[tuple[Any, str]] = []
    told: list[str] = []

    class Listening(TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            told.append(next(iter(kwargs["metrics"])))

    class Own(Trainer):
        def evaluate(
            self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
        ) -> dict[str, float]:
            asked.append((eval_dataset, metric_key_prefix))
            metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
            if not isinstance(eval_dataset, str):
                return metrics
            return {**metrics, f"{metric_key_prefix}_double": 2 * metrics[f"{metric_key_prefix}_loss"]}

    trainer = trained(
        tmp_path,
        Own,
        {"eval_dataset": {"one": rows(4), "two": rows(4, seed=1)}, "callbacks": [Listening()]},
        eval_strategy="epoch",
        metric_for_best_model="one_double",
        greater_is_better=False,
    )

    assert asked == [(None, "eval"), ("one", "eval_one"), ("two", "eval_two")]
    assert told == ["eval_one_loss", "eval_two_loss"]
    assert trainer.state.best_metric == 2 * trainer.evaluate("one")["eval_loss"]
    asked.clear()
    given = {"three": rows(5)}
    assert "test_three_loss" in trainer.evaluate(given, metric_key_prefix="test")
    assert asked == [(given, "test"), (given["three"], "test_three")]


def test_an_overridden_log_receives_every_log(tmp_path: Path) -> None:
    """It may change the values before they are stored."""

    class Own(Trainer):
        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            super().log({**logs, "mine": 1.0}, start_time)

    trainer = trained(tmp_path, Own, {"eval_dataset": rows(4)}, eval_strategy="epoch")

    assert len(trainer.state.log_history) == 6
    assert all(entry["mine"] == 1.0 for entry in trainer.state.log_history)


# Data


def test_a_plain_dataloader_is_used_unchanged(tmp_path: Path) -> None:
    """Training, evaluation and prediction use a torch DataLoader that the methods return."""

    class Own(Counting):
        def loader(self, dataset: Any, batch_size: int) -> Any:
            self.calls += 1
            return DataLoader(dataset, batch_size=batch_size, collate_fn=default_data_collator)

        def get_train_dataloader(self) -> Any:
            return self.loader(self.train_dataset, 4)

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return self.loader(self.eval_dataset, 2)

        def get_test_dataloader(self, test_dataset: Any) -> Any:
            return self.loader(test_dataset, 3)

    trainer = trained(tmp_path, Own, {"eval_dataset": rows(4)}, eval_strategy="epoch")
    plain = trained(tmp_path, train_sampling_strategy="sequential")

    assert same_weights(weights(trainer), weights(plain))
    assert trainer.predict(rows(5)).predictions.shape == (5, 1)
    assert trainer.calls == 3


def test_a_list_of_batches_works_as_a_loader(tmp_path: Path) -> None:
    """Any iterable of batches works, and its length is that of an epoch."""

    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return [default_data_collator(rows(4, seed=seed)) for seed in range(3)]

    assert trained(tmp_path, Own, num_train_epochs=2).state.global_step == 6


# Optimizer and schedule


def test_an_overridden_create_optimizer_is_used(tmp_path: Path) -> None:
    """The optimizer that it creates is used."""

    class Own(Counting):
        def create_optimizer(self, model: Any = None) -> Any:
            self.calls += 1
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            return self.optimizer

    trainer = trained(tmp_path, Own)

    assert trainer.calls == 1
    assert isinstance(trainer.optimizer, torch.optim.SGD)
    assert same_weights(weights(trainer), weights(trained(tmp_path, optim="sgd", learning_rate=0.5)))


def test_an_overridden_create_scheduler_is_used(tmp_path: Path) -> None:
    """A torch scheduler that it creates is stepped once per update."""

    class Own(Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            assert num_training_steps == 4
            self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer or self.optimizer, 0.5)
            return self.lr_scheduler

    trainer = trained(tmp_path, Own, learning_rate=0.8)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]

    assert rates == [0.8, 0.4, 0.2, 0.1]


def test_an_overridden_create_optimizer_and_scheduler_is_used(tmp_path: Path) -> None:
    """It may set both attributes at once."""

    class Own(Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.8)
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)

    trainer = trained(tmp_path, Own)

    assert [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry] == [0.8, 0.8, 0.4, 0.4]


@pytest.mark.parametrize("with_scheduler", [False, True])
def test_optimizers_of_the_users_are_used(tmp_path: Path, with_scheduler: bool) -> None:
    """`optimizers=` accepts an optimizer, with or without a scheduler, and keeps them over two runs."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if with_scheduler else None
    trainer = trained(tmp_path, parts={"model": model, "optimizers": (optimizer, scheduler)})
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]

    assert trainer.optimizer is optimizer
    assert rates == pytest.approx([0.8, 0.8, 0.4, 0.4] if with_scheduler else [0.8, 0.6, 0.4, 0.2])
    trainer.train()
    assert trainer.optimizer is optimizer


def test_an_optimizer_that_is_set_later_is_used(tmp_path: Path) -> None:
    """One assigned after the constructor is used, with the schedule of the arguments, in each run."""
    trainer = small_trainer(tmp_path)
    trainer.optimizer = optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.8)
    trainer.train()
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]

    assert trainer.optimizer is optimizer
    assert rates == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_an_optimizer_created_and_changed_before_the_run_is_used(tmp_path: Path) -> None:
    """The result of `create_optimizer` keeps its changes; a schedule created with it gets the run's length."""
    trainer = small_trainer(tmp_path, weight_decay=0.1)
    made = trainer.create_optimizer()
    for group in made.param_groups:
        group["lr"] = 0.8
    trainer.create_scheduler(num_training_steps=100)
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]

    assert trainer.optimizer is made
    assert rates == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_a_schedule_that_is_set_later_is_used(tmp_path: Path) -> None:
    """With the optimizer that it drives: the user's own, or one that an earlier run created."""
    trainer = small_trainer(tmp_path)
    trainer.create_optimizer()
    for _ in range(2):
        trainer.lr_scheduler = mine = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer, lambda _step: 0.5)
        trainer.train()
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]

        assert trainer.lr_scheduler is mine
        assert rates == pytest.approx([0.005] * 4)
        trainer.optimizer = trainer.lr_scheduler = None
        trainer.train()


def test_an_overridden_create_optimizer_is_called_in_each_run(tmp_path: Path) -> None:
    """There is no optimizer yet when it is called; what was set by hand in between is used."""

    class Own(Counting):
        def create_optimizer(self, model: Any = None) -> Any:
            if self.optimizer is None:
                self.calls += 1
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            return self.optimizer

    trainer = trained(tmp_path, Own)
    trainer.train()
    assert trainer.calls == 2
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    trainer.train()

    assert trainer.calls == 2


def test_an_optimizer_class_can_be_passed(tmp_path: Path) -> None:
    """`optimizer_cls_and_kwargs` is created with the model's own parameter groups."""
    trainer = trained(tmp_path, parts={"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 0.1})}, weight_decay=0.1)

    assert isinstance(trainer.optimizer, torch.optim.NAdam)
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]


def test_a_rate_set_by_a_callback_takes_effect(tmp_path: Path) -> None:
    """With a rate of zero set before an update, that update changes nothing."""
    seen: list[bool] = []

    class Writing(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.before = {name: each.clone() for name, each in kwargs["model"].state_dict().items()}
            if state.global_step == 2:
                for group in kwargs["optimizer"].param_groups:
                    group["lr"] = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(same_weights(self.before, kwargs["model"].state_dict()))

    trained(tmp_path, parts={"callbacks": [Writing()]})

    assert seen == [False, False, True, False]


def test_model_init_creates_the_model_of_each_run(tmp_path: Path) -> None:
    """Every run of a Trainer starts with a new model, the same for the same seed; the function may take a trial."""
    made: list[Any] = []

    def model_init(trial: Any = None) -> nn.Module:
        made.append(trial)
        return Net(0.3)

    trainer = trained(tmp_path, parts={"model_init": model_init})
    first = weights(trainer)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters())  # of a model that the next run does not train
    trainer.train()

    assert len(made) == 2
    assert same_weights(weights(trainer), first)


# Attributes


def test_a_subclass_may_use_common_attribute_names(tmp_path: Path) -> None:
    """Private attributes of hexloop do not conflict with them."""
    names = ("memory", "session", "requests", "dispatcher", "watchers")

    class Own(Trainer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for name in names:
                setattr(self, name, [])

    trainer = trained(tmp_path, Own, {"eval_dataset": rows(4)}, eval_strategy="epoch", save_strategy="epoch")

    assert all(getattr(trainer, name) == [] for name in names)
    assert trainer.predict(rows(4)).metrics["test_loss"] > 0


# Saving


def test_files_of_an_overridden_save_model_are_in_the_checkpoint(tmp_path: Path) -> None:
    """Its files are in the folder, and the manifest lists them."""

    class Own(Trainer):
        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            super().save_model(output_dir, _internal_call)
            Path(str(output_dir), "adapter.txt").write_text("mine")

    trained(tmp_path, Own, save_strategy="epoch")
    folder = tmp_path / "checkpoint-4"

    assert (folder / "adapter.txt").read_text() == "mine"
    assert (folder / "model.safetensors").is_file()
    assert "adapter.txt" in (folder / "manifest.json").read_text()


class Adapted(Net):
    """A model with adapters, saved and loaded like PEFT's."""

    peft_config: ClassVar = {"default": {"r": 2}}

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "adapter_config.json").write_text(json.dumps(self.peft_config["default"]))
        save_file(
            {"weight": self.get_parameter("layers.0.weight").detach().clone()},
            Path(folder, "adapter_model.safetensors"),
        )


def test_a_checkpoint_of_a_model_with_adapters_contains_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights are those of the checkpoint's step, the manifest lists them, and a run resumes from it."""
    monkeypatch.setitem(sys.modules, "peft.peft_model", SimpleNamespace(PeftModel=Adapted))
    whole = trained(tmp_path, parts={"model": net(kind=Adapted)}, save_strategy="steps", save_steps=2)
    folder = tmp_path / "checkpoint-2"
    adapter = load_file(folder / "adapter_model.safetensors")
    files = json.loads((folder / "manifest.json").read_text())["files"]

    assert json.loads((folder / "adapter_config.json").read_text()) == {"r": 2}
    assert torch.equal(adapter["weight"], load_file(folder / "model.safetensors")["layers.0.weight"])
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files.keys()
    again = small_trainer(tmp_path, parts={"model": net(kind=Adapted)})
    again.train(resume_from_checkpoint=str(folder))
    assert same_weights(weights(again), weights(whole))


def test_a_callback_finds_the_files_of_a_save(tmp_path: Path) -> None:
    """When `on_save` is called the checkpoint is published."""
    seen: list[bool] = []

    class Looking(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
            seen.append((folder / "manifest.json").is_file())

    trained(tmp_path, parts={"callbacks": [Looking()]}, save_strategy="steps", save_steps=2)

    assert seen == [True, True]
