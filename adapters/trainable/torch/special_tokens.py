"""Copies the special tokens of a tokenizer to the configuration of the model that is trained with it."""

from __future__ import annotations

import logging
from typing import Any


def align_special_tokens(model: Any, processing_class: Any) -> None:
    """Set the end, beginning and padding tokens of a transformers model to those of its tokenizer; log the changes.

    Tokens that the tokenizer does not have are not changed. Other tokens that end a generated text are kept.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if not hasattr(tokenizer, "eos_token_id") or not hasattr(getattr(model, "config", None), "get_text_config"):
        return
    config, generation = model.config.get_text_config(), getattr(model, "generation_config", None)
    changed = {}
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(tokenizer, name)
        holders = [config] if generation is None else [config, generation]
        if token is None or all(token in _declared(each, name) for each in holders):
            continue
        changed[name] = token
        ends = name == "eos_token_id"
        setattr(config, name, _with(token, config, name) if ends and _is_list(config, name) else token)
        if generation is not None:
            setattr(generation, name, _with(token, generation, name) if ends else token)
    if changed:
        logging.getLogger("hexloop").warning(
            "The special tokens of the tokenizer and of the model's configuration differed; the model now has %s.",
            changed,
        )


def _is_list(holder: Any, name: str) -> bool:
    return isinstance(getattr(holder, name, None), list)


def _declared(holder: Any, name: str) -> list[int | None]:
    value = getattr(holder, name, None)
    return value if isinstance(value, list) else [value]


def _with(token: int, holder: Any, name: str) -> list[int | None]:
    """Return the declared tokens, with `token` first and only once."""
    return [token, *(each for each in _declared(holder, name) if each not in (None, token))]
