"""With auto_find_batch_size, a run that does not fit restarts with smaller batches, as if it had started with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hexloop import Trainer, TrainerCallback
from hexloop.adapters.device.torch import CpuDevice
from hexloop.domain.errors import HexloopError, RunStateError
from hexloop.domain.events import StepBegan, TrainBegan
from tests.end_to_end.small.models import Net, net, rows
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


class Hungry(Net):
    """Has memory for `room` samples, from a given forward pass on."""

    room = 5
    patience = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        if self.training:
            self.patience -= 1
        if self.patience < 0 and len(x) > self.room:
            raise torch.OutOfMemoryError("no room for so many")
        return super().forward(x, labels)


def hungry(room: int = 5, patience: int = 0) -> Hungry:
    model = net(kind=Hungry)
    assert isinstance(model, Hungry)
    model.room, model.patience = room, patience
    return model


def searching(folder: Path, model: nn.Module, **given: Any) -> Any:
    return small_trainer(
        folder, parts={"model": model}, **{"auto_find_batch_size": True, "per_device_train_batch_size": 8, **given}
    )


def fitting(folder: Path, size: int, **given: Any) -> Any:
    return small_trainer(folder, per_device_train_batch_size=size, **given)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("given", [{}, {"gradient_accumulation_steps": 2}, {"optim": "sgd", "logging_steps": 2}])
def test_the_run_matches_one_with_the_size_that_fits(tmp_path: Path, given: dict[str, Any]) -> None:
    """8, 7 and 6 do not fit and 5 does: weights and history equal those of a run with 5 from the start."""
    found, plain = searching(tmp_path, hungry(), **given), fitting(tmp_path, 5, **given)
    found.train()
    plain.train()

    assert found.state.train_batch_size == 5
    assert same_weights(weights(found), weights(plain))
    assert history(found) == history(plain)


def test_steps_before_the_restart_are_discarded(tmp_path: Path) -> None:
    """A run that fails after some steps restarts from its initial weights."""
    found = searching(tmp_path, hungry(room=6, patience=2), num_train_epochs=3)
    plain = fitting(tmp_path, 6, num_train_epochs=3)
    found.train()
    plain.train()

    assert same_weights(weights(found), weights(plain))
    assert found.state.global_step == plain.state.global_step


def test_a_size_that_fits_is_kept(tmp_path: Path) -> None:
    """If the first size fits, nothing changes."""
    found, plain = searching(tmp_path, hungry(room=8)), fitting(tmp_path, 8)
    found.train()
    plain.train()

    assert same_weights(weights(found), weights(plain))
    assert found.state.train_batch_size == 8


def test_each_step_down_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The logger reports every batch size that did not fit, and the next one tried."""
    searching(tmp_path, hungry(room=6)).train()

    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == [
        "cpu has not enough memory for batches of 8 samples; the run starts again with batches of 7.",
        "cpu has not enough memory for batches of 7 samples; the run starts again with batches of 6.",
    ]


def test_a_stream_reports_every_start(tmp_path: Path) -> None:
    """The event stream shows one start per batch size."""
    events = list(searching(tmp_path, hungry(room=6)).stream())

    assert [type(event) for event in events if isinstance(event, TrainBegan)] == [TrainBegan] * 3
    assert [event.step for event in events if isinstance(event, StepBegan)] == [0, 0, 0, 1, 2]


def test_a_custom_optimizer_starts_fresh(tmp_path: Path) -> None:
    """The moments of the discarded steps are discarded, too."""
    trained = []
    for model, size in ((hungry(room=6, patience=2), 8), (net(), 6)):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        rates = torch.optim.lr_scheduler.LinearLR(optimizer)
        trainer = small_trainer(
            tmp_path,
            parts={"model": model, "optimizers": (optimizer, rates)},
            auto_find_batch_size=True,
            per_device_train_batch_size=size,
            num_train_epochs=2,
        )
        trainer.train()
        trained.append(trainer)

    assert same_weights(*map(weights, trained))
    assert history(trained[0]) == history(trained[1])


def test_a_resumed_run_keeps_the_size_found_before(tmp_path: Path) -> None:
    """The checkpoint contains it; the result equals that of an uninterrupted run."""
    saving = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 2}
    whole = searching(tmp_path / "whole", hungry(), **saving)
    whole.train()
    again = searching(tmp_path / "whole", hungry(), **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))

    assert again.state.train_batch_size == 5
    assert same_weights(weights(again), weights(whole))
    assert history(again)[:-1] == history(whole)[:-1]


def test_a_resumed_run_out_of_memory_restarts_from_its_checkpoint(tmp_path: Path) -> None:
    """It restarts from there with smaller batches, at the same sample."""
    saving = {"save_strategy": "steps", "save_steps": 1, "num_train_epochs": 2}
    fitting(tmp_path, 8, **saving).train()
    seen: list[int] = []

    class Seeing(Hungry):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            outputs = super().forward(x, labels)
            seen.append(len(x))
            return outputs

    model = net(kind=Seeing)
    again = searching(tmp_path, model, **saving)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))

    assert again.state.train_batch_size == 5
    assert seen == [5, 3]
    assert again.state.epoch == 2


def test_the_newest_checkpoint_has_the_size_that_fits(tmp_path: Path) -> None:
    """Checkpoints from before the restart are superseded."""
    saving = {"save_strategy": "steps", "save_steps": 1}
    found = searching(tmp_path, hungry(room=6, patience=1), num_train_epochs=2, **saving)
    found.train()
    again = searching(tmp_path, hungry(room=6), num_train_epochs=3, **saving)
    again.train(resume_from_checkpoint=True)
    plain = fitting(tmp_path / "plain", 6, num_train_epochs=2)
    plain.train()

    assert same_weights(weights(found), weights(plain))
    assert history(again)[: found.state.global_step] == history(found)[: found.state.global_step]


def test_a_batch_size_of_one_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    """It says what to change, and contains the device's message."""
    with pytest.raises(RunStateError, match="not enough memory for a batch of one sample") as raised:
        searching(tmp_path, hungry(room=0)).train()

    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_end_the_run(tmp_path: Path) -> None:
    """Only out-of-memory errors make batches smaller."""

    class Wrong(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        searching(tmp_path, net(kind=Wrong)).train()


def test_an_evaluation_out_of_memory_is_an_error(tmp_path: Path) -> None:
    """Smaller training batches would not help."""

    class HungryEvaluation(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            if not self.training:
                raise torch.OutOfMemoryError("no room")
            return super().forward(x, labels)

    trainer = small_trainer(
        tmp_path,
        parts={"model": net(kind=HungryEvaluation), "eval_dataset": rows(8)},
        auto_find_batch_size=True,
        eval_strategy="epoch",
    )
    with pytest.raises(HexloopError, match="per_device_eval_batch_size"):
        trainer.train()


def test_the_device_identifies_out_of_memory_errors(tmp_path: Path) -> None:
    """An error that the device adapter identifies as out of memory makes batches smaller, whatever its class."""

    class Particular(CpuDevice):
        def is_out_of_memory(self, error: BaseException) -> bool:
            return isinstance(error, ZeroDivisionError)

    class Dividing(Net):
        def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
            1 // (len(x) < 7)
            return super().forward(x, labels)

    trainer = small_trainer(
        tmp_path,
        parts={"model": net(kind=Dividing), "device": Particular()},
        auto_find_batch_size=True,
        per_device_train_batch_size=8,
    )
    trainer.train()

    assert trainer.state.train_batch_size == 6


def test_callbacks_start_fresh(tmp_path: Path) -> None:
    """The state of callbacks from discarded steps is discarded."""

    class Counting(TrainerCallback):
        def __init__(self) -> None:
            self.steps = 0

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"steps": self.steps}}

        @classmethod
        def from_state(cls, state: dict[str, Any]) -> Counting:
            made = cls()
            made.steps = state["attributes"]["steps"]
            return made

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.steps += 1

    counting = Counting()
    trainer = small_trainer(
        tmp_path,
        Trainer,
        {"model": hungry(room=6, patience=2), "callbacks": [counting]},
        auto_find_batch_size=True,
        per_device_train_batch_size=8,
        num_train_epochs=2,
    )
    trainer.train()

    assert counting.steps == trainer.state.global_step == 6
