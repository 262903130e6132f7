"""Documents of different lengths, causal language models of transformers that are small, and their losses by hand."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

WORDS = 60

SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}


def documents(count: int, longest: int = 24, seed: int = 0, masked: bool = False) -> list[dict[str, list[int]]]:
    """Return documents of 2 to `longest` tokens, the first of which numbers them; `masked` ones have a completion."""
    source, made = random.Random(seed), list[dict[str, list[int]]]()
    for number in range(count):
        tokens = [number % WORDS, *(source.randrange(1, WORDS) for _ in range(source.randint(1, longest - 1)))]
        document = {"input_ids": tokens}
        if masked:
            document["completion_mask"] = [int(at > len(tokens) // 3) for at in range(len(tokens))]
        made.append(document)
    return made


def llama(attention: str = "sdpa", seed: int = 0) -> Any:
    """Return a Llama with the same weights every time."""
    return _made(LlamaForCausalLM, LlamaConfig(**SMALL), attention, seed)


def gpt2(attention: str = "sdpa") -> Any:
    """Return a GPT-2 without dropout, whose positions are learned."""
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _made(GPT2LMHeadModel, config, attention)


def mistral(attention: str = "sdpa") -> Any:
    """Return a Mistral whose attention looks 5 tokens back."""
    return _made(MistralForCausalLM, MistralConfig(**SMALL, sliding_window=5), attention)


MODELS = {"llama": llama, "gpt2": gpt2, "mistral": mistral}


def _made(kind: Any, config: Any, attention: str, seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind._from_config(config, attn_implementation=attention)


def loss_of_each(model: Any, found: Sequence[dict[str, list[int]]]) -> tuple[float, int]:
    """Return the mean loss over all predicted tokens of documents, each computed alone, and how many there are."""
    total, count = 0.0, 0
    model.config.use_cache = False
    with torch.no_grad():
        for document in found:
            tokens = torch.tensor(document["input_ids"])
            labels = tokens.clone()
            if "completion_mask" in document:
                labels[torch.tensor(document["completion_mask"]) == 0] = -100
            logits = model(input_ids=tokens[None]).logits[0].double()
            kept = labels[1:] != -100
            if kept.any():
                total += float(cross_entropy(logits[:-1][kept], labels[1:][kept], reduction="sum"))
            count += int(kept.sum())
    return total / count, count


class Stream(IterableDataset[Any]):
    """The documents, one after another."""

    def __init__(self, found: Sequence[Any]) -> None:
        self.found = found

    def __iter__(self) -> Iterator[Any]:
        yield from self.found


class StatefulStream(Stream):
    """The same, with a state."""

    def __init__(self, found: Sequence[Any]) -> None:
        super().__init__(found)
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        while self.read < len(self.found):
            self.read += 1
            yield self.found[self.read - 1]
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]
