"""From samples to tokens and labels: each form, its seams, and what is refused."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.fine_tuning.samples import Choices, Form, Tokenization, form_of
from hexloop.domain.errors import DataError
from hexloop.ports.batches import IGNORED_LABEL
from tests.end_to_end.fine_tuning.small import (
    END,
    PLAIN,
    TEMPLATE,
    TEXTS,
    answers,
    conversations,
    prompts,
    texts,
    tokenizer,
)

WORDS = tokenizer()


def tokenization(template: str | None = TEMPLATE, **choices: Any) -> Tokenization:
    return Tokenization(tokenizer(template), Choices(**choices))


def read(tokens: Any) -> tuple[str, str]:
    """Return all tokens of a sample as text, and those that count."""
    counted = [label for label in tokens.labels if label != IGNORED_LABEL]
    assert all(label in (IGNORED_LABEL, token) for label, token in zip(tokens.labels, tokens.input_ids, strict=True))
    return str(WORDS.decode(tokens.input_ids)), str(WORDS.decode(counted))


@pytest.mark.parametrize(
    ("sample", "form"),
    [
        ({"text": "a"}, Form.TEXT),
        ({"prompt": "a", "completion": "b", "text": "c"}, Form.COMPLETION),
        (answers(1)[0], Form.ANSWER),
        (conversations(1)[0], Form.CONVERSATION),
        ({"conversations": [{"from": "user", "value": "a"}]}, Form.CONVERSATION),
        ({"input_ids": [1], "text": "a"}, Form.TOKENS),
        ({"prompt": None, "completion": None, "messages": None, "text": "a"}, Form.TEXT),
    ],
)
def test_forms(sample: dict[str, Any], form: Form) -> None:
    """Tokens come before prompts, these before conversations, and these before texts."""
    assert form_of(sample, "text") is form


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("a text", "A sample is of the type str, but fine-tuning takes mappings"),
        ({"story": "a"}, "A sample has 'story', but none of the forms"),
        ({}, "A sample has no columns, but none of the forms"),
        ({"text": 3}, "A sample has 'text', but none of the forms"),
        ({"prompt": None, "story": "a"}, "A sample has 'story', but none of the forms"),
        ({"prompt": "a"}, "A sample has 'prompt', but none of the forms"),
        (
            {"prompt": "a", "completion": [{"role": "user"}]},
            "A prompt is of the type str and its completion of the type",
        ),
        ({"messages": "a"}, "The messages of a sample are not a list of messages"),
        ({"messages": []}, "The messages of a sample are not a list of messages"),
        ({"messages": [{"role": "user"}], "image": 3}, "A sample has image, but SFTTrainer fine-tunes on text alone"),
    ],
)
def test_unknown_forms_are_refused(sample: Any, message: str) -> None:
    """The error says what the sample has, and which forms there are."""
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        form_of(sample, "text")


def test_texts_end_with_the_end_token() -> None:
    """Every token counts; an end token that the text has already is not repeated."""
    made = tokenization()([*texts(2), {"text": f"{TEXTS[2]}{END}"}])
    assert list(map(read, made)) == [(f"{text}{END}", f"{text}{END}") for text in TEXTS[:3]]
    assert tokenization(text_field="story")([{"story": TEXTS[0], "text": "other"}])[0] == made[0]


def test_completions_count() -> None:
    """The tokens of the prompt have no label, unless completion_only is off."""
    made = tokenization()(prompts(3))
    expected = [(each["prompt"] + each["completion"] + END, each["completion"] + END) for each in prompts(3)]
    assert list(map(read, made)) == expected
    assert all(whole == counted for whole, counted in map(read, tokenization(completion_only=False)(prompts(3))))


@given(prompt=st.text("ab ü", max_size=12), completion=st.text("ab ü", max_size=12))
def test_seams_lose_no_token(prompt: str, completion: str) -> None:
    """The tokens are those of the whole text; those before the first label are tokens of the prompt alone."""
    made = tokenization()([{"prompt": prompt, "completion": completion}])[0]
    assert list(made.input_ids) == [*WORDS(prompt + completion)["input_ids"], WORDS.eos_token_id]
    first = next(number for number, label in enumerate(made.labels) if label != IGNORED_LABEL)
    assert list(made.input_ids[:first]) == WORDS(prompt)["input_ids"][:first]
    assert all(label != IGNORED_LABEL for label in made.labels[first:])


def test_prompts_whose_tokens_merge_with_the_completion(caplog: pytest.LogCaptureFixture) -> None:
    """The token across the seam counts, and a warning shows the part of the prompt, once."""
    whole = "mutable sequence"

    def merges(prompt: str) -> bool:
        alone = WORDS(prompt)["input_ids"]
        return bool(alone != WORDS(whole)["input_ids"][: len(alone)])

    prompt = next(whole[:end] for end in range(2, len(whole)) if merges(whole[:end]))
    convert = tokenization()
    with caplog.at_level(logging.WARNING, "hexloop"):
        for _ in range(2):
            convert([{"prompt": prompt, "completion": whole[len(prompt) :]}])
    assert len(caplog.records) == 1
    assert "The tokens of a prompt are not the first tokens of the prompt with its completion" in caplog.text


def test_conversations() -> None:
    """All tokens count, or with assistant_only those between the marks of the template."""
    for form in (conversations, answers):
        (whole, counted), *_ = map(read, tokenization(completion_only=False)(form(1)))
        assert whole == counted == f"<user>What is list?<assistant>{TEXTS[0]}{END}"
        (whole, counted), *_ = map(read, tokenization(assistant_only=True)(form(1)))
        assert (whole, counted) == (f"<user>What is list?<assistant>{TEXTS[0]}{END}", f"{TEXTS[0]}{END}")
    (whole, counted), *_ = map(read, tokenization()(answers(1)))
    assert counted == f"{TEXTS[0]}{END}"


def test_old_names_of_messages() -> None:
    """`from` and `value` are read as role and content, and the sample stays as it is."""
    messages = conversations(1)[0]["messages"]
    sample = {"conversations": [{"from": each["role"], "value": each["content"]} for each in messages]}
    before = json.dumps(sample)
    assert tokenization()([sample]) == tokenization()(conversations(1))
    assert json.dumps(sample) == before


def test_tools_and_options_reach_the_template() -> None:
    """Tools may be JSON text; further variables of the template are in chat_template_kwargs."""
    template = "{{ tools[0]['name'] }}{{ mood }}" + PLAIN
    sample = {
        **conversations(1)[0],
        "tools": json.dumps([{"name": "clock"}]),
        "chat_template_kwargs": {"mood": "calm"},
    }
    assert read(tokenization(template)([sample])[0])[0].startswith("clockcalm<user>What")


def test_end_tokens_outside_of_the_marks(caplog: pytest.LogCaptureFixture) -> None:
    """A template whose end token does not count is reported: the model would not learn to stop."""
    template = TEMPLATE.replace(
        "{{ message['content'] + eos_token }}{% endgeneration %}",
        "{{ message['content'] }}{% endgeneration %}{{ eos_token }}",
    )
    with caplog.at_level(logging.WARNING, "hexloop"):
        tokenization(template, assistant_only=True)(conversations(1))
    assert "does not learn to stop" in caplog.text


def test_formatting() -> None:
    """The function's text is trained on; tokens are not formatted."""
    convert = tokenization(formatting=lambda sample: f"{sample['a']} {sample['b']}", text_field="other")
    assert read(convert([{"a": "A", "b": "list"}])[0])[0] == f"A list{END}"
    assert list(convert([{"input_ids": [5, 6]}])[0].input_ids) == [5, 6]
    with pytest.raises(DataError, match="formatting_func returned a value of the type list"):
        tokenization(formatting=lambda sample: [sample])([{"a": 1}])


def test_given_tokens_keep_their_labels() -> None:
    """Labels count as they are; masks leave tokens out, the completion's unless completion_only is off."""
    ids, masks = [5, 6, 7], {"completion_mask": [0, 1, 1], "assistant_masks": [1, 1, 0]}
    labelled, masked, plain = tokenization()(
        [{"input_ids": ids, "labels": [-100, 6, 9]}, {"input_ids": ids, **masks}, {"input_ids": ids}]
    )
    assert [each.labels for each in (labelled, masked, plain)] == [[-100, 6, 9], [-100, 6, -100], ids]
    assert tokenization(completion_only=False)([{"input_ids": ids, **masks}])[0].labels == [5, 6, -100]
    with pytest.raises(DataError, match="3 input_ids and 2 labels"):
        tokenization()([{"input_ids": ids, "labels": [1, 2]}])
    with pytest.raises(DataError, match="3 input_ids, and a mask of another length"):
        tokenization()([{"input_ids": ids, "completion_mask": [1]}])
    row = tokenization().row({"input_ids": ids, "seq_lengths": [1, 2], "completion_mask": [0, 1, 1]})
    assert row == {"input_ids": ids, "labels": [-100, 6, 7], "seq_lengths": [1, 2]}


@given(order=st.permutations(range(8)))
def test_mixed_forms_keep_their_order(order: list[int]) -> None:
    """Samples of several forms may be tokenized together, and each gets its own tokens."""
    convert, samples = tokenization(), [*texts(2), *prompts(2), *conversations(2), *answers(2)]
    assert convert([samples[number] for number in order]) == [convert([samples[number]])[0] for number in order]


def test_samples_from_which_nothing_is_learned(caplog: pytest.LogCaptureFixture) -> None:
    """A prompt that reaches max_length is reported once; an empty text is refused."""
    convert = tokenization(longest=4)
    with caplog.at_level(logging.WARNING, "hexloop"):
        for each in prompts(2):
            convert([{**each, "prompt": TEXTS[0]}])
    assert len(caplog.records) == 1
    assert "none that counts in the loss" in caplog.text
    without_end = tokenizer()
    without_end.eos_token = None
    with pytest.raises(DataError, match="no tokens"):
        Tokenization(without_end)([{"text": ""}])


def test_tokenizers_without_an_end_token(caplog: pytest.LogCaptureFixture) -> None:
    """They are reported once."""
    without_end = tokenizer()
    without_end.eos_token = None
    convert = Tokenization(without_end)
    with caplog.at_level(logging.WARNING, "hexloop"):
        convert(texts(2))
    assert "no end token" in caplog.text
    assert len(caplog.records) == 1


BAD: list[tuple[dict[str, Any], str | None, dict[str, Any], str]] = [
    (conversations(1)[0], None, {}, "The samples are conversations, and the tokenizer has no chat template"),
    (answers(1)[0], None, {}, "The samples are messages, and the tokenizer has no chat template"),
    (texts(1)[0], TEMPLATE, {"completion_only": True}, "the samples have no prompt: each is a text"),
    (conversations(1)[0], TEMPLATE, {"completion_only": True}, "the samples have no prompt: each is a conversation"),
    ({"input_ids": [1]}, TEMPLATE, {"completion_only": True}, "the samples have no prompt: each is tokens"),
    (texts(1)[0], TEMPLATE, {"assistant_only": True}, "the samples are no conversations: each is a text"),
    (prompts(1)[0], TEMPLATE, {"assistant_only": True}, "no conversations: each is a prompt and a completion"),
    (conversations(1)[0], PLAIN, {"assistant_only": True}, "this one has no {% generation %}"),
]


@pytest.mark.parametrize(("sample", "template", "choices", "message"), BAD, ids=range(len(BAD)))
def test_choices_that_samples_do_not_allow(
    sample: dict[str, Any], template: str | None, choices: dict[str, Any], message: str
) -> None:
    """Each is one sentence, at construction and where a stream is read."""
    convert = tokenization(template, **choices)
    (problem,) = convert.problems(sample)
    assert message in problem
    assert problem.endswith(".")
    with pytest.raises(DataError) as caught:
        convert([sample])
    assert str(caught.value) == problem


def test_choices_that_samples_allow() -> None:
    """Labels and masks of tokens make up for prompts and conversations."""
    assert not tokenization(completion_only=True).problems({"input_ids": [1], "completion_mask": [1]})
    assert not tokenization(completion_only=True, assistant_only=True).problems({"input_ids": [1], "labels": [1]})
    assert not tokenization(assistant_only=True).problems({"input_ids": [1], "assistant_masks": [1]})
    assert not tokenization(completion_only=True).problems(prompts(1)[0])
    problem, *others = tokenization(None, formatting=lambda sample: "a", completion_only=True).problems(prompts(1)[0])
    assert "formatting_func makes one text of a sample" in problem
    assert not others


def test_conversations_that_the_template_refuses() -> None:
    """The error has the roles and the template's own reason."""
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DataError, match=r"with the roles 'user' and 'assistant': roles must alternate\. Correct"):
        tokenization(template)(conversations(1))


def test_tokenizers_that_do_not_know_where_tokens_are() -> None:
    """assistant_only needs a fast one."""
    convert = tokenization(assistant_only=True)

    class Slow:
        is_fast, chat_template = False, TEMPLATE

    (problem,) = Tokenization(Slow(), convert.choices).problems(conversations(1)[0])
    assert "Slow is written in Python" in problem
