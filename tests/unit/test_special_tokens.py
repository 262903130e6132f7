"""A model's configuration gets the special tokens of the tokenizer that it is trained with."""

from __future__ import annotations

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.trainer_utils import align_special_tokens as reference

from hexloop.adapters.trainable.torch.forward import align_special_tokens

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "same": ({"eos_token_id": 3}, {"eos_token_id": 3}, {"eos_token_id": 3}),
    "new padding": ({"pad_token_id": None}, {"pad_token_id": None}, {"pad_token_id": 5}),
    "only the configuration knows": ({"eos_token_id": 3}, {"eos_token_id": 4}, {"eos_token_id": 3}),
    "several ends in generation": ({"eos_token_id": 3}, {"eos_token_id": [3, 4]}, {"eos_token_id": 5}),
    "several ends in both": ({"eos_token_id": [3, 4]}, {"eos_token_id": [3, 4]}, {"eos_token_id": 5}),
    "no end yet": ({"eos_token_id": None}, {"eos_token_id": None}, {"eos_token_id": 5, "bos_token_id": 6}),
}


@pytest.mark.parametrize(("config", "generation", "tokens"), CASES.values(), ids=CASES)
def test_special_tokens_match_transformers(
    config: dict[str, Any], generation: dict[str, Any], tokens: dict[str, Any]
) -> None:
    """Both libraries leave the same configuration, whichever of the two configurations has a token."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    for holder, values in ((model.config, config), (model.generation_config, generation)):
        for name, value in values.items():
            setattr(holder, name, value)
    other = copy.deepcopy(model)
    tokenizer = SimpleNamespace(**{"eos_token_id": None, "bos_token_id": None, "pad_token_id": None, **tokens})
    align_special_tokens(model, tokenizer)
    reference(other, tokenizer)  # type: ignore[no-untyped-call]
    assert model.config.to_dict() == other.config.to_dict()
    assert model.generation_config.to_dict() == other.generation_config.to_dict()


def test_changed_tokens_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Changes are reported once, and not if the model has the tokens already."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=4, n_embd=4, n_layer=1, n_head=1))
    tokenizer = SimpleNamespace(eos_token_id=None, bos_token_id=None, pad_token_id=5)
    with caplog.at_level(logging.WARNING, "hexloop"):
        for _again in range(2):
            align_special_tokens(model, SimpleNamespace(tokenizer=tokenizer))
    assert [record.getMessage().endswith("{'pad_token_id': 5}.") for record in caplog.records] == [True]


def test_other_models_and_processors_are_unchanged() -> None:
    """Neither a module without a configuration nor an image processor has special tokens."""
    align_special_tokens(object(), SimpleNamespace(eos_token_id=1))
    align_special_tokens(SimpleNamespace(config=SimpleNamespace()), SimpleNamespace(eos_token_id=1))
    align_special_tokens(SimpleNamespace(config=SimpleNamespace()), None)
