from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from docs.examples.assistant import (
    END,
    Samples,
    answer,
    as_table,
    base,
    conversations,
    documented,
    first_sentence,
    pieces,
    texts,
    tokenizer,
)
from hexloop import TrainerControl, TrainerState

TOPICS = "A list is a sequence.\n\nA set is not.\n\nA tuple cannot be changed."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Return a list.\n\nMore.", "Return a list."),
        ("Return a list\nof numbers. Raises ValueError.", "Return a list of numbers."),
        ("Use e.g. a list. Then", "Use e.g. a list."),
        ("Without an end", "Without an end"),
    ],
)
def test_first_sentences(text: str, sentence: str) -> None:
    """A sentence ends before a capital letter, or with the paragraph."""
    assert first_sentence(text) == sentence


def test_pieces_are_whole_paragraphs() -> None:
    """They are as long as fits, and together they are the text."""
    found = pieces(TOPICS, size=40)
    assert found == ["A list is a sequence.\n\nA set is not.", "A tuple cannot be changed."]
    assert pieces("a" * 50, size=40) == ["a" * 50]


@pytest.mark.matrix
def test_no_held_out_answer_is_trained_on() -> None:
    """Answers are in one part only, and no training text starts with one that is held out."""
    training, held_out = (
        {each["messages"][1]["content"] for each in conversations(held_out=part)} for part in (False, True)
    )
    assert len(training) > 2000
    assert 0.04 < len(held_out) / (len(training) + len(held_out)) < 0.06
    assert training.isdisjoint(held_out)
    assert not {first_sentence(each["text"]) for each in texts(TOPICS)} & held_out
    assert not {each["text"] for each in texts(TOPICS)[2:]} & {each["text"] for each in texts("", held_out=True)}


@pytest.mark.matrix
def test_questions_name_functions() -> None:
    """Each names what its answer documents."""
    by_name = {each.name: each.text for each in documented()}
    for each in conversations(held_out=True):
        asked, answered = (message["content"] for message in each["messages"])
        assert first_sentence(by_name[asked.removeprefix("What does ").removesuffix(" do?")]) == answered


def test_the_tokenizer_keeps_every_text() -> None:
    """Texts are the same after they were tokenized, with letters that it has not seen as well."""
    words = tokenizer(TOPICS, vocabulary_size=600)
    for text in ("A list.", "  naïve\n\ttabs 中文 "):
        assert words.decode(words(text)["input_ids"]) == text
    messages = conversations()[0]["messages"]
    rendered = words.apply_chat_template(messages, tokenize=False)
    assert rendered == f"<user>{messages[0]['content']}<assistant>{messages[1]['content']}{END}"


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=600, num_attention_heads=2, pad_token_id=0, eos_token_id=1, **sizes))


def test_answers_have_a_longest_length() -> None:
    """An answer has at most so many tokens, and the model is in the mode that it was in."""
    model, words = small_model().train(), tokenizer(TOPICS, vocabulary_size=600)
    assert answer(model, words, "What?", 3) != answer(model, words, "What?", 5)
    assert answer(model, words, "What?", 5).startswith(answer(model, words, "What?", 3).rstrip("\ufffd"))
    assert model.training


@pytest.mark.parametrize("first", [False, True])
def test_samples_are_written_by_rank_0_only(first: bool, tmp_path: Path) -> None:
    """The same questions are answered before and after training."""
    words, model = tokenizer(TOPICS, vocabulary_size=600), small_model()
    callback, args = Samples(count=3, longest=4), SimpleNamespace(output_dir=str(tmp_path / "run"))
    given = args, TrainerState(is_world_process_zero=first), TrainerControl()
    callback.on_train_begin(*given, model=model, processing_class=words)
    with torch.no_grad():
        model.lm_head.weight.neg_()
    callback.on_train_end(*given, model=model, processing_class=words)
    if not first:
        assert not list(tmp_path.iterdir())
        return
    found = json.loads((tmp_path / "run" / "samples.json").read_text())
    assert len(found) == 3
    assert all(each["before"] != each["after"] for each in found)
    table = (tmp_path / "run" / "samples.md").read_text(encoding="utf-8")
    assert table == as_table(found)
    assert len(table.splitlines()) == 5


def test_the_base_is_the_last_checkpoint(tmp_path: Path) -> None:
    """Without one, the error says how to train it."""
    with pytest.raises(FileNotFoundError, match="assistant_base"):
        base(str(tmp_path / "nothing"))
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    assert base(str(tmp_path)) == str(tmp_path / "checkpoint-10")
