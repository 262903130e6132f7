"""Whether a model computes packed documents as it computes each alone, and what it needs for that."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from attrs import frozen
from torch import nn

from hexloop.adapters.trainable.torch.forward import forward_parameters, shifts_labels
from hexloop.adapters.trainable.torch.names import unwrapped

MASK_MAKERS = frozenset(
    {
        "create_causal_mask",
        "create_sliding_window_causal_mask",
        "create_chunked_causal_mask",
        "create_masks_for_generate",
    }
)
"""Functions of transformers that keep attention within documents, whose positions restart in a row."""

ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})
"""The kinds of layers, as configurations of transformers name them, that look at other tokens by attention alone."""

RECURRENT = (
    "mamba",
    "recurrent",
    "rwkv",
    "xlstm",
    "mlstm",
    "slstm",
    "deltanet",
    "shortconv",
    "linearattention",
    "lightning",
    "ssm",
    "hyena",
)
"""Parts of the names of modules whose state goes from one token to the next, whatever the positions are."""

FLASH = "flash_attention"
"""The start of the names of attention implementations that take the boundaries of documents."""


@frozen
class PackedInputs:
    """What a model needs to compute packed documents.

    first_position: of each document. takes_boundaries: the attention takes `cu_seq_lens_q` and others, so that one long
    row costs no more than its documents. without_cache: the model would make a cache, with which transformers takes no
    boundaries from positions. extra: inputs with a value for each token that the model takes, besides the usual ones.
    """

    first_position: int = 0
    takes_boundaries: bool = False
    without_cache: bool = False
    extra: tuple[str, ...] = ()


EXTRA = ("token_type_ids",)


def inputs_of(model: Any) -> PackedInputs:
    """Return what the model needs for packed documents, whether or not it can be trained on them."""
    taken = forward_parameters(model)
    inner = unwrapped(model)
    return PackedInputs(
        first_position(inner),
        attention_of(inner).startswith(FLASH),
        "use_cache" in taken and any(getattr(config, "use_cache", False) for config in _configurations(inner)),
        tuple(name for name in EXTRA if name in taken),
    )


def why_not_packed(model: Any) -> str | None:
    """Return why documents cannot share a row of this model, as a part of a sentence; None if they can.

    A causal language model of transformers derives attention within documents from positions that restart. A model
    whose forward takes `cu_seq_lens_q` or `seq_idx` by name is taken at its word.
    """
    inner, taken = unwrapped(model), forward_parameters(model)
    name = type(inner).__name__
    if (adapters := _prompt_learning(inner)) is not None:
        return f"{adapters} puts tokens of its own before every row, and not before every document"
    own = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    if getattr(getattr(own, "config", None), "is_encoder_decoder", False):
        return f"{name} has an encoder, which attends to all documents of a row"
    if not shifts_labels(own):
        return (
            f"{name} is not a causal language model: its tokens attend to those after them, or its labels are of rows"
        )
    if "position_ids" not in taken:
        return f"the forward of {name} takes no position_ids, from which it would know where documents start"
    if {"cu_seq_lens_q", "seq_idx"} & {*taken}:
        return None
    if (layer := _recurrent_layer(own)) is not None:
        return f"{name} has layers that go from token to token over the ends of documents ({layer})"
    if not any(_makes_masks(module) for module in own.modules()):
        return f"{name} does not derive its attention mask from position_ids, so that documents would see each other"
    return None


def first_position(model: nn.Module) -> int:
    """Return the position of the first token. Models like RoBERTa count from the one after that of padding."""
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and hasattr(module, "create_position_ids_from_input_ids"):
            return padding + 1
    return 0


def attention_of(model: nn.Module) -> str:
    """Return the name of the model's attention implementation; empty if it has none to choose from."""
    found = (getattr(config, "_attn_implementation", None) for config in _configurations(model))
    return next((name for name in found if isinstance(name, str)), "")


def _configurations(model: nn.Module) -> Iterator[Any]:
    """Yield the configuration of the model and those of its modules, each once."""
    seen = set[int]()
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and id(config) not in seen:
            seen.add(id(config))
            yield config


def _prompt_learning(model: Any) -> str | None:
    """Return the kind of PEFT's prompt learning that the model has; None if it has none."""
    for config in (getattr(model, "peft_config", None) or {}).values():
        if getattr(config, "is_prompt_learning", False):
            return type(config).__name__.removesuffix("Config")
    return None


def _recurrent_layer(model: nn.Module) -> str | None:
    """Return the kind of a layer that is not attention; None if there is none."""
    for config in _configurations(model):
        for kind in getattr(config, "layer_types", None) or ():
            if str(kind) not in ATTENTION_LAYERS:
                return str(kind)
    for module in model.modules():
        kind = type(module).__name__
        if any(part in kind.lower() for part in RECURRENT):
            return kind
    return None


def _makes_masks(module: nn.Module) -> bool:
    """Return whether the module's forward calls a function of transformers that makes masks by position."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return code is not None and not MASK_MAKERS.isdisjoint(_names_in(code))


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function uses, also in functions within it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)
