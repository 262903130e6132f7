"""Words, sentences and a tokenizer that need no network."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

GOOD = ("bright", "warm", "lively", "clever")
BAD = ("dull", "cold", "lifeless", "clumsy")
OTHER = (
    "the",
    "film",
    "a",
    "story",
    "of",
    "its",
    "actors",
    "scene",
    "is",
    "and",
    "Ada",
    "Oslo",
    "meets",
    "leaves",
    "in",
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = (*SPECIAL, *GOOD, *BAD, *OTHER)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per word, which puts a text between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=32,
    )


def sentences(count: int, seed: int, of: Sequence[str] = VOCABULARY[len(SPECIAL) :]) -> list[list[str]]:
    """Return sentences of 4 to 10 words."""
    source = random.Random(seed)
    return [source.choices(of, k=source.randint(4, 10)) for _ in range(count)]


def reviews(count: int, seed: int) -> dict[str, list[object]]:
    """Return sentences labeled by whether they have more good words than bad ones, with an unused number."""
    texts = sentences(count, seed, (*GOOD, *BAD, *OTHER[:6]))
    liked = [sum(word in GOOD for word in text) > sum(word in BAD for word in text) for text in texts]
    return {
        "sentence": [" ".join(text) for text in texts],
        "label": [int(each) for each in liked],
        "idx": list(range(count)),
    }
