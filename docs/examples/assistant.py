"""An assistant that is asked what a function does: a small decoder, trained on English, then on conversations.

All text comes with Python: the topics of its interactive help, and the docstrings of its standard library.
"""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import hexloop

PAD, END, USER, ASSISTANT = "<pad>", "<end>", "<user>", "<assistant>"

TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""The chat template. What is between the marks of `generation` is what the assistant says."""

LEFT_OUT = frozenset({"test", "tests", "site-packages", "idlelib", "lib2to3", "turtledemo", "ensurepip", "pydoc_data"})
"""Folders of the standard library without documentation of interest, or that not every Python has."""

LONGEST_ANSWER = 160
"""Characters; functions whose first sentence is longer are not asked about."""

HELD_OUT_EVERY = 20
"""One answer in this many is held out."""


@frozen
class Documented:
    """A function or class of the standard library: its full name, and its docstring."""

    name: str
    text: str


@cache
def documented() -> tuple[Documented, ...]:
    """Return what has a docstring, in the order of the source files' names."""
    library = Path(sysconfig.get_path("stdlib"))
    found: list[Documented] = []
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if LEFT_OUT.isdisjoint(parts) and not parts[0].startswith(("_", "config-", "plat-")):
            module = ".".join(part for part in parts if part != "__init__")
            try:
                found += _within(ast.parse(path.read_bytes()), module)
            except SyntaxError:
                continue
    return tuple(found)


def _within(owner: ast.AST, name: str) -> Iterator[Documented]:
    """Return what has a docstring within a module or class, private names left out."""
    for node in ast.iter_child_nodes(owner):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if text := ast.get_docstring(node):
                yield Documented(f"{name}.{node.name}", text)
            if isinstance(node, ast.ClassDef):
                yield from _within(node, f"{name}.{node.name}")


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring in one line."""
    paragraph = " ".join(re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`'\"])", paragraph, maxsplit=1)[0]


@cache
def _pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return names with what they do, in training and held out; each answer once, and in one part only."""
    by_answer: dict[str, str] = {}
    for each in documented():
        answer = first_sentence(each.text)
        if 15 <= len(answer) <= LONGEST_ANSWER and answer.endswith(".") and answer.isascii():
            by_answer.setdefault(answer, each.name)
    pairs = [(name, answer) for answer, name in by_answer.items()]
    held_out = pairs[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [pair for number, pair in enumerate(pairs) if number % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    return training, held_out


def question(name: str) -> str:
    """Return the question about a function or class."""
    return f"What does {name} do?"


def conversations(held_out: bool = False) -> list[dict[str, Any]]:
    """Return a conversation for each name: what it does, and its first sentence."""
    return [
        {
            "messages": [
                {"role": "user", "content": question(name)},
                {"role": "assistant", "content": answer},
            ]
        }
        for name, answer in _pairs()[held_out]
    ]


def texts(topics: str, held_out: bool = False) -> list[dict[str, str]]:
    """Return the English texts on which the decoder is trained first: pieces of the topics, and docstrings with names.

    Docstrings that start with a held-out answer are left out; of the others, one in 20 is for evaluation.
    """
    answers = {answer for _, answer in _pairs()[True]}
    by_text = {each.text: each.name for each in documented() if first_sentence(each.text) not in answers}
    docstrings = [f"{name}\n\n{text}" for text, name in by_text.items()]
    kept = [text for number, text in enumerate(docstrings) if (number % HELD_OUT_EVERY == 0) == held_out]
    return [{"text": text.strip()} for text in pieces(topics) + kept if text.strip()]


def pieces(text: str, size: int = 800) -> list[str]:
    """Return runs of whole paragraphs of `size` characters or, if a paragraph is longer, that paragraph."""
    found = [""]
    for paragraph in text.split("\n\n"):
        if found[-1] and len(found[-1]) + len(paragraph) > size:
            found.append("")
        found[-1] += f"\n\n{paragraph}" if found[-1] else paragraph
    return found


@cache
def tokenizer(topics: str, vocabulary_size: int = 2048) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer that is trained on the English texts, with the chat template."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator((each["text"] for each in texts(topics)), trainer)
    words = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # its constructor is untyped
        tokenizer_object=made, pad_token=PAD, eos_token=END, model_input_names=["input_ids", "attention_mask"]
    )
    words.chat_template = TEMPLATE
    return words


def base(folder: str) -> str:
    """Return the last checkpoint of the decoder, with which its tokenizer is saved."""
    found = hexloop.get_last_checkpoint(folder) if Path(folder).is_dir() else None
    if found is None:
        raise FileNotFoundError(
            f"There is no checkpoint in {folder}; train the decoder first: "
            "hexloop train docs/examples/assistant_base.yaml"
        )
    return found


class Samples(hexloop.TrainerCallback):
    """Asks the same questions before and after training, and writes samples.md and samples.json.

    count: how many, spread over the held-out names. longest: tokens of an answer at most.
    """

    def __init__(self, count: int = 8, longest: int = 48) -> None:
        pairs = _pairs()[True]
        self.pairs = pairs[:: max(1, len(pairs) // count)][:count]
        self.longest = longest
        self.before: list[str] = []

    def on_train_begin(self, args: Any, state: hexloop.TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self.before = self._answers(kwargs["model"], kwargs["processing_class"])

    def on_train_end(self, args: Any, state: hexloop.TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        after = self._answers(kwargs["model"], kwargs["processing_class"])
        found = [
            {"question": question(name), "before": old, "after": new, "documented": answer}
            for (name, answer), old, new in zip(self.pairs, self.before, after, strict=True)
        ]
        folder = Path(args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "samples.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        (folder / "samples.md").write_text(as_table(found), encoding="utf-8")
        print(as_table(found))

    def _answers(self, model: Any, words: Any) -> list[str]:
        return [answer(model, words, question(name), self.longest) for name, _ in self.pairs]


def answer(model: Any, words: Any, asked: str, longest: int) -> str:
    """Return what a model answers, word by word the most probable; it ends with the end token if that was reached."""
    was_training = model.training
    model.eval()
    inputs = words.apply_chat_template(
        [{"role": "user", "content": asked}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    with torch.no_grad():
        written = model.generate(**inputs, max_new_tokens=longest, do_sample=False, pad_token_id=words.pad_token_id)
    model.train(was_training)
    return str(words.decode(written[0, inputs["input_ids"].shape[1] :]))


def as_table(samples: Sequence[dict[str, str]]) -> str:
    """Return samples as a Markdown table, of which END is left out."""
    rows = [[each[name].replace(END, "").replace("|", "\\|") for name in SAMPLE] for each in samples]
    lines = [SAMPLE, ["---"] * len(SAMPLE), *rows]
    return "".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |\n" for line in lines)


SAMPLE = ["question", "before", "after", "documented"]
