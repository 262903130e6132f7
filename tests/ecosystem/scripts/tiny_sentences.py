"""Tiny encoders and synthetic sentences for sentence-transformers, setfit and gliner, made on the spot from seeds."""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

TOPICS = {
    "animal": ["cat", "dog", "horse", "bird", "sheep", "wolf"],
    "food": ["bread", "soup", "apple", "rice", "cheese", "cake"],
    "weather": ["rain", "snow", "wind", "storm", "cloud", "frost"],
}
OTHERS = ["the", "a", "small", "large", "old", "new", "is", "was", "here", "there", "very", "quite", "search:", "text:"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [*SPECIAL, *OTHERS, *(word for words in TOPICS.values() for word in words)]
SETTINGS = {
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 4,
    "max_steps": 12,
    "learning_rate": 1e-3,
    "logging_steps": 4,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 4,
    "report_to": "none",
    "use_cpu": True,
}
"""Arguments of the trainers of sentence-transformers."""


def parser(variant: str) -> argparse.ArgumentParser:
    """Return the parser of the options of a script: the output folder, and the variant, with its default."""
    made = argparse.ArgumentParser()
    made.add_argument("--variant", default=variant)
    made.add_argument("--output_dir", required=True)
    return made


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words."""
    numbers = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    words.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=32,
    )


def configuration(**values: object) -> BertConfig:
    """Return the configuration of a BERT with two layers of width 32, with dropout."""
    return BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        **values,
    )


def saved_bert(seed: int = 0, masked_words: bool = False) -> str:
    """Write a BERT with random weights, and its tokenizer, to a temporary folder; return the folder."""
    torch.manual_seed(seed)
    model = (BertForMaskedLM if masked_words else BertModel)(configuration())
    folder = Path(tempfile.mkdtemp()) / "tiny-bert"
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def sentence(topic: str, draw: random.Random) -> str:
    """Return a short sentence about a topic."""
    words = draw.choices(OTHERS[:12], k=draw.randint(2, 5))
    words.insert(draw.randint(0, len(words)), draw.choice(TOPICS[topic]))
    return " ".join(words)


def pairs(count: int, seed: int = 0) -> Dataset:
    """Return pairs of sentences about the same topic."""
    draw = random.Random(seed)
    topics = [draw.choice(list(TOPICS)) for _ in range(count)]
    columns = {name: [sentence(topic, draw) for topic in topics] for name in ("anchor", "positive")}
    return Dataset.from_dict(columns)


def triplets(count: int, seed: int = 0) -> Dataset:
    """Return triplets of sentences: two about the same topic, and one about another."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        one, other = draw.sample(list(TOPICS), 2)
        texts = sentence(one, draw), sentence(one, draw), sentence(other, draw)
        rows.append(dict(zip(("anchor", "positive", "negative"), texts, strict=True)))
    return Dataset.from_list(rows)


def scored_pairs(count: int, seed: int = 0) -> Dataset:
    """Return pairs of sentences with a score: 1 about the same topic, else 0."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        one, other = (draw.choice(list(TOPICS)) for _ in range(2))
        rows.append(
            {"sentence1": sentence(one, draw), "sentence2": sentence(other, draw), "score": float(one == other)}
        )
    return Dataset.from_list(rows)


def labelled(count: int, seed: int = 0, column: str = "sentence") -> Dataset:
    """Return sentences with the number of their topic as the label."""
    draw = random.Random(seed)
    topics = [number % len(TOPICS) for number in range(count)]
    texts = [sentence(list(TOPICS)[topic], draw) for topic in topics]
    return Dataset.from_dict({column: texts, "label": topics})
