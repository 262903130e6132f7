"""From samples as people write them to tokens and labels: texts, prompts with completions, and conversations."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import define, field, frozen
from jinja2 import TemplateError

from hexloop.domain.errors import DataError
from hexloop.domain.wording import RefusalError, enumeration
from hexloop.ports.batches import IGNORED_LABEL

GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Matches the statement by which a chat template marks what the assistant says."""

MASKS = ("completion_mask", "assistant_masks")
"""Columns of tokenized samples with 1 for each token that counts, 0 for the others."""


class Form(Enum):
    """How a sample holds what is trained on."""

    TEXT = "a text"
    COMPLETION = "a prompt and a completion"
    CONVERSATION = "a conversation"
    ANSWER = "a prompt and a completion that are messages"
    TOKENS = "tokens"


CHATS = (Form.CONVERSATION, Form.ANSWER)
PROMPTED = (Form.COMPLETION, Form.ANSWER)


@frozen
class Choices:
    """How samples become tokens.

    text_field: the column of a text. template: a chat template that stands for the tokenizer's own; None for that one.
    completion_only: whether prompts are left out of the loss; None leaves them out of samples that have one.
    assistant_only: count only what the assistant says. longest: tokens after which a sample is cut off later; None if
    it is not. formatting: returns the text of a sample; None if the samples are used as they are.
    """

    text_field: str = "text"
    template: str | None = None
    completion_only: bool | None = None
    assistant_only: bool = False
    longest: int | None = None
    formatting: Callable[[Any], str] | None = None


@frozen
class Tokens:
    """The tokens of a sample and their labels: the token itself, or `IGNORED_LABEL` where it does not count."""

    input_ids: Sequence[int]
    labels: Sequence[int]


def form_of(sample: Any, text_field: str) -> Form:
    """Return how a sample holds what is trained on. Raises DataError if it holds nothing that is known.

    A prompt with a completion comes before a conversation, and that before a text.
    """
    if not isinstance(sample, Mapping):
        raise DataError(
            f"A sample is of the type {type(sample).__name__}, but fine-tuning takes mappings, such as "
            f"{{{text_field!r}: ...}}; pass such samples, or a formatting_func that returns the text of each."
        )
    if "input_ids" in sample:
        return Form.TOKENS
    if images := [name for name in ("image", "images") if sample.get(name) is not None]:
        raise DataError(
            f"A sample has {enumeration(images)}, but SFTTrainer fine-tunes on text alone; use Trainer with a "
            "data_collator that calls the model's processor."
        )
    if sample.get("prompt") is not None and sample.get("completion") is not None:
        kinds = {_is_conversation(sample["prompt"]), _is_conversation(sample["completion"])}
        if kinds == {True}:
            return Form.ANSWER
        if isinstance(sample["prompt"], str) and isinstance(sample["completion"], str):
            return Form.COMPLETION
        raise DataError(
            f"A prompt is of the type {type(sample['prompt']).__name__} and its completion of the type "
            f"{type(sample['completion']).__name__}; let both be texts, or both be lists of messages with role and "
            "content."
        )
    if (messages := messages_of(sample)) is not None:
        if not _is_conversation(messages):
            raise DataError(
                "The messages of a sample are not a list of messages with role and content, such as "
                '{"role": "user", "content": "Hello"}; correct the data.'
            )
        return Form.CONVERSATION
    if isinstance(sample.get(text_field), str):
        return Form.TEXT
    named = [repr(name) for name, value in sample.items() if value is not None]
    columns = enumeration(named) if named else "no columns"
    raise DataError(
        f"A sample has {columns}, but none of the forms that fine-tuning knows: a text in the column {text_field!r} "
        "(dataset_text_field names another), prompt and completion, messages, or input_ids; rename a column, or pass a "
        "formatting_func that returns the text of a sample."
    )


def messages_of(sample: Mapping[str, Any]) -> Any:
    """Return the messages of a conversation, in the column `messages` or `conversations`; None if there are none."""
    found = sample.get("messages")
    return sample.get("conversations") if found is None else found


def _is_conversation(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    first = value[0]
    return isinstance(first, Mapping) and ("role" in first or {"from", "value"} <= first.keys())


def _as_messages(value: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the names `role` and `content`, which some data call `from` and `value`."""
    names = {"from": "role", "value": "content"}
    return [{names.get(name, name): part for name, part in message.items()} for message in value]


def refusals(form: Form, sample: Mapping[str, Any], choices: Choices, template: str | None) -> Iterator[RefusalError]:
    """Find why samples of this form cannot be trained on as chosen.

    template: the chat template in force; None if there is none.
    """
    if form in CHATS and template is None:
        yield RefusalError(
            f"the samples are {'conversations' if form is Form.CONVERSATION else 'messages'}, and the tokenizer has no "
            "chat template that makes a text of them",
            "set chat_template_path to a file with a template or to a model whose tokenizer has one, or pass a "
            "formatting_func that returns the text of a sample",
        )
    has_labels = form is Form.TOKENS and "labels" in sample
    if choices.completion_only and form not in PROMPTED and not has_labels and "completion_mask" not in sample:
        if choices.formatting is not None:
            because = "formatting_func makes one text of a sample, which has no prompt"
        else:
            because = f"the samples have no prompt: each is {form.value}"
        yield RefusalError(
            f"you chose completion_only_loss=True, which leaves prompts out of the loss, but {because}",
            "pass samples with the columns prompt and completion, or leave completion_only_loss out",
        )
    if not choices.assistant_only or has_labels or "assistant_masks" in sample:
        return
    if form not in CHATS:
        yield RefusalError(
            "you chose assistant_only_loss=True, which counts what the assistant says, but the samples are no "
            f"conversations: each is {form.value}",
            "pass samples with messages, or leave assistant_only_loss out",
        )
    elif template is not None and not GENERATION.search(template):
        yield RefusalError(
            "you chose assistant_only_loss=True, which needs a chat template that marks what the assistant says, but "
            "this one has no {% generation %}",
            "put {% generation %} and {% endgeneration %} around the assistant's messages in a copy of the template "
            "and set chat_template_path to it, or pass prompt and completion, whose prompts are left out of the loss",
        )


class _Formatted(dict[str, Any]):
    """A sample that `formatting_func` has made."""


@define
class Tokenization:
    """Turns samples into tokens with a tokenizer of transformers, as chosen.

    Warnings are logged once by each process. It can be sent to worker processes.
    """

    tokenizer: Any
    choices: Choices = field(factory=Choices)
    _warned: set[str] = field(factory=set, init=False)

    def __call__(self, samples: Sequence[Any]) -> list[Tokens]:
        """Return all tokens of samples, which may be of different forms, in their order.

        Raises DataError for a sample of no known form, and for the first problem of those that `refusals` finds.
        """
        found: list[Tokens | None] = [None] * len(samples)
        prepared = [self._formatted(sample) for sample in samples]
        by_form: dict[Form, list[int]] = {}
        for number, sample in enumerate(prepared):
            by_form.setdefault(form_of(sample, self._text_field), []).append(number)
        for form, numbers in by_form.items():
            chosen = [prepared[number] for number in numbers]
            self._refuse(form, chosen[0])
            for number, tokens in zip(numbers, self._tokens(form, chosen), strict=True):
                found[number] = self._checked(tokens)
        return [tokens for tokens in found if tokens is not None]

    def row(self, sample: Any) -> dict[str, Any]:
        """Return a sample as columns of tokens. One that has been tokenized keeps its others, such as seq_lengths."""
        further = sample if isinstance(sample, Mapping) and "input_ids" in sample else {}
        return {**{name: value for name, value in further.items() if name not in MASKS}, **as_row(self([sample])[0])}

    def formatted(self, samples: Sequence[Any]) -> list[Any]:
        """Return samples as `formatting_func` makes them, if there is one; what has been formatted stays as it is."""
        return [self._formatted(sample) for sample in samples]

    def problems(self, sample: Any) -> list[str]:
        """Return what is wrong with the form of a sample."""
        try:
            sample = self._formatted(sample)
            form = form_of(sample, self._text_field)
        except DataError as error:
            return [str(error)]
        return [_sentence(each) for each in self._refusals(form, sample)]

    @property
    def template(self) -> str | None:
        """The chat template in force; None if there is none."""
        if self.choices.template is not None:
            return self.choices.template
        own = getattr(self.tokenizer, "chat_template", None)
        return own.get("default") if isinstance(own, dict) else own

    @property
    def _text_field(self) -> str:
        return "text" if self.choices.formatting is not None else self.choices.text_field

    def _formatted(self, sample: Any) -> Any:
        formatting = self.choices.formatting
        if (
            formatting is None
            or isinstance(sample, _Formatted)
            or (isinstance(sample, Mapping) and "input_ids" in sample)
        ):
            return sample
        text = formatting(sample)
        if not isinstance(text, str):
            raise DataError(
                f"formatting_func returned a value of the type {type(text).__name__}; let it return the text of one "
                "sample."
            )
        return _Formatted(text=text)

    def _refusals(self, form: Form, sample: Mapping[str, Any]) -> Iterator[RefusalError]:
        yield from refusals(form, sample, self.choices, self.template)
        if self.choices.assistant_only and form in CHATS and not getattr(self.tokenizer, "is_fast", True):
            yield RefusalError(
                "you chose assistant_only_loss=True, which needs a tokenizer that knows where its tokens are, but "
                f"{type(self.tokenizer).__name__} is written in Python",
                "pass a fast one, or pass prompt and completion, whose prompts are left out of the loss",
            )

    def _refuse(self, form: Form, sample: Mapping[str, Any]) -> None:
        for refusal in self._refusals(form, sample):
            raise DataError(_sentence(refusal))

    def _tokens(self, form: Form, samples: Sequence[Mapping[str, Any]]) -> list[Tokens]:
        if form is Form.TOKENS:
            return [self._given(sample) for sample in samples]
        if form is Form.TEXT:
            return [_counted(self._ended(ids)) for ids in self._encoded([each[self._text_field] for each in samples])]
        if form is Form.COMPLETION:
            prompts = [each["prompt"] for each in samples]
            whole = [each["prompt"] + each["completion"] for each in samples]
            encoded = self._encoded([*prompts, *whole])
            pairs = zip(encoded[: len(samples)], encoded[len(samples) :], strict=True)
            return [self._after_prompt(self._without_end(prompt), self._ended(ids), None) for prompt, ids in pairs]
        return [self._of_messages(form, sample) for sample in samples]

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer(texts, truncation=False, padding=False, return_attention_mask=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _ended(self, ids: list[int]) -> list[int]:
        """Return tokens with the end token after them, if there is one and it is not there."""
        end = self.tokenizer.eos_token_id
        if end is None:
            self._warn(
                "end",
                "The tokenizer has no end token, so nothing teaches the model where a text ends; set eos_token to a "
                "token of its vocabulary.",
            )
        return ids if end is None or ids[-1:] == [end] else [*ids, end]

    def _without_end(self, prompt: list[int]) -> list[int]:
        """Return the tokens of a prompt without a special token that the tokenizer puts at the end of every text."""
        ends = {self.tokenizer.eos_token_id, getattr(self.tokenizer, "sep_token_id", None)} - {None}
        return prompt[:-1] if prompt and prompt[-1] in ends else prompt

    def _of_messages(self, form: Form, sample: Mapping[str, Any]) -> Tokens:
        """Return the tokens of a conversation, or of one whose prompt and completion are apart."""
        tools = sample.get("tools")
        options = {
            "tools": json.loads(tools) if isinstance(tools, str) else tools,
            **(sample.get("chat_template_kwargs") or {}),
        }
        if form is Form.CONVERSATION:
            ids, spoken = self._templated(_as_messages(messages_of(sample)), options)
            return _counted(ids, spoken)
        prompt, completion = _as_messages(sample["prompt"]), _as_messages(sample["completion"])
        before = self._rendered(prompt, add_generation_prompt=True, **options)["input_ids"]
        ids, spoken = self._templated([*prompt, *completion], options)
        return self._after_prompt(before, ids, spoken)

    def _templated(
        self, messages: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> tuple[list[int], list[bool] | None]:
        """Return the tokens of messages, and which of them the assistant says; None if all count."""
        if not self.choices.assistant_only:
            return self._rendered(messages, **options)["input_ids"], None
        rendered = self._rendered(messages, return_assistant_tokens_mask=True, **options)
        ids, spoken = rendered["input_ids"], [bool(each) for each in rendered["assistant_masks"]]
        end = self.tokenizer.eos_token_id
        if any(ids[number] == end and spoken[number - 1] and not spoken[number] for number in range(1, len(ids))):
            self._warn(
                "stop",
                "The chat template leaves the end token of the assistant's messages out of {% generation %}, so it "
                "does not count, and the model does not learn to stop; put it before {% endgeneration %}.",
            )
        return ids, spoken

    def _rendered(self, messages: list[dict[str, Any]], **options: Any) -> Any:
        try:
            return self.tokenizer.apply_chat_template(
                messages, chat_template=self.choices.template, tokenize=True, return_dict=True, **options
            )
        except TemplateError as error:
            roles = enumeration(repr(message.get("role")) for message in messages)
            raise DataError(
                f"The chat template refuses a conversation with the roles {roles}: {error}. Correct the data, or "
                "choose another template with chat_template_path."
            ) from error

    def _after_prompt(self, prompt: list[int], ids: list[int], spoken: list[bool] | None) -> Tokens:
        """Return the tokens of a prompt and its completion, of which those of the completion count, as chosen.

        The completion starts where its tokens differ from those of the prompt alone: a token across the seam counts.
        """
        shared = next(
            (number for number, (one, other) in enumerate(zip(prompt, ids, strict=False)) if one != other),
            min(len(prompt), len(ids)),
        )
        if shared < len(prompt):
            self._warn(
                "seam",
                "The tokens of a prompt are not the first tokens of the prompt with its completion: the last "
                f"{len(prompt) - shared} of {len(prompt)}, {self.tokenizer.decode(prompt[shared:])!r}, are others, "
                "because they merge with the completion or the chat template renders a prompt alone in another way. "
                "The model is trained on another context than it continues later. End prompts where a token ends, "
                "such as before a space, or correct the template.",
            )
        if self.choices.completion_only is False:
            return _counted(ids, spoken)
        counted = [number >= shared for number in range(len(ids))]
        return _counted(ids, counted, spoken)

    def _given(self, sample: Mapping[str, Any]) -> Tokens:
        """Return the tokens of a sample that has been tokenized already, with its own labels or masks."""
        ids = _listed(sample["input_ids"])
        if sample.get("labels") is not None:
            labels = _listed(sample["labels"])
            if len(labels) != len(ids):
                raise DataError(
                    f"A sample has {len(ids)} input_ids and {len(labels)} labels; give each token its label, with "
                    f"{IGNORED_LABEL} for those that do not count."
                )
            return Tokens(ids, labels)
        used = {"completion_mask": self.choices.completion_only is not False, "assistant_masks": True}
        masks = [_listed(sample[name]) for name in MASKS if used[name] and sample.get(name) is not None]
        if any(len(mask) != len(ids) for mask in masks):
            raise DataError(f"A sample has {len(ids)} input_ids, and a mask of another length; correct the data.")
        return _counted(ids, *masks)

    def _checked(self, tokens: Tokens) -> Tokens:
        """Return tokens; warn if none of those that are kept counts. Raises DataError if there are none at all."""
        length, longest = len(tokens.input_ids), self.choices.longest
        if not length:
            raise DataError("A sample has no tokens: its text is empty; leave it out.")
        if all(
            label == IGNORED_LABEL for label in tokens.labels[1:longest]
        ):  # the first token is predicted from nothing
            self._warn(
                "uncounted",
                f"A sample of {length:,} tokens has none that counts in the loss, so nothing is learned from it: its "
                "prompt alone reaches max_length, or nothing in it is to be learned. Set max_length higher, or leave "
                "such samples out.",
            )
        return tokens

    def _warn(self, kind: str, text: str) -> None:
        """Log a warning, once for each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            logging.getLogger("hexloop").warning(text)


def _counted(ids: Sequence[int], *masks: Sequence[int | bool] | None) -> Tokens:
    """Return tokens, of which those count for which each mask is true; None masks nothing."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return Tokens(ids, ids)
    bits = zip(*given, strict=True)
    return Tokens(ids, [token if all(each) else IGNORED_LABEL for token, each in zip(ids, bits, strict=True)])


def as_row(tokens: Tokens) -> dict[str, Any]:
    """Return tokens as the columns that the model takes."""
    return {"input_ids": list(tokens.input_ids), "labels": list(tokens.labels)}


def _listed(values: Any) -> list[int]:
    """Return token ids of a list, an array or a tensor."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _sentence(refusal: RefusalError) -> str:
    text = str(refusal)
    return f"{text[0].upper()}{text[1:]}."
