"""From a held-out batch to what the model generates from it, in tensors of the length that is generated at most."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.functional import pad

from hexloop.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from hexloop.app.sequence_to_sequence.trainer import Seq2SeqTrainer

LABELS = "labels"
"""The input with the sequences to be generated."""

MADE_OF_LABELS = ("decoder_input_ids", "decoder_attention_mask")
"""Inputs that a collator may have made of the labels; to be given them is to be given the answer."""

DEFAULT_LENGTH = 20
"""Tokens that transformers generates at most where nobody says how many."""


def load_generation_config(source: Any) -> Any:
    """A `GenerationConfig` of transformers: a copy of the one given, or the one that a name or path leads to.

    A path is that of a folder that holds generation_config.json, or of such a file; anything else is the name of a
    model on the Hub. Raises ConfigurationError where it holds what contradicts itself, which could not be saved.
    """
    from transformers import GenerationConfig

    if isinstance(source, GenerationConfig):
        config = deepcopy(source)
    elif Path(source).is_file():
        config = GenerationConfig.from_pretrained(Path(source).parent, Path(source).name)
    else:
        config = GenerationConfig.from_pretrained(source)
    try:
        config.validate(strict=True)
    except ValueError as error:
        raise ConfigurationError(
            [f"You chose a generation_config that contradicts itself, and could not be saved: {error} Mend it."]
        ) from error
    return config


def refuse_generation(trainer: Seq2SeqTrainer) -> None:
    """Raise ConfigurationError where the arguments ask a model to generate that cannot."""
    args, model = trainer.args, trainer.model
    if args.predict_with_generate and not hasattr(model, "generate"):
        raise ConfigurationError(
            [
                f"You chose predict_with_generate=True, but {type(model).__name__} has no method generate; give it "
                "one, or set predict_with_generate=False."
            ]
        )


def with_defaults(args: Any, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The generation keywords `chosen`, and the arguments' where they leave the length or the beams open."""
    keywords = dict(chosen)
    open_length = keywords.get("max_length") is None and keywords.get("max_new_tokens") is None
    if open_length and args.generation_max_length is not None:
        keywords["max_length"] = args.generation_max_length
    if keywords.get("num_beams") is None and args.generation_num_beams is not None:
        keywords["num_beams"] = args.generation_num_beams
    return keywords


def generate(trainer: Seq2SeqTrainer, inputs: Mapping[str, Any], keywords: Mapping[str, Any]) -> Tensor:
    """What the model generates from a batch, (rows, tokens), padded to the length that is generated at most."""
    undecided = ("max_length", "num_beams")
    keywords = {name: value for name, value in keywords.items() if value is not None or name not in undecided}
    generated = trainer.adapters.precision.wrap(trainer.model.generate)(**_to_generate_from(inputs), **keywords)
    return padded(trainer, generated)


def _to_generate_from(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs without the labels, and without what was made of them."""
    left_out = {LABELS}
    labels, shown = inputs.get(LABELS), inputs.get("decoder_input_ids")
    if labels is not None and shown is not None and labels.shape == shown.shape:
        left_out |= set(MADE_OF_LABELS)
    return {name: value for name, value in inputs.items() if name not in left_out}


def padded(trainer: Seq2SeqTrainer, tokens: Tensor) -> Tensor:
    """`tokens`, (rows, length), filled up on the right to the length of the model's generation config.

    That is its max_length, or for longer tokens one more than its max_new_tokens; still longer ones stay as they are.
    """
    config = getattr(trainer.model, "generation_config", None)
    length, longest = tokens.shape[-1], getattr(config, "max_length", None) or DEFAULT_LENGTH
    if length >= longest:
        longest = max(length, (getattr(config, "max_new_tokens", None) or 0) + 1)
    return tokens if length == longest else pad(tokens, (0, longest - length), value=_padding_token(trainer))


def _padding_token(trainer: Seq2SeqTrainer) -> int:
    """The tokenizer's padding token, else its end token, or without a tokenizer that of the model's config."""
    token: int | None
    if hasattr(trainer.processing_class, "pad_token_id"):
        token = trainer.processing_class.pad_token_id
        token = trainer.processing_class.eos_token_id if token is None else token
    else:
        token = getattr(getattr(trainer.model, "config", None), "pad_token_id", None)
    if token is None:
        raise ConfigurationError(
            [
                "You chose predict_with_generate=True, but nothing says with which token shorter sequences are filled "
                "up; set pad_token_id in the model's config, or pass a tokenizer as processing_class."
            ]
        )
    return token
