"""`compile_buckets`: few shapes, the same samples and losses, exact resume, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from hexloop import Trainer, TrainerCallback
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.testing import assert_resume_exact
from tests.end_to_end.small.models import net
from tests.end_to_end.small.sequences import pad, sentences, tagger
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights


class Watching(Trainer):
    """Notes the shape and the first words of each batch."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seen: list[tuple[bool, tuple[int, ...], list[int]]] = []

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        words = inputs["input_ids"]
        self.seen.append((self.model.training, tuple(words.shape), words[:, 0].tolist()))
        return super().compute_loss(model, inputs, *given, **named)

    def shapes(self, training: bool = True) -> list[tuple[int, ...]]:
        return [shape for trains, shape, _ in self.seen if trains == training]

    def order(self) -> list[list[int]]:
        return [words for trains, _, words in self.seen if trains]


def made(folder: Path, parts: dict[str, Any] | None = None, kind: type[Trainer] = Watching, **given: Any) -> Any:
    """Return a Trainer of 64 samples in batches of 4."""
    chosen = {"model": tagger(), "train_dataset": sentences(64), "data_collator": pad, **(parts or {})}
    return small_trainer(folder, kind, chosen, **given)


def trained(folder: Path, parts: dict[str, Any] | None = None, resume: Any = None, **given: Any) -> Any:
    trainer = made(folder, parts, **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def refusal(folder: Path, parts: dict[str, Any] | None = None, kind: type[Trainer] = Watching, **given: Any) -> str:
    """Return the only problem of a run that is refused before its first step."""
    with pytest.raises(ConfigurationError) as caught:
        made(folder, parts, kind, **{"compile_buckets": 3, **given}).train()
    (problem,) = caught.value.problems
    return problem


# What is compiled

COMPILED: list[tuple[int, ...]] = []
"""The shapes of the words for which `noting` has compiled."""


def noting(graph: Any, inputs: list[Any]) -> Any:
    """Run a graph as it is, like the backend eager, and note the shape of the words."""
    (shape,) = {tuple(each.shape) for each in inputs if isinstance(each, Tensor) and each.dtype == torch.int64}
    COMPILED.append(shape)
    return graph.forward


@pytest.fixture
def compiled() -> Iterator[list[tuple[int, ...]]]:
    """Let `torch_compile_backend="noting"` note what it compiles."""
    from torch._dynamo import register_backend, reset
    from torch._dynamo.backends.registry import list_backends

    if "noting" not in list_backends(exclude_tags=()):
        register_backend(noting, name="noting")
    reset()
    COMPILED.clear()
    yield COMPILED
    reset()


def test_at_most_so_many_shapes_are_compiled(tmp_path: Path, compiled: list[tuple[int, ...]]) -> None:
    """Each planned shape is compiled once, over all epochs; samples and losses are those of a run without buckets."""
    plain = trained(tmp_path / "plain", num_train_epochs=2)
    found = trained(tmp_path / "buckets", num_train_epochs=2, compile_buckets=3, torch_compile_backend="noting")

    assert len(set(plain.shapes())) > 10
    assert set(found.shapes()) == set(compiled)
    assert len(compiled) == 3
    assert found.order() == plain.order()
    assert losses(found) == pytest.approx(losses(plain), rel=1e-5)
    assert all(mine >= own for (_, mine), (_, own) in zip(found.shapes(), plain.shapes(), strict=True))


@pytest.mark.matrix
def test_more_shapes_than_torch_usually_compiles(tmp_path: Path, compiled: list[tuple[int, ...]]) -> None:
    """torch.compile gives up after 8 shapes of a function; its limit is raised for the run, and then as before."""
    from torch._dynamo import config

    before = config.recompile_limit, config.accumulated_recompile_limit
    data = sentences(64)
    parts = {"eval_dataset": {"few": data[:9], "more": sentences(18, 20, seed=1)}}
    found = trained(tmp_path, parts, compile_buckets=8, torch_compile_backend="noting", eval_strategy="epoch")

    assert len(set(found.shapes())) == 8
    assert set(found.shapes(False)) | set(found.shapes()) == set(compiled)
    assert len(compiled) <= 8 + 2 * (8 + 1)
    assert len(compiled) > 12
    assert (config.recompile_limit, config.accumulated_recompile_limit) == before


# The same training

SETTINGS: dict[str, dict[str, Any]] = {
    "grouped by length": {"train_sampling_strategy": "group_by_length"},
    "sequential": {"train_sampling_strategy": "sequential"},
    "accumulated": {"gradient_accumulation_steps": 3},
    "workers": {"dataloader_num_workers": 2},
    "leaving out the rest": {"per_device_train_batch_size": 5, "dataloader_drop_last": True},
    "spawned workers": {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "spawn"},
}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.matrix if "spawned" in each else ()) for each in SETTINGS]
)
def test_a_run_trains_as_without_buckets(tmp_path: Path, name: str) -> None:
    """The same samples in the same order, the same losses, and few shapes, in any order of samples."""
    given = SETTINGS[name]
    plain = trained(tmp_path / "plain", **given)
    found = trained(tmp_path / "buckets", compile_buckets=2, **given)

    assert found.order() == plain.order()
    assert losses(found) == pytest.approx(losses(plain), rel=1e-5)
    assert len(set(found.shapes())) == 2
    assert len(set(plain.shapes())) > 4


def test_a_sampler_of_the_user_decides_the_order(tmp_path: Path) -> None:
    class Sampling(Watching):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(5))

    orders = []
    for buckets in (None, 2):
        trainer = made(tmp_path, kind=Sampling, compile_buckets=buckets)
        trainer.train()
        orders.append(trainer.order())
    assert orders[0] == orders[1]
    assert len(set(trainer.shapes())) <= 2


def test_evaluations_have_plans_of_their_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each data set is read once for its plan; its last batch has fewer rows; results are the same."""
    reads: list[int] = []

    class Read(Dataset[Any]):
        rows = sentences(18, longest=60, seed=2)

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> Any:
            reads.append(index)
            return self.rows[index]

    given: dict[str, Any] = {"num_train_epochs": 3, "eval_strategy": "epoch"}
    plain = trained(tmp_path / "plain", {"eval_dataset": Read()}, **given)
    before = len(reads)
    with caplog.at_level(logging.INFO, "hexloop"):
        found = trained(tmp_path / "buckets", {"eval_dataset": Read()}, compile_buckets=2, **given)
    planned = [record.getMessage() for record in caplog.records if "batches are padded to" in record.getMessage()]

    assert len(planned) == 2
    assert len(reads) - before < before + 18 + 20
    assert len(set(plain.shapes(False))) == 5
    assert len(set(found.shapes(False))) <= 3
    assert {rows for rows, _ in found.shapes(False)} == {4, 2}
    assert max(length for _, length in found.shapes(False)) > max(length for _, length in found.shapes())
    measured = [
        [entry["eval_loss"] for entry in each.state.log_history if "eval_loss" in entry] for each in (found, plain)
    ]
    assert len(measured[0]) == 3
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)
    predicted, without = (each.predict(Read.rows) for each in (found, plain))
    assert predicted.predictions.shape == without.predictions.shape
    assert (predicted.label_ids == without.label_ids).all()


def test_a_column_of_lengths_is_read_instead_of_the_data(tmp_path: Path) -> None:
    """Of a `datasets.Dataset`, the column alone; the plan is the same."""
    rows = sentences(64)
    data = datasets.Dataset.from_list([{**row, "many": len(row["input_ids"])} for row in rows])
    by_column = trained(tmp_path / "a", {"train_dataset": data}, compile_buckets=3, length_column_name="many")
    by_reading = trained(tmp_path / "b", {"train_dataset": rows}, compile_buckets=3)
    assert by_column.shapes() == by_reading.shapes()


# Resume


def job(folder: str) -> Trainer:
    """Return the Trainer of a run with dropout, to be interrupted anywhere."""
    given: dict[str, Any] = {"num_train_epochs": 2, "per_device_train_batch_size": 8, "compile_buckets": 2}
    trainer: Trainer = made(Path(folder), {"model": tagger(0.3)}, Trainer, **given)
    return trainer


@pytest.mark.parametrize("fresh_process", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_run_resumes_exactly(fresh_process: bool) -> None:
    """In the middle of an epoch: batches, losses, weights and random streams are bit-identical."""
    assert_resume_exact(job, stops=[5], fresh_process=fresh_process)


SAVED: dict[str, Any] = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}


def test_other_buckets_or_lengths_are_refused_on_resume(tmp_path: Path) -> None:
    """As other changes of the data, which `resume_despite` accepts."""
    whole = trained(tmp_path, compile_buckets=2, **SAVED)
    checkpoint, given = str(tmp_path / "checkpoint-3"), {**SAVED, "save_strategy": "no"}
    changed: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {"compile_buckets": 3}, "it was written with compile_buckets=2, and this run has 3"),
        ({}, {}, "it was written with compile_buckets=2, and this run has None"),
        ({"train_dataset": sentences(64, seed=1)}, {"compile_buckets": 2}, "had other lengths than those of this run"),
    ]
    for parts, arguments, told in changed:
        with pytest.raises(CheckpointError, match=rf"{told}.*resume_despite=\['data_length'\]"):
            trained(tmp_path / "other", parts, checkpoint, **arguments, **given)
        accepted = trained(tmp_path / "other", parts, checkpoint, **arguments, **given, resume_despite=["data_length"])
        assert accepted.state.global_step == 6
    same = trained(tmp_path / "same", None, checkpoint, compile_buckets=2, **given)
    assert same_weights(weights(same), weights(whole))
    assert history(same)[:-1] == history(whole)[:-1]


# Refusals


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from sentences(64)


class OwnLoader(Watching):
    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=4, collate_fn=pad)


class OtherCollate(Watching):
    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        loader.collate_fn = pad
        return loader


class Endless(Watching):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        class Sampler:
            def __iter__(self) -> Iterator[int]:
                return iter(range(64))

        return Sampler()


@pytest.mark.parametrize(
    ("kind", "parts", "given", "told"),
    [
        (Watching, {"train_dataset": sentences(66)}, {}, "66 samples leave 2 for the last batch"),
        (Watching, {"train_dataset": Stream()}, {"max_steps": 4}, "an iterable dataset are not known"),
        (OwnLoader, {}, {}, "the training loader is a DataLoader that get_train_dataloader"),
        (OtherCollate, {}, {}, "or whose collate_fn was replaced"),
        (Endless, {}, {"max_steps": 4}, "the sampler has no length"),
        (Watching, {}, {"train_sampling_strategy": "batch_rebalance"}, "makes batches of different sizes"),
        (Watching, {}, {"reproduce": "transformers"}, "leave compile_buckets out"),
        (Watching, {}, {"compile_buckets": 0}, "at least 1"),
        (Watching, {"data_collator": lambda rows: pad(rows[:1])}, {}, "compile_buckets=3 cannot pad the batches"),
    ],
)
def test_what_cannot_be_padded_is_refused(
    tmp_path: Path, kind: type[Trainer], parts: dict[str, Any], given: dict[str, Any], told: str
) -> None:
    """Before the first step, with a way out."""
    assert told in refusal(tmp_path, parts, kind, **given)


def test_data_of_one_shape_have_no_use_for_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A message says so."""
    with caplog.at_level(logging.INFO, "hexloop"):
        small_trainer(tmp_path, parts={"model": net()}, compile_buckets=3).train()
    assert any("compile_buckets=3, which has no effect here" in record.getMessage() for record in caplog.records)


def test_a_longer_sample_than_planned_ends_the_run(tmp_path: Path) -> None:
    """Data that return another length than when they were read are an error with a way out, not another shape."""

    class Growing(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            for row in data:
                row["input_ids"], row["labels"] = row["input_ids"] * 2, row["labels"] * 2

    data = sentences(64)
    with pytest.raises(ValueError, match="compile_buckets=2 planned batches whose rows have at most the shapes"):
        trained(tmp_path, {"train_dataset": data, "callbacks": [Growing()]}, compile_buckets=2)
