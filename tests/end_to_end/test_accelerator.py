"""`trainer.accelerator` as code written for transformers uses it."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator as RealAccelerator
from accelerate.state import PartialState
from torch.utils.data import DataLoader

from hexloop import Trainer
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.testing import SimulatedDevice
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import same_weights, small_trainer, weights


class OwnStep(Trainer):
    """Overrides training_step as scripts for transformers do."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        with self.accelerator.autocast():
            loss: torch.Tensor = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.parametrize("arguments", [{}, {"bf16": True}])
def test_a_step_through_the_accelerator_matches_the_standard_step(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Its autocast and backward give the same weights as the standard step."""
    standard = small_trainer(tmp_path / "standard", **arguments)
    overridden = small_trainer(tmp_path / "overridden", OwnStep, **arguments)
    standard.train(), overridden.train()
    assert same_weights(weights(overridden), weights(standard))


def test_the_accelerator_reports_process_and_device(tmp_path: Path) -> None:
    """One process on the CPU: the indices are 0, and prepared objects are returned unchanged."""
    trainer = small_trainer(tmp_path)
    accelerator, ones = trainer.accelerator, torch.ones(2)
    assert (accelerator.process_index, accelerator.num_processes, accelerator.is_main_process) == (0, 1, True)
    assert accelerator.device == torch.device("cpu")
    assert accelerator.sync_gradients
    assert accelerator.unwrap_model(trainer.model) is trainer.model
    assert accelerator.prepare_model(trainer.model, evaluation_mode=True) is trainer.model
    assert accelerator.prepare(1, 2) == (1, 2)
    assert torch.equal(accelerator.gather_for_metrics(ones), ones)
    assert torch.equal(accelerator.reduce(ones, "mean"), ones)
    accelerator.wait_for_everyone()


def test_everything_else_comes_from_a_real_accelerator(tmp_path: Path) -> None:
    """Names that the run does not decide are those of accelerate, made on first need; nothing else changes."""
    trainer = small_trainer(tmp_path)
    before, threads = dict(os.environ), torch.get_num_threads()
    accelerator = trainer.accelerator
    assert not accelerator.is_made
    assert accelerator.distributed_type == "NO"
    assert accelerator.is_made
    assert accelerator.state.mixed_precision == "no"
    assert accelerator.gradient_state.num_steps == 1
    assert accelerator.parallelism_config is None
    assert trainer.accelerator is accelerator
    assert (dict(os.environ), torch.get_num_threads()) == (before, threads)


def test_foreign_objects_are_prepared_and_those_of_the_run_are_not(tmp_path: Path) -> None:
    """During a run, accelerate prepares another loader; the model, optimizer and loader of the run are unchanged."""

    class Preparing(Trainer):
        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            optimizer = super().create_optimizer(*args, **kwargs)
            data: Any = rows(8)
            own, other = self.get_train_dataloader(), DataLoader(data, batch_size=4)
            passed = (self.model, optimizer, own, 3)
            *returned, prepared = self.accelerator.prepare(*passed, other)
            assert all(one is other for one, other in zip(passed, returned, strict=True))
            assert prepared is not other
            batches.extend(len(batch["x"]) for batch in prepared)
            return optimizer

    batches: list[int] = []
    small_trainer(tmp_path, Preparing).train()
    assert batches == [4, 4]


@pytest.mark.parametrize("prepares", [True, False])
def test_an_own_loop_steps_with_unscaled_gradients(tmp_path: Path, prepares: bool) -> None:
    """With fp16, an optimizer that user code steps divides gradients by the loss scale, and skips overflows."""
    trainer = small_trainer(tmp_path, fp16=True, use_cpu=True, optim="sgd", learning_rate=0.01)
    model, accelerator = trainer.model, trainer.accelerator
    trainer.create_optimizer_and_scheduler(20)
    optimizer = accelerator.prepare(trainer.optimizer) if prepares else trainer.optimizer
    batch, skipped = {"x": torch.ones(4, 4), "labels": torch.full((4, 1), 300.0)}, []
    for _ in range(20):
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = model(**batch)["loss"]
        accelerator.backward(loss)
        scale = accelerator.scaler.get_scale()
        expected = {
            name: value.detach() - 0.01 * value.grad / scale  # SGD without momentum
            for name, value in model.named_parameters()
        }
        overflowed = not all(bool(each.isfinite().all()) for each in expected.values())
        before = weights(trainer)
        optimizer.step()
        for name, value in weights(trainer).items():
            torch.testing.assert_close(value, before[name] if overflowed else expected[name])
        assert (accelerator.scaler.get_scale() < scale) == overflowed
        skipped.append(overflowed)
    assert set(skipped) == {True, False}


def test_an_own_loop_with_fp16_takes_no_closure(tmp_path: Path) -> None:
    """A closure would compute scaled gradients within the step."""
    trainer = small_trainer(tmp_path, fp16=True, use_cpu=True)
    trainer.create_optimizer_and_scheduler(2)
    trainer.accelerator.backward(trainer.model(torch.ones(4, 4), torch.ones(4, 1))["loss"])
    with pytest.raises(RunStateError, match="Use bf16"):
        trainer.optimizer.step(lambda: 0.0)


def test_assignments_take_effect_or_are_refused(tmp_path: Path) -> None:
    """An assigned backward is called in every step; what the run decides cannot be assigned."""
    standard, assigned = small_trainer(tmp_path / "standard"), small_trainer(tmp_path / "assigned")
    inner, losses = assigned.accelerator.backward, list[Any]()

    def backward(loss: Any) -> None:
        losses.append(loss)
        inner(loss)

    assigned.accelerator.backward = backward
    assigned.accelerator.even_batches = False
    standard.train(), assigned.train()
    assert len(losses) == 4
    assert same_weights(weights(standard), weights(assigned))
    assert not assigned.args.accelerator_config.even_batches
    assert assigned.args.to_dict()["accelerator_config"] == standard.args.to_dict()["accelerator_config"]
    with pytest.raises(ConfigurationError, match="use_cpu"):
        assigned.accelerator.device = torch.device("cpu")


def test_sync_gradients_is_that_of_the_run(tmp_path: Path) -> None:
    """With accumulation over two, every second micro-batch synchronizes, also in accelerate's own state."""
    seen: list[tuple[bool, bool]] = []

    class Looking(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            seen.append((self.accelerator.sync_gradients, self.accelerator.gradient_state.sync_gradients))
            return super().compute_loss(*args, **kwargs)

    small_trainer(tmp_path, Looking, gradient_accumulation_steps=2).train()
    assert seen == [(False, False), (True, True)] * 2


class Clipping(OwnStep):
    """Clips in training_step, before the run does."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.accelerator.clip_grad_norm_(model.parameters(), 0.05)
        return loss


def test_gradients_are_unscaled_before_they_are_clipped(tmp_path: Path) -> None:
    """With fp16 the weights are those of a run that clips by itself; the loss scale is the run's."""
    fp16: dict[str, Any] = {"fp16": True, "use_cpu": True}
    standard = small_trainer(tmp_path / "standard", max_grad_norm=0.05, **fp16)
    clipping = small_trainer(tmp_path / "clipping", Clipping, max_grad_norm=0.0, **fp16)
    standard.train(), clipping.train()
    scaler, again = clipping.accelerator.scaler, small_trainer(tmp_path / "again", **fp16).accelerator.scaler
    again.load_state_dict({**scaler.state_dict(), "scale": 128.0})
    assert same_weights(weights(standard), weights(clipping))
    assert clipping.accelerator.real.scaler.get_scale() == scaler.get_scale() == standard.accelerator.scaler.get_scale()
    assert (again.get_scale(), again.get_growth_factor(), again.get_backoff_factor()) == (128.0, 2.0, 0.5)


def test_values_of_gradients_are_clipped(tmp_path: Path) -> None:
    """No value exceeds the limit, whatever the loss scale."""

    class ByValue(OwnStep):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            loss = super().training_step(model, inputs, num_items_in_batch)
            self.accelerator.clip_grad_value_(model.parameters(), 0.01)
            found.append(max(float(each.grad.abs().max()) for each in model.parameters()))
            return loss

    found: list[float] = []
    small_trainer(tmp_path, ByValue, fp16=True).train()
    assert found == pytest.approx([0.01] * 4)


class OwnEvaluation(Trainer):
    """Evaluates in a loop of its own, as copies of transformers' do."""

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        self.ends = []
        self.rows: list[int] = []
        for batch in dataloader:
            self.ends.append(self.accelerator.gradient_state.end_of_dataloader)
            self.rows.append(len(self.accelerator.gather_for_metrics(torch.cat([batch["x"], batch["x"]]))))
        return super().evaluation_loop(dataloader, *args, **kwargs)


def test_the_end_of_a_loader_is_seen(tmp_path: Path) -> None:
    """In the last batch of an evaluation within a run, and afterwards that of the training data again."""
    parts: dict[str, Any] = {"eval_dataset": rows(6)}
    trainer = small_trainer(tmp_path, OwnEvaluation, parts, eval_strategy="epoch")
    state = trainer.accelerator.gradient_state
    trainer.train()
    assert trainer.ends == [False, True]
    assert trainer.rows == [8, 4]
    assert not state.in_dataloader


def test_a_trainer_with_its_own_loop_assigns_an_accelerator(tmp_path: Path) -> None:
    """A subclass that does not call the constructor may set what it needs."""

    class OwnLoop(Trainer):
        def __init__(self) -> None:
            self.accelerator = accelerator
            self.is_deepspeed_enabled = self.is_fsdp_enabled = False
            self.deepspeed = None

    accelerator = RealAccelerator(cpu=True)
    trainer = OwnLoop()
    assert trainer.accelerator is accelerator
    assert (trainer.is_deepspeed_enabled, trainer.is_fsdp_enabled, trainer.deepspeed) == (False, False, None)


def test_backward_takes_the_keywords_of_torch(tmp_path: Path) -> None:
    """The graph of the loss is kept, so that a second backward pass doubles the gradients."""

    class Twice(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            loss: torch.Tensor = self.compute_loss(model, inputs)
            self.accelerator.backward(loss / 2, retain_graph=True)
            self.accelerator.backward(loss / 2)
            return loss.detach()

    standard, twice = small_trainer(tmp_path / "standard"), small_trainer(tmp_path / "twice", Twice)
    standard.train(), twice.train()
    assert same_weights(weights(standard), weights(twice))


def test_runs_do_not_share_their_signals(tmp_path: Path) -> None:
    """What accelerate's state shows of two runs in turns is the last one's; each run reads its own."""
    one = small_trainer(tmp_path / "one", gradient_accumulation_steps=2)
    other = small_trainer(tmp_path / "other")
    first, second = one.stream(), other.stream()
    seen = []
    for event in first:
        next(second, None)
        if type(event).__name__ in ("MicroStepEnded", "StepEnded"):
            seen.append(one.accelerator.sync_gradients)
    second.close()
    assert seen == [False, True] * 2


def test_a_device_that_torch_does_not_have(tmp_path: Path) -> None:
    """A Trainer can be made; what needs accelerate's own state is refused, with the reason."""
    PartialState()
    trainer = small_trainer(tmp_path, parts={"device": SimulatedDevice()}, use_cpu=False)
    assert trainer.accelerator.is_main_process
    with pytest.raises(ConfigurationError, match="need a device of torch, and the run's is 'simulated:0'"):
        trainer.accelerator.gradient_state  # noqa: B018
    with pytest.raises(ConfigurationError, match="its device is cpu, the run's simulated"):
        small_trainer(
            tmp_path,
            parts={"device": SimulatedDevice()},
            use_cpu=False,
            accelerator_config={"use_configured_state": True},
        )


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_run_accelerate_prepares_optimizers_that_step(tmp_path: Path, fails: bool) -> None:
    """Also if the run ended in the middle of a window, after which accelerate would skip every step."""

    class Failing(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            if fails:
                raise ZeroDivisionError
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = small_trainer(tmp_path, Failing, gradient_accumulation_steps=2)
    real = trainer.accelerator.real
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        trainer.train()
    assert trainer.accelerator.sync_gradients
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = real.prepare(torch.optim.SGD([weight], lr=0.5))
    weight.grad = torch.ones(1)
    optimizer.step()
    assert weight.item() == 0.5
