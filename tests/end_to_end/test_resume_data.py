"""Which data a resumed run reads."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hexloop import EarlyStoppingCallback, Trainer, default_data_collator
from hexloop.adapters.batches.torch.stream import StreamLoader
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.callbacks.progress import SkipProgressBar
from hexloop.app.testing.recording import Cut, RecordedRun, record_run, step_is
from hexloop.app.testing.resume_exactness import first_difference
from hexloop.domain.errors import DataError
from hexloop.domain.events import StepBegan, StepEnded
from tests.end_to_end.resume.data import MappedWithState, Streamed, StreamedWithState
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import history, small_trainer

MILLION = 1_000_000


def assert_exact(make: Any, step: int | None = None, cut: Cut | None = None) -> None:
    """A run that is interrupted and resumed in this process equals an uninterrupted one."""
    whole = record_run(make(MemoryStorage()))
    storage = MemoryStorage()
    first = record_run(make(storage), cut=cut or step_is(step or 1))
    rest = record_run(make(storage), resume=True)
    kept = {number: each for number, each in first.steps.items() if number <= rest.started_at}
    joined = RecordedRun(kept | rest.steps, rest.started_at, rest.values, rest.tensors)
    assert first_difference(whole, joined, [0]) is None


def making(folder: Path, data: Any, kind: type[Trainer] = Trainer, parts: Any = None, **given: Any) -> Any:
    """Return a function that creates the same Trainer each time, with the given storage."""
    return lambda storage: small_trainer(
        folder,
        kind,
        {"model": net(0.3), "train_dataset": data(), "storage": storage, **(parts() if parts else {})},
        **given,
    )


# Samples that were trained on are not read again


class Counting(Dataset[dict[str, Tensor]]):
    """A long dataset that records which samples are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 5 * MILLION

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        return {"x": torch.full((4,), index / len(self)), "labels": torch.zeros(1)}


@pytest.mark.parametrize("batch_size", [1, 4])
def test_no_skipped_sample_is_read_at_step_a_million(tmp_path: Path, batch_size: int) -> None:
    """Resumed at step 1,000,000, a run with a map-style dataset reads only the samples of its next steps."""
    storage = MemoryStorage()
    given: dict[str, Any] = {
        "max_steps": MILLION + 3,
        "per_device_train_batch_size": batch_size,
        "logging_steps": MILLION,
    }
    make = making(tmp_path, Counting, **given)
    far = make(storage)
    for event in far.stream():
        state = far._session.run.state if far._session else None
        if type(event) is StepBegan and state is not None and state.step == 0:  # as after training up to here
            state.step = state.updates = state.batches = MILLION - 1
            state.position = state.samples = (MILLION - 1) * batch_size
            far._session.run.batches.loader.cursor.current.samples = state.position + batch_size
        if type(event) is StepEnded:
            far.request_save()
            far.request_stop()
    resumed = make(storage)
    resumed.train(resume_from_checkpoint=True)

    loader = resumed.get_train_dataloader()
    loader.batch_sampler.seek(0, MILLION * batch_size)
    expected = [index for _, indices in zip(range(3), loader.batch_sampler, strict=False) for index in indices]
    assert resumed.train_dataset.read == expected
    assert resumed.state.global_step == MILLION + 3


class Collating:
    """Records what is collated."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def __call__(self, features: list[Any]) -> Any:
        self.batches.append([round(float(feature["x"][0]), 4) for feature in features])
        return default_data_collator(features)


def test_skipped_rows_are_not_collated_and_shown_in_a_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iterable data is skipped row by row; with `disable_tqdm=False` a progress bar counts the rows."""
    storage, collate = MemoryStorage(), Collating()
    make = making(tmp_path, lambda: Streamed("none"), parts=lambda: {"data_collator": collate}, max_steps=5)
    record_run(make(storage), cut=step_is(3))
    collate.batches.clear()
    make(storage).train(resume_from_checkpoint=True)

    expected = [round(float(row["x"][0]), 4) for row in rows(22)]
    assert collate.batches == [expected[12:16], expected[16:20]]
    assert capsys.readouterr().err == ""

    monkeypatch.setattr("hexloop.app.callbacks.console.is_terminal", lambda _stream: True)
    make = making(tmp_path, lambda: Streamed("none"), max_steps=5, disable_tqdm=False)
    make(storage).train(resume_from_checkpoint=True)
    shown = capsys.readouterr().err
    assert "Skipping samples" in shown
    assert "0/12" in shown  # tqdm does not update for less than a tenth of a second


def test_a_failing_bar_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is disabled, and the log says so once."""
    storage = MemoryStorage()
    make = making(tmp_path, lambda: Streamed("none"), max_steps=5, disable_tqdm=False)
    record_run(make(storage), cut=step_is(4))

    def fail(*args: Any) -> None:
        raise OSError("the terminal is gone")

    monkeypatch.setattr(SkipProgressBar, "_bar", SimpleNamespace(n=0, update=fail))
    make(storage).train(resume_from_checkpoint=True)
    (told,) = [text for text in caplog.messages if "the terminal is gone" in text]
    assert "the run continues without it" in told


# Difficult data


class Shuffled(IterableDataset[Any]):
    """Its order is drawn from Python's global generator at the start of an epoch, and rows have noise from it."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(14))
        random.shuffle(order)
        every = rows(14)
        for index in order:
            yield {**every[index], "x": every[index]["x"] + random.random()}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", [1, 3, 5, 6])
def test_a_stream_shuffled_by_a_global_generator_resumes_exactly(tmp_path: Path, step: int) -> None:
    """A resumed run repeats the order and continues the noise."""
    assert_exact(making(tmp_path, Shuffled, max_steps=9), step)


class SharedEpoch(IterableDataset[int]):
    """Shares its epoch among all copies and sets it slowly, like some streams of `datasets`."""

    def __init__(self) -> None:
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        missing = epoch - int(self.epoch)
        time.sleep(0.2)
        self.epoch += missing

    def __iter__(self) -> Iterator[int]:
        yield from [int(self.epoch)] * 5


def test_workers_do_not_race_for_the_epoch() -> None:
    """The epoch is set before the workers start, so that none adds to what another has set."""
    loader = StreamLoader(SharedEpoch(), batch_size=2, collate_fn=list, num_workers=2)
    for epoch in (1, 3):
        assert {read for batch in loader.batches_from(epoch, 0) for read in batch} == {epoch}


class Buffered(IterableDataset[Any]):
    """Shuffles with a buffer, row by row, by Python's global generator."""

    def __iter__(self) -> Iterator[Any]:
        waiting, buffer = iter(rows(14)), []
        for row in waiting:
            buffer.append(row)
            if len(buffer) == 5:
                yield buffer.pop(random.randrange(5))
        while buffer:
            yield buffer.pop(random.randrange(len(buffer)))


@pytest.mark.matrix
@pytest.mark.parametrize("given", [{"keyed_data_randomness": True}, {"dataloader_num_workers": 1}])
def test_keyed_rows_are_chosen_again(tmp_path: Path, given: dict[str, Any]) -> None:
    """Keyed by position in the epoch, each random number is repeated, whatever else is drawn in between."""

    class Drawing(Dropping):
        def __call__(self, features: list[Any]) -> Any:
            return {name: value + random.random() for name, value in default_data_collator(features).items()}

    for step in (2, 5):
        assert_exact(making(tmp_path, Buffered, parts=lambda: {"data_collator": Drawing()}, max_steps=7, **given), step)


class Dropping:
    """Drops rows, so that a batch has fewer than were read for it, or packs them into one."""

    def __call__(self, features: list[Any]) -> Any:
        positive = [feature for feature in features if feature["labels"] > 0] or features[:1]
        return default_data_collator(positive)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("data", [lambda: rows(22), lambda: Streamed("none"), lambda: StreamedWithState("numpy")])
@pytest.mark.parametrize("step", [4, 6, 7, 1])
def test_batches_of_fewer_rows_than_were_read_resume_exactly(tmp_path: Path, data: Any, step: int) -> None:
    """The resume position counts samples read, not rows that the model received."""
    assert_exact(making(tmp_path, data, parts=lambda: {"data_collator": Dropping()}, max_steps=9), step)


def test_reading_lengths_does_not_change_random_states(tmp_path: Path) -> None:
    """An augmented dataset grouped by length resumes exactly, although its lengths are read again."""

    class Noisy(Dataset[Any]):
        def __len__(self) -> int:
            return 22

        def __getitem__(self, index: int) -> Any:
            row = rows(22)[index]
            return {**row, "x": row["x"] + random.random(), "long": index % 5}

    given: dict[str, Any] = {"train_sampling_strategy": "group_by_length", "length_column_name": "long", "max_steps": 8}
    for step in (2, 6):
        assert_exact(making(tmp_path, Noisy, **given), step)


@pytest.mark.parametrize("whole_batches", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_stateful_stream_resumes_exactly_around_its_end(tmp_path: Path, step: int, whole_batches: bool) -> None:
    """Within an epoch, after its last, partial window, and after its end."""

    class Rows(StreamedWithState):
        def __init__(self) -> None:
            super().__init__("torch")
            self.rows = self.rows[: 20 if whole_batches else 22]

    assert_exact(making(tmp_path, Rows, max_steps=5, gradient_accumulation_steps=3), step)


class StartsAtItsState(Streamed):
    """Starts an iteration at its state's position, which after an epoch is the end; only the next starts over."""

    start = position = 0

    def __iter__(self) -> Iterator[Any]:
        share, start = self.share(), self.start
        self.start = 0
        for self.position in range(start + 1, len(share) + 1):
            yield share[self.position - 1]

    def state_dict(self) -> Any:
        return self.position

    def load_state_dict(self, state: Any) -> None:
        self.start = self.position = state


@pytest.mark.parametrize("step", [3, 6, 7])
def test_data_whose_state_is_at_the_end_start_over(tmp_path: Path, step: int) -> None:
    """Saved between two epochs, the next one is complete."""
    assert_exact(making(tmp_path, lambda: StartsAtItsState("none"), max_steps=9), step)


def test_data_saved_at_the_end_of_an_epoch_start_over(tmp_path: Path) -> None:
    """Saved by epoch, the next one is complete."""
    assert_exact(
        making(tmp_path, lambda: StartsAtItsState("none"), max_steps=9, save_strategy="epoch"),
        cut=lambda event: type(event).__name__ == "EpochEnded",
    )


@pytest.mark.one_in(100)
@pytest.mark.parametrize(
    "data",
    [
        MappedWithState,
        StreamedWithState,
        pytest.param(Streamed, marks=pytest.mark.matrix),
        pytest.param(StartsAtItsState, marks=pytest.mark.matrix),
    ],
)
@pytest.mark.parametrize("step", [4, pytest.param(8, marks=pytest.mark.matrix)])
def test_persistent_workers_resume_exactly(tmp_path: Path, data: Any, step: int) -> None:
    """With persistent workers, whose datasets keep their state from epoch to epoch."""
    given: dict[str, Any] = {"max_steps": 15, "dataloader_num_workers": 2, "dataloader_persistent_workers": True}
    assert_exact(making(tmp_path, lambda: data("torch"), **given), step)


# Unsupported or unwanted state


class Unkept(StreamedWithState):
    """Its state_dict contains its generator, not the generator's state."""

    def state_dict(self) -> dict[str, Any]:
        return {"read": self.read, "random": self.random}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.matrix)])
def test_state_that_cannot_be_saved_is_refused_before_the_first_update(tmp_path: Path, workers: int) -> None:
    """The message names the state, says why it cannot be saved, and how to fix it."""
    trainer = making(tmp_path, lambda: Unkept("none"), max_steps=3, dataloader_num_workers=workers)(MemoryStorage())
    with pytest.raises(
        DataError, match=r"state_dict of Unkept contains a Random at \S*random, .* no pickled .*let state_d"
    ):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("data", [lambda: rows(22), lambda: Streamed("none"), lambda: StartsAtItsState("none")])
def test_with_ignore_data_skip_the_epoch_starts_over(tmp_path: Path, data: Any) -> None:
    """As in transformers, the run resumes with the first sample of the interrupted epoch."""
    storage, collate = MemoryStorage(), Collating()
    given: dict[str, Any] = {"max_steps": 9, "train_sampling_strategy": "sequential"}
    record_run(making(tmp_path, data, **given)(storage), cut=step_is(3))
    make = making(tmp_path, data, parts=lambda: {"data_collator": collate}, ignore_data_skip=True, **given)
    make(storage).train(resume_from_checkpoint=True)

    assert collate.batches[0] == [round(float(row["x"][0]), 4) for row in rows(4)]
    assert len(collate.batches) == 6


def test_a_stream_resumes_with_another_number_of_workers(tmp_path: Path) -> None:
    """A warning says that the order of rows changes; no row that was trained on is repeated in this epoch."""
    storage = MemoryStorage()
    record_run(making(tmp_path, lambda: StreamedWithState("none"), max_steps=5)(storage), cut=step_is(2))
    make = making(tmp_path, lambda: StreamedWithState("none"), max_steps=5, dataloader_num_workers=2)
    resumed = make(storage)
    with pytest.warns(UserWarning, match="Use the same dataloader_num_workers"):
        resumed.train(resume_from_checkpoint=True)

    assert resumed.state.global_step == 5


class Preparing(Trainer):
    """Lets accelerate prepare its own loader, as libraries do."""

    def get_train_dataloader(self) -> Any:
        loader = DataLoader(self.train_dataset, batch_size=4, shuffle=True, collate_fn=self.data_collator)
        return self.accelerator.prepare(loader)


def test_a_loader_that_accelerate_prepared_resumes_exactly(tmp_path: Path) -> None:
    """It has the methods of a loader with a state, but no state."""
    make = making(tmp_path, lambda: rows(16), Preparing, num_train_epochs=2)
    assert hasattr(make(MemoryStorage()).get_train_dataloader(), "state_dict")
    assert_exact(make, step=2)


# Runs that ended early


def stopping(patience: int) -> Any:
    return lambda: {"callbacks": [EarlyStoppingCallback(patience)], "eval_dataset": rows(6)}


def test_a_run_ended_by_early_stopping_stays_ended_unless_patience_grows(tmp_path: Path) -> None:
    """Resumed at its end it trains nothing and has the same result; with more patience it continues."""
    storage = MemoryStorage()
    given: dict[str, Any] = {
        "max_steps": 30, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1,
        "metric_for_best_model": "loss", "load_best_model_at_end": True, "learning_rate": 0.5, "logging_steps": 4,
        "save_total_limit": None,
    }  # fmt: skip
    first = making(tmp_path, lambda: rows(16), parts=stopping(2), **given)(storage)
    first.train()
    ended = first.state.global_step
    assert 2 < ended < 30
    again = making(tmp_path, lambda: rows(16), parts=stopping(2), **given)(storage)
    again.train(resume_from_checkpoint=True)
    patient = making(tmp_path, lambda: rows(16), parts=stopping(9), **given)(storage)
    patient.train(resume_from_checkpoint=True)

    assert again.state.global_step == ended
    assert history(again) == history(first)
    assert all(torch.equal(a, b) for a, b in zip(again.model.parameters(), first.model.parameters(), strict=True))
    assert patient.state.global_step > ended


def test_a_second_run_of_a_trainer_is_not_ended_by_the_first(tmp_path: Path) -> None:
    """Exhausted patience ends a resumed run, but not a new one."""
    given: dict[str, Any] = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss",
        "learning_rate": 0.5,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "EarlyStoppingCallback stops the run some evaluations")
        trainer = making(tmp_path, lambda: rows(16), parts=stopping(1), **given)(MemoryStorage())
        trainer.train()
        assert trainer.state.global_step < 6
        trainer.train()
    assert trainer.state.global_step >= 1
