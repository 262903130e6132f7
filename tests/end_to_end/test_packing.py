"""Packing, padding-free batches and budgets of tokens: the same losses, exact resume, and what is refused."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorWithFlattening,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from hexloop import Trainer, TrainingArguments
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.packing import WINDOW
from hexloop.testing import assert_resume_exact
from tests.end_to_end.parity.scripts.texts import make_tokenizer
from tests.end_to_end.small.language_models import (
    MODELS,
    WORDS,
    StatefulStream,
    Stream,
    documents,
    llama,
    loss_of_each,
)
from tests.end_to_end.small.models import net
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

flattening: Any = DataCollatorWithFlattening

TO_SEQUENCES: Any = DataCollatorForSeq2Seq
"""A collate function of whole samples."""


class Watching(Trainer):
    """Notes the batches that the loss is computed of."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.seen: list[tuple[bool, dict[str, Any]]] = []

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        self.seen.append((self.model.training, dict(inputs)))
        return super().compute_loss(model, inputs, *given, **named)

    @property
    def batches(self) -> list[dict[str, Any]]:
        return [batch for trains, batch in self.seen if trains]


def made(folder: Path, parts: dict[str, Any] | None = None, kind: type[Trainer] = Watching, **given: Any) -> Any:
    """Return a Trainer of 40 documents in batches of 2."""
    chosen = {"model": llama(), "train_dataset": documents(40), **(parts or {})}
    return small_trainer(folder, kind, chosen, **{"per_device_train_batch_size": 2, **given})


def trained(folder: Path, parts: dict[str, Any] | None = None, resume: Any = None, **given: Any) -> Any:
    trainer = made(folder, parts, **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def refusal(folder: Path, parts: dict[str, Any] | None = None, **given: Any) -> str:
    """Return the only problem of a run that is refused before its first step."""
    with pytest.raises(ConfigurationError) as caught:
        made(folder, parts, **given).train()
    (problem,) = caught.value.problems
    return problem


PACKED: dict[str, Any] = {"packing": True, "max_length": 24}


# Losses

WHOLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "packed": ({}, PACKED),
    "packed, one row": ({}, {**PACKED, "padding_free": True}),
    "packed in longer rows": ({}, {"packing": True, "max_length": 60}),
    "packed by tokens": ({}, {**PACKED, "tokens_per_batch": 60}),
    "padding-free": ({}, {"padding_free": True}),
    "padding-free by tokens": ({}, {"padding_free": True, "tokens_per_batch": 60}),
    "flattened": ({"data_collator": flattening()}, {}),
    "flattened and packed": ({"data_collator": flattening()}, PACKED),
    "padded by tokens": ({}, {"tokens_per_batch": 60, "train_sampling_strategy": "group_by_length"}),
    "padded": ({}, {"max_length": 24, "pad_to_multiple_of": 8}),
}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", WHOLE)
def test_the_loss_is_that_of_each_document_alone(tmp_path: Path, name: str, attention: str) -> None:
    """Over an epoch of one optimizer step, each predicted token counts the same, whatever it shares a row with."""
    parts, given = WHOLE[name]
    model = llama(attention)
    masked = name not in ("flattened", "flattened and packed")  # that function does not know completion_mask
    data = documents(40, masked=masked)
    expected, _ = loss_of_each(model, data)
    trainer = trained(
        tmp_path, {"model": model, "train_dataset": data, **parts}, gradient_accumulation_steps=60, **given
    )
    assert trainer.state.global_step == 1
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.one_in(3)
def test_attention_stays_within_documents(tmp_path: Path, model: str, attention: str, strategy: str) -> None:
    """Of every batch of a run, also over accumulation, the loss is that of its pieces of documents, each alone."""
    chosen = {"model": MODELS[model](attention)}
    given = {"packing": True, "packing_strategy": strategy, "max_length": 16, "learning_rate": 0.0}
    trainer = trained(tmp_path, chosen, gradient_accumulation_steps=2, max_steps=5, **given)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    for number, loss in enumerate(losses):
        pieces = [piece for batch in trainer.batches[2 * number : 2 * number + 2] for piece in pieces_in(batch)]
        expected, count = loss_of_each(trainer.model, pieces)
        assert loss == pytest.approx(expected, abs=1e-6)
        assert count == sum(
            int((batch["labels"] != -100).sum()) for batch in trainer.batches[2 * number : 2 * number + 2]
        )


def pieces_in(batch: dict[str, Any]) -> list[dict[str, list[int]]]:
    """Return the tokens of each document in a batch, by the positions that restart."""
    found: list[dict[str, list[int]]] = []
    for tokens, labels, positions in zip(batch["input_ids"], batch["labels"], batch["position_ids"], strict=True):
        starts = [*(positions == positions[0]).nonzero().flatten().tolist(), len(tokens)]
        for start, stop in pairwise(starts):
            if not (labels[start + 1 : stop] == -100).all():  # else padding, or a piece that predicts nothing
                found.append({"input_ids": tokens[start:stop].tolist()})
    return found


def test_a_model_that_would_keep_a_cache(tmp_path: Path) -> None:
    """With use_cache, transformers takes no boundaries from positions, so that batches turn it off."""
    model = llama()
    expected, _ = loss_of_each(model, documents(40))
    for collator in ({}, {"data_collator": flattening()}):
        given = {**PACKED, "use_cache": True, "gradient_accumulation_steps": 60}
        trainer = trained(tmp_path, {"model": llama(), **collator}, **given)
        assert trainer.batches[0]["use_cache"] is False
        assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-6)


def test_gradients_are_those_of_padded_rows(tmp_path: Path) -> None:
    """One step leads to the same weights, packed or padded."""
    step: dict[str, Any] = {"gradient_accumulation_steps": 60, "optim": "sgd", "learning_rate": 0.1}
    padded = trained(tmp_path, max_length=24, **step)
    packed = trained(tmp_path, **PACKED, **step)
    for name, weight in weights(padded).items():
        assert torch.allclose(weight, weights(packed)[name], atol=1e-6)


# Counts


def test_documents_are_counted_as_samples(tmp_path: Path) -> None:
    """In the state, the rates and the end of an epoch; every document is trained on once in each epoch."""
    for number, given in enumerate(
        (PACKED, {"padding_free": True}, {"tokens_per_batch": 60}, {**PACKED, "tokens_per_batch": 60})
    ):
        trainer = made(tmp_path / str(number), num_train_epochs=2, save_strategy="epoch", **given)
        output = trainer.train()
        assert trainer.state.epoch == 2
        assert output.metrics["train_samples_per_second"] * output.metrics["train_runtime"] == pytest.approx(
            80, rel=0.02
        )
        first = [token for batch in trainer.batches for token in starts_of(batch)]
        assert sorted(first) == sorted([*range(40), *range(40)])


def starts_of(batch: dict[str, Any]) -> list[int]:
    """Return the first token of each document in a batch, which numbers it."""
    if "position_ids" not in batch:
        return batch["input_ids"][:, 0].tolist()  # type: ignore[no-any-return]
    ends = torch.cat([batch["labels"][:, 1:], torch.full((len(batch["labels"]), 1), -100)], 1)
    is_start = (batch["position_ids"] == 0) & (ends != -100)  # documents have at least 2 tokens, padding no labels
    return batch["input_ids"][is_start].tolist()  # type: ignore[no-any-return]


def test_batches_hold_at_most_so_many_tokens(tmp_path: Path) -> None:
    """Padding counts, and batches have as many rows as fit."""
    for given in ({}, {"padding_free": True}, PACKED):
        trainer = trained(tmp_path, tokens_per_batch=72, **given)
        sizes = [batch["input_ids"].numel() for batch in trainer.batches]
        assert max(sizes) <= 72
        assert sum(sizes) / len(sizes) > 50
    assert len({len(batch["input_ids"]) for batch in trained(tmp_path, tokens_per_batch=72).batches}) > 1


def test_a_batch_is_padded_to_a_multiple(tmp_path: Path) -> None:
    """In each kind of batch."""
    for given in (PACKED, {"padding_free": True}, {}):
        trainer = trained(tmp_path, pad_to_multiple_of=8, max_steps=3, **given)
        assert {batch["input_ids"].shape[1] % 8 for batch in trainer.batches} == {0}


def test_without_packing_samples_are_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At their end, with one message, for the user's own data_collator as well."""
    collator = DataCollatorForLanguageModeling(make_tokenizer(), mlm=False)
    for number, parts in enumerate(({}, {"data_collator": collator})):
        caplog.clear()
        trainer = trained(tmp_path / str(number), parts, max_length=5)
        assert max(batch["input_ids"].shape[1] for batch in trainer.batches) == 5
        assert sum("longer than max_length=5" in record.getMessage() for record in caplog.records) == 1


def test_packing_reports_what_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once in a run, with how many of those that were read; nothing is cut off by other strategies."""
    longer = sum(len(each["input_ids"]) > 5 for each in documents(40))
    trained(tmp_path, packing=True, max_length=5, num_train_epochs=2)
    messages = [record.getMessage() for record in caplog.records if "max_length" in record.getMessage()]
    assert messages == [
        f"{longer} of the first 40 documents that were read are longer than max_length=5, and what is beyond it is not "
        "used; set a larger max_length, or packing_strategy='bfd_split' with packing=True."
    ]
    caplog.clear()
    trained(tmp_path, packing=True, max_length=5, packing_strategy="bfd_split")
    assert not [record for record in caplog.records if "max_length" in record.getMessage()]


# Resume


def packed_job(folder: str, **given: Any) -> Any:
    options = {"packing": True, "max_length": 24, "num_train_epochs": 2, "save_steps": 100, **given}
    data = options.pop("data", documents(40))
    return made(Path(folder), {"train_dataset": data}, Trainer, **options)


RESUMED: dict[str, dict[str, Any]] = {
    "bfd": {},
    "bfd_split": {"packing_strategy": "bfd_split", "max_length": 7},
    "wrapped": {"packing_strategy": "wrapped", "max_length": 7},
    "tokens": {"tokens_per_batch": 60},
    "padded tokens": {"packing": False, "tokens_per_batch": 60, "train_sampling_strategy": "group_by_length"},
    "padding-free": {"packing": False, "padding_free": True},
    "accumulated": {"gradient_accumulation_steps": 3},
    "workers": {"dataloader_num_workers": 2},
    "steps": {"max_steps": 25},
    "a long document": {"packing_strategy": "wrapped", "max_length": 7, "data": documents(3, 300), "max_steps": 20},
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", RESUMED)
def test_a_run_resumes_at_every_position(tmp_path: Path, name: str) -> None:
    """Bit-identically: a run that is interrupted after every step, or every few, is the same as a whole one."""
    given = RESUMED[name]
    steps = packed_job(str(tmp_path / "whole"), **given).train().global_step
    every = 1 if name in ("bfd", "wrapped") else 5
    stops = [list(range(1, steps, every))] if "workers" not in name else [2, steps - 2]
    assert_resume_exact(lambda folder: packed_job(folder, **given), stops=stops, fresh_process=False)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [Stream, StatefulStream])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_resumes_at_every_position(kind: Any, workers: int) -> None:
    """With and without a state of its own, also over several passes."""
    given = {"max_steps": 24, "dataloader_num_workers": workers, "max_length": 30}
    stops = [list(range(1, 24, 2))] if not workers else [5, 15]
    assert_resume_exact(
        lambda folder: packed_job(folder, data=kind(documents(40)), **given), stops=stops, fresh_process=False
    )


@pytest.mark.matrix
def test_a_stream_of_several_windows_resumes() -> None:
    """In its second window."""
    data, given = documents(WINDOW + 50, 4), {"max_steps": 24, "max_length": 60, "per_device_train_batch_size": 20}
    for kind in (StatefulStream, list):
        job = lambda folder, kind=kind: packed_job(folder, data=kind(data), **given)  # noqa: E731
        assert_resume_exact(job, stops=[20, 23], fresh_process=False)


def test_steps_keep_their_rows_with_other_batches(tmp_path: Path) -> None:
    """A run that resumes with half the batch and twice the accumulation trains on the same rows."""
    options: dict[str, Any] = {**PACKED, "num_train_epochs": 2, "save_steps": 4, "save_strategy": "steps"}
    whole = trained(tmp_path / "whole", gradient_accumulation_steps=2, **options)
    trained(tmp_path, gradient_accumulation_steps=2, max_steps=4, **{**options, "num_train_epochs": 1})
    checkpoint = str(tmp_path / "checkpoint-4")
    found = trained(
        tmp_path, None, checkpoint, per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=8, **options
    )
    rows = [each for batch in whole.batches[8:16] for each in starts_of(batch)]
    assert [each for batch in found.batches for each in starts_of(batch)] == rows


def test_rows_that_are_planned_otherwise_are_not_resumed(tmp_path: Path) -> None:
    """Unless the difference is accepted: then the run continues at the same document, in other rows."""
    options: dict[str, Any] = {"packing": True, "max_steps": 4, "save_steps": 4, "save_strategy": "steps"}
    trained(tmp_path, max_length=24, **options)
    checkpoint = str(tmp_path / "checkpoint-4")
    for other in (
        {"max_length": 30},
        {"max_length": 24, "packing_strategy": "wrapped"},
        {"packing": False, "max_length": 24},
    ):
        given = {**options, **other, "max_steps": 8}
        with pytest.raises(CheckpointError, match="so that other documents share a batch"):
            trained(tmp_path / "other", None, checkpoint, **given)
        found = trained(tmp_path / "accepted", None, checkpoint, **given, resume_despite=["data_length"])
        assert found.state.global_step == 8


def test_left_out_steps_leave_out_their_documents(tmp_path: Path) -> None:
    """`on_nonfinite="skip"` returns to a kept place of packed rows, and goes around the documents of a bad step."""

    class Failing(Watching):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs, *given, **named)
            bad = 7 in starts_of(inputs)
            return loss * float("nan") if bad and self.model.training else loss

    trainer = made(tmp_path, kind=Failing, on_nonfinite="skip", packing=True, max_length=24, logging_steps=3)
    trainer.train()
    assert all(torch.isfinite(weight).all() for weight in weights(trainer).values())
    assert all("nan" not in str(entry.get("loss")) for entry in history(trainer))


# Evaluation


def test_evaluation_is_packed_like_training(tmp_path: Path) -> None:
    """Unless `eval_packing` says otherwise; the mean loss is that of each document."""
    data = documents(12, seed=1)
    parts = {"eval_dataset": data}
    cases: list[tuple[dict[str, Any], bool]] = [({}, True), ({"eval_packing": False}, False)]
    for given, packs in cases:
        trainer = made(tmp_path, parts, per_device_eval_batch_size=60, **PACKED, **given)
        found = trainer.evaluate()
        expected, _ = loss_of_each(trainer.model, data)
        assert found["eval_loss"] == pytest.approx(expected, abs=1e-6)
        ((_, batch),) = trainer.seen
        assert ("position_ids" in batch) == packs
    trainer = made(tmp_path, parts, eval_packing=True, max_length=24, per_device_eval_batch_size=60)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-6)
    assert "position_ids" in trainer.seen[0][1]


def test_streams_are_evaluated_in_rows(tmp_path: Path) -> None:
    """Each document once, in order."""
    trainer = made(tmp_path, {"eval_dataset": Stream(documents(12, seed=1))}, per_device_eval_batch_size=60, **PACKED)
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(loss_of_each(trainer.model, documents(12, seed=1))[0], abs=1e-6)


# Kinds of data


def tables() -> dict[str, Any]:
    rows = documents(40)
    plain = datasets.Dataset.from_list(
        [{**row, "text": "a", "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    )
    return {
        "a table": plain,
        "a formatted table": plain.with_format("torch"),
        "a table with lengths": plain.map(lambda row: {"length": len(row["input_ids"])}),
        "a stream of a table": plain.to_iterable_dataset(),
    }


@pytest.mark.parametrize("name", tables())
def test_kinds_of_data(tmp_path: Path, name: str) -> None:
    """They are packed like a list, also with columns that the model does not take."""
    data = tables()[name]
    plain = trained(
        tmp_path, {"train_dataset": Stream(documents(40)) if "stream" in name else documents(40)}, **PACKED, max_steps=6
    )
    found = trained(tmp_path, {"train_dataset": data}, **PACKED, max_steps=6)
    assert [starts_of(batch) for batch in found.batches] == [starts_of(batch) for batch in plain.batches]
    assert same_weights(weights(found), weights(plain))


def test_rows_that_were_packed_before(tmp_path: Path) -> None:
    """Columns of trl say where their documents are; with padding_free=True attention stays within them."""
    whole = documents(12)
    rows = [
        {
            "input_ids": [token for each in some for token in each["input_ids"]],
            "seq_lengths": [len(each["input_ids"]) for each in some],
        }
        for some in (whole[:5], whole[5:8], whole[8:])
    ]
    trainer = trained(tmp_path, {"train_dataset": rows}, padding_free=True, gradient_accumulation_steps=9)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss_of_each(llama(), whole)[0], abs=1e-6)
    problem = refusal(tmp_path, {"train_dataset": rows}, **PACKED)
    assert problem.startswith("The data are packed already: they have the column seq_lengths. Set packing=False")


@dataclass
class WithOwnLength(TrainingArguments):
    max_length: int = 4
    packing: bool = True


def test_fields_of_a_subclass_are_its_own(tmp_path: Path) -> None:
    """A class that declares such a field again, as trl's SFTConfig does, gives it to its own code."""
    arguments = WithOwnLength(str(tmp_path), use_cpu=True, report_to="none", max_steps=1, save_strategy="no")
    trainer = Watching(llama(), arguments, train_dataset=documents(1, 40), data_collator=flattening())
    trainer.train()
    assert trainer.batches[0]["input_ids"].shape[1] == len(documents(1, 40)[0]["input_ids"])


# What is refused


def model_of(kind: Any, config: Any, **given: Any) -> Any:
    return kind(config(vocab_size=WORDS, **given))


REFUSED_MODELS: dict[str, tuple[Any, str]] = {
    "bidirectional": (
        lambda: model_of(
            BertForMaskedLM, BertConfig, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        ),
        "BertForMaskedLM is not a causal language model",
    ),
    "recurrent": (
        lambda: model_of(MambaForCausalLM, MambaConfig, hidden_size=8, num_hidden_layers=1, state_size=4),
        "the forward of MambaForCausalLM takes no position_ids",
    ),
    "encoder and decoder": (
        lambda: model_of(T5ForConditionalGeneration, T5Config, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2),
        "T5ForConditionalGeneration has an encoder, which attends to all documents of a row",
    ),
    "without positions": (
        lambda: model_of(BloomForCausalLM, BloomConfig, hidden_size=8, n_layer=1, n_head=2),
        "the forward of BloomForCausalLM takes no position_ids",
    ),
    "of the user's": (net, "Net is not a causal language model"),
}


@pytest.mark.parametrize("name", REFUSED_MODELS)
@pytest.mark.parametrize("given", [PACKED, {"padding_free": True}], ids=["packing", "padding-free"])
def test_models_whose_documents_would_see_each_other(tmp_path: Path, name: str, given: dict[str, Any]) -> None:
    """They are refused before the first step, with the reason and a way out."""
    make, reason = REFUSED_MODELS[name]
    problem = refusal(tmp_path, {"model": make()}, **given)
    assert reason in problem
    assert "train it without, such as with train_sampling_strategy='group_by_length'" in problem


def test_a_flattening_collator_is_the_choice_of_the_user(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is used with any model; a warning says if its documents see each other."""
    make, reason = REFUSED_MODELS["bidirectional"]
    trained(tmp_path, {"model": make(), "data_collator": flattening()}, max_steps=1)
    assert any(reason in record.getMessage() for record in caplog.records)
    caplog.clear()
    trained(tmp_path, {"data_collator": flattening()}, max_steps=1)
    assert not any("DataCollatorWithFlattening" in record.getMessage() for record in caplog.records)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no length": ({}, {"packing": True}, "packing fills rows of max_length tokens; set max_length, such as to 2048"),
    "no length in evaluation": ({}, {"eval_packing": True}, "or set eval_packing=False"),
    "another strategy": ({}, {**PACKED, "packing_strategy": "ffd"}, "there is no such choice"),
    "rows beyond the budget": ({}, {**PACKED, "tokens_per_batch": 20}, "let tokens_per_batch be at least max_length"),
    "sorted rows": (
        {},
        {**PACKED, "train_sampling_strategy": "group_by_length"},
        "packed rows all have nearly the same",
    ),
    "two sizes": ({}, {"tokens_per_batch": 9, "train_sampling_strategy": "batch_rebalance"}, "decides itself how many"),
    "buckets": ({}, {**PACKED, "compile_buckets": 2}, "leave compile_buckets out, and set pad_to_multiple_of"),
    "transformers' numbers": ({}, {"padding_free": True, "reproduce": "transformers"}, "leave padding_free out"),
    "another collator": (
        {"data_collator": TO_SEQUENCES(None)},
        PACKED,
        "leave data_collator out, or pass transformers'",
    ),
    "a multiple of another collator": (
        {"data_collator": TO_SEQUENCES(None)},
        {"pad_to_multiple_of": 8},
        "set the multiple there, and leave pad_to_multiple_of out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    """One clear message each, before the first step."""
    parts, given, reason = REFUSED[name]
    assert reason in refusal(tmp_path, parts, **given)


def test_epochs_of_data_whose_lengths_are_not_known(tmp_path: Path) -> None:
    """Streams, and large data whose documents would have to be read, need max_steps; the message estimates it."""

    class Large(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 10**6

        def __getitem__(self, index: int) -> Any:
            return {"input_ids": [1] * (1 + index % 24)}

    assert "set max_steps." in refusal(tmp_path, {"train_dataset": Stream(documents(9))}, **PACKED)
    problem = refusal(tmp_path, {"train_dataset": Large()}, **PACKED)
    assert "set max_steps (about 259094, by the first 8192 documents)" in problem
    assert "or add a column 'length' with the length of each document" in problem
    assert trained(tmp_path, {"train_dataset": Large()}, **PACKED, max_steps=2).state.global_step == 2


def test_a_sampler_of_the_user_is_refused(tmp_path: Path) -> None:
    """Packing decides itself which documents a batch has."""

    class Sampling(Watching):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    with pytest.raises(ConfigurationError, match="packing and tokens_per_batch decide which documents a batch has"):
        made(tmp_path, kind=Sampling, **PACKED).train()
    trainer = made(tmp_path, kind=Sampling, padding_free=True, max_steps=1)
    trainer.train()
    assert starts_of(trainer.batches[0]) == [0, 1]


def test_the_strategy_without_packing_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which is logged."""
    with caplog.at_level(logging.INFO, "hexloop"):
        trained(tmp_path, packing_strategy="wrapped", max_length=24, max_steps=1)
    assert any(
        "packing_strategy='wrapped', which has no effect here" in record.getMessage() for record in caplog.records
    )
