"""A tokenizer that is trained in the test, a tiny Llama, and a few samples of each form."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, USER, ASSISTANT, SYSTEM = "<pad>", "<end>", "<user>", "<assistant>", "<system>"

TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
"""A chat template that marks what the assistant says, with its end token."""

PLAIN = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
"""The same without the marks."""

TEXTS = [
    "A list is a mutable sequence of objects.",
    "A tuple is an immutable sequence of objects.",
    "A set has no order and no repeated objects.",
    "A generator yields its values one by one.",
    "An iterator returns the next value when it is asked.",
    "A decorator returns another function.",
]


@cache
def _trained() -> str:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = [PAD, END, USER, ASSISTANT, SYSTEM]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=340, special_tokens=special, initial_alphabet=alphabet)
    )
    return str(made.to_str())


def tokenizer(template: str | None = TEMPLATE, **options: Any) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of 340 words."""
    backend = Tokenizer.from_str(_trained())
    made = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # its constructor is untyped
        tokenizer_object=backend, pad_token=PAD, eos_token=END, **options
    )
    made.chat_template = template
    return made


def llama(words: int = 340, **options: Any) -> LlamaForCausalLM:
    """Return a Llama of two layers, with the same weights every time."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    return LlamaForCausalLM(LlamaConfig(vocab_size=words, pad_token_id=0, eos_token_id=1, **{**sizes, **options}))


def texts(count: int = 6) -> list[dict[str, Any]]:
    """Return samples with a text."""
    return [{"text": TEXTS[number % len(TEXTS)]} for number in range(count)]


def prompts(count: int = 6) -> list[dict[str, Any]]:
    """Return samples with a prompt and a completion."""
    words = [TEXTS[number % len(TEXTS)].split(" ", 2) for number in range(count)]
    return [{"prompt": f"{a} {b}", "completion": f" {rest}"} for a, b, rest in words]


def conversations(count: int = 6) -> list[dict[str, Any]]:
    """Return samples with messages."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {text.split(' ')[1]}?"},
                {"role": "assistant", "content": text},
            ]
        }
        for text in (TEXTS[number % len(TEXTS)] for number in range(count))
    ]


def answers(count: int = 6) -> list[dict[str, Any]]:
    """Return samples whose prompt and completion are messages."""
    return [{"prompt": each["messages"][:1], "completion": each["messages"][1:]} for each in conversations(count)]
