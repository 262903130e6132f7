"""Tiny models of every kind, without dropout, each with its data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from attrs import frozen
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.end_to_end.parity.data import Samples
from tests.end_to_end.sequences.models import t5
from tests.end_to_end.small.encoders import LAYER, bert_config

ROWS, LENGTH, VOCABULARY, CLASSES = 24, 6, 20, 3


def _source() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def tokens(count: int = ROWS) -> Tensor:
    return torch.randint(3, VOCABULARY, (count, LENGTH), generator=_source())


def _bert(name: str, **further: Any) -> Any:
    torch.manual_seed(0)
    config: Any = bert_config(VOCABULARY, LENGTH, **further)
    return getattr(transformers, name)(config)


def _llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=LENGTH,
            pad_token_id=0,
        )
    )


def _vit() -> Any:
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=8,
            patch_size=4,
            num_channels=1,
            num_labels=CLASSES,  # type: ignore[call-arg]  # taken, and not declared
            **LAYER,
        )
    )


def _classes() -> Tensor:
    return torch.randint(0, CLASSES, (ROWS,), generator=_source())


def _masked(labels: Tensor) -> Tensor:
    """Keep every third label."""
    return torch.where(torch.arange(labels.numel()).view(labels.shape) % 3 == 0, labels, -100)


def _frozen_bert() -> Any:
    model = _bert("BertForSequenceClassification", num_labels=CLASSES)
    model.bert.embeddings.requires_grad_(False)
    return model


class SeveralLosses(nn.Module):
    """A classifier whose output contains a second loss, which is part of the first, before its logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(LENGTH, CLASSES)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.inner(x)
        if labels is None:
            return {"logits": logits}
        size = logits.square().mean()
        return {"loss": cross_entropy(logits, labels) + 0.1 * size, "size_loss": size, "logits": logits}


class TupleOfLosses(SeveralLosses):
    """The same as a tuple, the loss first."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        outputs = super().forward(x, labels)
        return tuple(outputs.values())


@frozen
class Kind:
    """Creates a model and its samples."""

    model: Callable[[], Any]
    samples: Callable[[], Samples]


def _floats() -> Tensor:
    return torch.randn(ROWS, LENGTH, generator=_source())


KINDS = {
    "classification": Kind(
        lambda: _bert("BertForSequenceClassification", num_labels=CLASSES),
        lambda: Samples(input_ids=tokens(), labels=_classes()),
    ),
    "regression": Kind(
        lambda: _bert("BertForSequenceClassification", num_labels=1),
        lambda: Samples(input_ids=tokens(), labels=_floats()[:, 0]),
    ),
    "several labels at once": Kind(
        lambda: _bert("BertForSequenceClassification", num_labels=LENGTH, problem_type="multi_label_classification"),
        lambda: Samples(input_ids=tokens(), labels=(_floats() > 0).float()),
    ),
    "token classification": Kind(
        lambda: _bert("BertForTokenClassification", num_labels=CLASSES),
        lambda: Samples(input_ids=tokens(), labels=_masked(tokens() % CLASSES)),
    ),
    "question answering": Kind(
        lambda: _bert("BertForQuestionAnswering"),
        lambda: Samples(input_ids=tokens(), start_positions=tokens()[:, 0] % 3, end_positions=tokens()[:, 1] % 3 + 3),
    ),
    "masked language model": Kind(
        lambda: _bert("BertForMaskedLM"), lambda: Samples(input_ids=tokens(), labels=_masked(tokens()))
    ),
    "causal language model": Kind(_llama, lambda: Samples(input_ids=tokens(), labels=tokens())),
    "sequence to sequence": Kind(t5, lambda: Samples(input_ids=tokens() % 10 + 3, labels=tokens().flip(1) % 10 + 3)),
    "image classification": Kind(
        _vit,
        lambda: Samples(pixel_values=torch.randn(ROWS, 1, 8, 8, generator=_source()), labels=_classes()),
    ),
    "frozen parameters": Kind(_frozen_bert, lambda: Samples(input_ids=tokens(), labels=_classes())),
    "several losses": Kind(SeveralLosses, lambda: Samples(x=_floats(), labels=_classes())),
    "a tuple of losses": Kind(TupleOfLosses, lambda: Samples(x=_floats(), labels=_classes())),
}
