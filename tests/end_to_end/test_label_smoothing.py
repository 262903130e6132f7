"""label_smoothing_factor gives transformers' losses for every kind of model that it supports."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import hexloop
from hexloop.adapters.trainable.torch.forward import is_causal_language_model
from tests.end_to_end.small.trainers import DEFAULTS, same_weights, small_trainer, weights

SMALL: dict[str, Any] = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
ENCODER: dict[str, Any] = {
    **SMALL,
    "intermediate_size": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def decoder() -> Any:
    sizes: dict[str, Any] = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def classifier(**given: Any) -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**{"num_labels": 3, **ENCODER, **given}))


def tagger() -> Any:
    return transformers.BertForTokenClassification(transformers.BertConfig(**{"num_labels": 3, **ENCODER}))


def reader() -> Any:
    return transformers.BertForQuestionAnswering(transformers.BertConfig(**ENCODER))


def translator() -> Any:
    sizes: dict[str, Any] = {"vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**{**sizes, "dropout_rate": 0.0, "decoder_start_token_id": 0})
    return transformers.T5ForConditionalGeneration(config)


def samples(kind: Any) -> list[dict[str, Any]]:
    source = torch.Generator().manual_seed(4)
    tokens = torch.randint(1, 11, (8, 6), generator=source)
    padded = torch.where(torch.rand(8, 6, generator=source) < 0.3, -100, tokens)
    labels: dict[Any, Any] = {
        decoder: [{"labels": each} for each in padded],
        classifier: [{"labels": int(each[0]) % 3} for each in tokens],
        tagger: [{"labels": torch.where(each > 0, each % 3, each)} for each in padded],
        reader: [{"start_positions": int(each[0]) % 6, "end_positions": int(each[1]) % 6} for each in tokens],
        translator: [{"labels": one, "decoder_input_ids": other} for one, other in zip(padded, tokens, strict=True)],
    }
    return [{"input_ids": row, **label} for row, label in zip(tokens, labels[kind], strict=True)]


def losses(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def both(
    folder: Path,
    make: Any,
    data: list[dict[str, Any]],
    kinds: tuple[Any, Any] = (hexloop.Trainer, transformers.Trainer),
    **given: Any,
) -> tuple[Any, Any]:
    """Return Trainers of both libraries with the same model and data in the same order."""
    common = {"label_smoothing_factor": 0.1, "train_sampling_strategy": "sequential", **given}
    args = transformers.TrainingArguments(str(folder), **{**DEFAULTS, **common})
    torch.manual_seed(2)
    theirs = kinds[1](model=make(), args=args, train_dataset=data)
    torch.manual_seed(2)
    parts = {"model": make(), "train_dataset": data}
    return small_trainer(folder, kinds[0], parts, loss_weighting="reference", **common), theirs


@pytest.mark.one_in(4)
@pytest.mark.parametrize("make", [decoder, classifier, tagger, translator])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_losses_match_transformers(tmp_path: Path, make: Any, accumulation: int) -> None:
    """With labels of -100, shifted only for decoders."""
    ours, theirs = both(
        tmp_path, make, samples(make), gradient_accumulation_steps=accumulation, per_device_train_batch_size=2
    )

    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)


def test_several_label_names_are_not_smoothed(tmp_path: Path) -> None:
    """As in transformers, but with a warning."""
    ours, theirs = both(tmp_path, reader, samples(reader))
    with pytest.warns(UserWarning, match="start_positions, end_positions belong to no single distribution"):
        told = losses(ours)

    assert told == pytest.approx(losses(theirs), rel=1e-5)


def test_multi_label_rows_are_not_smoothed(tmp_path: Path) -> None:
    """Multi-label classification, with one warning when the trainer is made, as in transformers."""

    def make() -> Any:
        return classifier(problem_type="multi_label_classification")

    data = [{**row, "labels": torch.tensor([1.0, 0.0, 1.0])} for row in samples(classifier)]
    with pytest.warns(UserWarning, match="not compatible with multi-label") as warned:
        ours, theirs = both(tmp_path, make, data)
    assert len(warned) == 2
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="label_smoothing_factor")
        told = losses(ours)

    assert told == pytest.approx(losses(theirs), rel=1e-5)


def test_every_decoder_of_transformers_is_recognized() -> None:
    """Every class in its table of causal language models."""
    listed = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    names = {name for each in listed for name in ([each] if isinstance(each, str) else each)}

    unknown = {name for name in names if not is_causal_language_model(type(name, (), {})())}
    assert unknown == set()


def test_smoothing_changes_the_weights(tmp_path: Path) -> None:
    """The weights differ from those without smoothing."""
    smoothed, _ = both(tmp_path, classifier, samples(classifier))
    sharp, _ = both(tmp_path, classifier, samples(classifier), label_smoothing_factor=0.0)
    losses(smoothed)
    losses(sharp)

    assert not same_weights(weights(smoothed), weights(sharp))


class BySmoother:
    """Smooths labels itself, as overrides written for transformers do."""

    label_smoother: Any

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels") if self.label_smoother is not None else None
        outputs = model(**inputs)
        shifts = isinstance(outputs, CausalLMOutputWithCrossAttentions)
        loss = outputs["loss"] if labels is None else self.label_smoother(outputs, labels, shift_labels=shifts)
        return (loss, outputs) if return_outputs else loss


class Ours(BySmoother, hexloop.Trainer):
    """hexloop's Trainer."""


class Theirs(BySmoother, transformers.Trainer):
    """transformers' Trainer."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", [decoder, classifier, tagger])
@pytest.mark.parametrize("factor", [0.0, 0.2])
def test_an_override_may_call_the_smoother(tmp_path: Path, make: Any, factor: float) -> None:
    """It gives transformers' losses, and is None in both libraries without smoothing."""
    data = samples(make)
    ours, theirs = both(tmp_path, make, data, label_smoothing_factor=factor, kinds=(Ours, Theirs))

    assert (ours.label_smoother is None) == (theirs.label_smoother is None) == (factor == 0.0)
    assert losses(ours) == pytest.approx(losses(theirs), rel=1e-5)


def test_there_is_no_smoother_for_multi_label_rows(tmp_path: Path) -> None:
    """An override finds None there, as in transformers."""
    parts = {"model": classifier(problem_type="multi_label_classification")}

    with pytest.warns(UserWarning, match="not compatible with multi-label"):
        trainer = small_trainer(tmp_path, parts=parts, label_smoothing_factor=0.1)

    assert trainer.label_smoother is None


def test_a_smoother_that_is_assigned_is_used(tmp_path: Path) -> None:
    """In both libraries; None turns smoothing off."""
    ours, theirs = both(tmp_path, classifier, samples(classifier))
    for trainer in (ours, theirs):
        trainer.label_smoother = lambda outputs, labels, **given: 0.0 * outputs["logits"].sum() + 2.0
    sharp, _ = both(tmp_path, classifier, samples(classifier))
    sharp.label_smoother = None
    plain, _ = both(tmp_path, classifier, samples(classifier), label_smoothing_factor=0.0)

    assert losses(ours) == losses(theirs) == [2.0, 2.0]
    assert losses(sharp) == losses(plain)
