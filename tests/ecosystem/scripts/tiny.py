"""Tiny tokenizers, models and data sets, made from seeds without the network.

Scripts import the functions. As a program, it writes folders and files for scripts that read them:

    python tiny.py FOLDER NAME ...

where NAME is a kind of model (see MODELS), written as FOLDER/NAME with its tokenizer, or a kind
of data (see DATA), written as FOLDER/NAME-train.json, -validation.json and -test.json, one JSON object a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

NAMES = ["anna", "ben", "carla", "david", "emma", "felix", "greta", "hugo", "ida", "jonas"]
PLACES = ["aachen", "berlin", "cologne", "dresden", "erfurt", "frankfurt", "goslar", "hamburg"]
GOOD = ["good", "great", "fine", "lovely", "bright", "happy"]
BAD = ["bad", "poor", "awful", "dull", "sad", "broken"]
THINGS = ["film", "book", "song", "house", "garden", "river", "train", "picture"]
VERBS = ["likes", "sees", "finds", "paints", "leaves", "visits"]
FILLERS = [
    "the",
    "a",
    "in",
    "and",
    "very",
    "is",
    "was",
    "not",
    "today",
    "here",
    "who",
    "where",
    "what",
    "question",
    "context",
    "answer",
    "summary",
    ":",
    ".",
    "?",
]
WORDS = [*NAMES, *PLACES, *GOOD, *BAD, *THINGS, *VERBS, *FILLERS]
SPECIAL = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "bos": "<s>",
    "eos": "</s>",
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ bos_token }}{{ message['role'] }} : {{ message['content'] }} {{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant :{% endif %}"
)


def tokenizer(style: str = "bert", extra_words: tuple[str, ...] = (), length: int = 128) -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words.

    style: "bert" frames texts with [CLS] and [SEP]; "causal" adds nothing, "seq2seq" adds </s> at the end.
    """
    words = dict.fromkeys([*SPECIAL.values(), *WORDS, "user", "assistant", "system", *extra_words])
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=SPECIAL["unk"]))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = {name: made.token_to_id(token) for name, token in SPECIAL.items()}
    if style == "bert":
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", ids["cls"]), ("[SEP]", ids["sep"])],
        )
    elif style == "seq2seq":
        made.post_processor = processors.TemplateProcessing(
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", ids["eos"])]
        )
    names = ("pad", "unk", "cls", "sep", "mask") if style == "bert" else ("pad", "unk", "bos", "eos", "mask")
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length,
        model_input_names=["input_ids", *(["token_type_ids"] if style == "bert" else []), "attention_mask"],
        **{f"{name}_token": SPECIAL[name] for name in names},
        **({"chat_template": CHAT_TEMPLATE} if style == "causal" else {}),
    )


def seeded(make, *values, seed: int = 0, **named):
    """Return what `make` makes with torch's random numbers of a seed, without a change of the stream of the script."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*values, **named)


def bert_config(tokenizer, **changes):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return BertConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        **{**sizes, "max_position_embeddings": 128, **changes},
    )


def gpt2_config(tokenizer, **changes):
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128}
    return GPT2Config(vocab_size=len(tokenizer), **_ids(tokenizer), **{**sizes, **changes})


def llama_config(tokenizer, **changes):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    return LlamaConfig(
        vocab_size=len(tokenizer), **_ids(tokenizer), **{**sizes, "max_position_embeddings": 256, **changes}
    )


def t5_config(tokenizer, **changes):
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    return T5Config(
        vocab_size=len(tokenizer), decoder_start_token_id=tokenizer.pad_token_id, **ids, **{**sizes, **changes}
    )


def bart_config(tokenizer, **changes):
    sizes = {"d_model": 32, "max_position_embeddings": 128}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 2, f"{side}_ffn_dim": 64}
    return BartConfig(
        vocab_size=len(tokenizer),
        decoder_start_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=tokenizer.eos_token_id,
        **_ids(tokenizer),
        **{**sizes, **changes},
    )


def _ids(tokenizer):
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")}


MODELS = {
    "bert": ("bert", bert_config, BertModel),
    "gpt2": ("causal", gpt2_config, GPT2LMHeadModel),
    "llama": ("causal", llama_config, LlamaForCausalLM),
    "t5": ("seq2seq", t5_config, T5ForConditionalGeneration),
    "bart": ("seq2seq", bart_config, BartForConditionalGeneration),
}


def write_model(kind: str, folder: str | Path, seed: int = 0, **changes) -> str:
    """Write a model with random weights and its tokenizer to a folder, and return the folder."""
    style, configure, model = MODELS[kind]
    words = tokenizer(style)
    seeded(model, configure(words, **changes), seed=seed).save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def sentence(random: Random, feeling: list[str] | None = None) -> str:
    """Return a sentence, such as "anna likes the good film in berlin"."""
    feeling = feeling or random.choice((GOOD, BAD))
    words = [random.choice(NAMES), random.choice(VERBS), "the", random.choice(feeling), random.choice(THINGS)]
    words += ["in", random.choice(PLACES)] if random.random() < 0.5 else []
    words += ["and", random.choice(NAMES), "is", "very", random.choice(feeling)] if random.random() < 0.5 else []
    return " ".join(words)


def classification(random: Random) -> dict:
    label = random.randrange(2)
    return {"sentence": sentence(random, (BAD, GOOD)[label]), "label": ("bad", "good")[label]}


def pairs(random: Random) -> dict:
    first, second = random.randrange(2), random.randrange(2)
    feelings = (BAD, GOOD)
    return {
        "sentence1": sentence(random, feelings[first]),
        "sentence2": sentence(random, feelings[second]),
        "label": int(first == second),
    }


def tags(random: Random) -> dict:
    words = sentence(random).split()
    kinds = ["B-PER" if word in NAMES else "B-LOC" if word in PLACES else "O" for word in words]
    return {"tokens": words, "ner_tags": kinds}


def text(random: Random) -> dict:
    return {"text": " . ".join(sentence(random) for _ in range(random.randint(1, 4)))}


def questions(random: Random) -> dict:
    name, place, other = random.choice(NAMES), random.choice(PLACES), sentence(random)
    context = random.choice((f"{other} . {name} is in {place}", f"{name} is in {place} . {other}"))
    start = context.index(f"{name} is in {place}") + len(f"{name} is in ")
    return {
        "id": f"{random.getrandbits(48):012x}",
        "question": f"where is {name} ?",
        "context": context,
        "answers": {"text": [place], "answer_start": [start]},
    }


def summaries(random: Random) -> dict:
    sentences = [sentence(random) for _ in range(random.randint(2, 3))]
    return {"text": " . ".join(sentences), "summary": sentences[0]}


def translations(random: Random) -> dict:
    source = sentence(random)
    return {"translation": {"en": source, "xx": " ".join(reversed(source.split()))}}


def choices(random: Random) -> dict:
    label, feelings = random.randrange(4), (GOOD, BAD)
    side = random.randrange(2)
    start = f"the {random.choice(THINGS)} is {random.choice(feelings[side])} and"
    endings = [
        f"{random.choice(NAMES)} is {random.choice(feelings[side if i == label else 1 - side])}" for i in range(4)
    ]
    return {"sent1": start, "sent2": "today", **{f"ending{i}": end for i, end in enumerate(endings)}, "label": label}


DATA = {
    "classification": classification,
    "pairs": pairs,
    "tags": tags,
    "text": text,
    "questions": questions,
    "summaries": summaries,
    "translations": translations,
    "choices": choices,
}
SIZES = {"train": 96, "validation": 24, "test": 16}


def rows(kind: str, split: str = "train", count: int | None = None) -> list[dict]:
    """Return the rows of a split, always the same ones."""
    random = Random(f"{kind} {split}")
    return [DATA[kind](random) for _ in range(count or SIZES[split])]


def write_data(kind: str, folder: str | Path) -> None:
    """Write the splits of a kind of data to files in a folder."""
    for split in SIZES:
        lines = [json.dumps(row) for row in rows(kind, split)]
        Path(folder, f"{kind}-{split}.json").write_text("\n".join(lines) + "\n")


def main(folder: str, *names: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in MODELS:
            write_model(name, Path(folder, name))
        else:
            write_data(name, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
