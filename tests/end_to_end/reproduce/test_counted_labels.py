"""With `reproduce`, the labels of a step are counted as by the installed transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hexloop.adapters.trainable.torch import forward
from hexloop.adapters.trainable.torch.reproduction import WindowItems


@pytest.mark.parametrize(("release", "counted"), [("5.6.0", 12), ("5.9.0", 12), ("5.10.1", 10), ("5.24.0", 10)])
def test_the_first_label_of_a_row_is_counted_before_5_10(
    release: str, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "version", lambda package: release)
    config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    model = LlamaForCausalLM(config)
    items = WindowItems(counts=True, shifted=forward.counts_shifted_labels(model))
    assert items([{"labels": torch.ones(2, 6)}]) == counted
