"""Inspection of a model's forward: its parameters, its labels, and properties of its loss."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attrs import frozen
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.names import unwrapped
from hexloop.domain.errors import DataError

SHIFTING_LOSSES = ("ForCausalLM", "ForConditionalGeneration", "CsmForConditionalGeneration")
"""Loss types of transformers that compare each position with the next label."""

OTHER_DECODERS = frozenset(
    {
        "BertGenerationDecoder",
        "Gemma3ForConditionalGeneration",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GotOcr2ForConditionalGeneration",
        "MossTranscribeDiarizeForConditionalGeneration",
        "ReformerModelWithLMHead",
    }
)
"""Decoders of transformers whose names do not end like those of the others."""

CAUSAL_LOSS = "ForCausalLMLoss"
"""The function of these losses, which transformers also uses for models without a loss type, such as GPT-2."""


def forward_parameters(model: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of the forward of the user's model, inside any wrapper, also one of PEFT."""
    return dict(inspect.signature(_inner(model).forward).parameters)


def _inner(model: Any) -> Any:
    """Return the model inside all wrappers: of torch, and of PEFT."""
    model = unwrapped(model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def find_label_names(model: Any) -> list[str]:
    """Return the parameters of forward that are labels: those with "label" in their name, and answer positions."""
    names = forward_parameters(model)
    answers = ("start_positions", "end_positions") if "QuestionAnswering" in type(unwrapped(model)).__name__ else ()
    return [name for name in names if "label" in name or name in answers]


def missing_loss_advice(model: Any, inputs: Mapping[str, Any]) -> str:
    """Return why a model has returned no loss for the inputs, and what to do.

    The data may have no labels, forward may take none, or it may not return a loss in spite of them.
    """
    inner = None if model is None else unwrapped(model)
    names = [] if inner is None else find_label_names(inner)
    if inner is None or any(name in inputs for name in names):
        return 'Let forward return {"loss": ...} or (loss, ...), or pass compute_loss_func.'
    if not names:
        return (
            f"The forward of {type(inner).__name__} takes no labels, so that it cannot compute a loss; let it take "
            'labels and return {"loss": ...}, or pass compute_loss_func to compute the loss from its outputs.'
        )
    return (
        f"The data has no labels: forward takes them as {' or '.join(names)}. Name the column of the labels "
        f"{names[0]}, label or label_ids; columns of other names are left out unless forward takes them."
    )


def returns_loss_by_default(model: Any) -> bool:
    """Return whether forward computes a loss without labels: its `return_loss` is True by default."""
    parameter = forward_parameters(model).get("return_loss")
    return parameter is not None and parameter.default is True


def takes_any_keyword(model: Any) -> bool:
    """Return whether forward takes any keyword, and so the item count, or the model declares it, as in transformers."""
    inner = _inner(model)
    declared = getattr(inner, "accepts_loss_kwargs", None)
    if declared is not None:
        return bool(declared)
    return any(each.kind is each.VAR_KEYWORD for each in forward_parameters(model).values())


def shifts_by_loss_type(model: Any) -> bool:
    """Return whether the type of the model's loss is one that shifts labels, which is the rule of transformers."""
    model = unwrapped(model)
    encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return getattr(model, "loss_type", None) in SHIFTING_LOSSES and not encoder_decoder


def counts_shifted_labels(model: Any) -> bool:
    """Return whether the installed transformers counts the labels without the first one of a row, as from 5.10 on."""
    release = transformers_release()
    return shifts_by_loss_type(model) and (release is None or release >= (5, 10))


def shifts_labels(model: Any) -> bool:
    """Return whether the model's own loss compares each position with the next label."""
    model = unwrapped(model)
    if shifts_by_loss_type(model):
        return True
    untyped = getattr(model, "loss_type", None) is None and calls_loss_function(model)
    return untyped and getattr(getattr(model, "loss_function", None), "__name__", None) == CAUSAL_LOSS


def is_causal_language_model(model: Any) -> bool:
    """Return whether the model is one of transformers' decoders, whose smoothed loss shifts the labels."""
    inner = _inner(model)
    name = type(inner).__name__
    return name.endswith(("ForCausalLM", "LMHeadModel")) or name in OTHER_DECODERS


WITH_TOKENS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "WithLMHeadModel")
"""What the class names of transformers' language models end with."""


def predicts_tokens(model: Any) -> bool:
    """Return whether the model's own loss is that of tokens of a vocabulary alone.

    It is if the model is one of transformers' language models, or has output embeddings (`get_output_embeddings`) and
    a loss that shifts labels; not if the model adds the loss of a router to it.
    """
    inner = _inner(model)
    embeddings = getattr(inner, "get_output_embeddings", lambda: None)()
    if embeddings is None or getattr(getattr(inner, "config", None), "output_router_logits", False):
        return False
    return type(inner).__name__.endswith(WITH_TOKENS) or is_causal_language_model(inner) or shifts_labels(inner)


def used_columns(model: Any, label_names: Sequence[str]) -> frozenset[str] | None:
    """Return the columns that forward takes; None if it names none, so that none can be left out."""
    parameters = forward_parameters(model)
    named = [name for name, each in parameters.items() if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    if not named:
        return None
    return frozenset([*named, "label", "label_ids", *label_names])


LABELS = "labels"


@frozen
class NamedByPosition:
    """Names the tensors of a tuple or list, or a single tensor, after the parameters of forward at their positions.

    labels_last: forward takes no labels, so the last of several tensors is the labels of a loss function.
    """

    model_name: str
    names: Sequence[str]
    labels_last: bool

    def __call__(self, batch: Any) -> Any:
        """Return the batch as a mapping. Mappings, and values without tensors, are returned unchanged.

        Raises DataError if there are more tensors than names.
        """
        if isinstance(batch, (dict, Mapping)) or not isinstance(batch, tuple | list | Tensor):
            return batch
        values = [batch] if isinstance(batch, Tensor) else list(batch)
        labels = {LABELS: values.pop()} if self.labels_last and len(values) > 1 else {}
        if len(values) > len(self.names):
            raise DataError(
                f"The batch has {len(values)} tensors for forward, but the forward of {self.model_name} takes "
                f"{len(self.names)} by name ({', '.join(self.names) or 'none'}); let forward take all of them, pass "
                "compute_loss_func if the last tensor is the labels, or let data_collator return a dictionary."
            )
        return dict(zip(self.names, values, strict=False)) | labels


def named_by_position(model: Any, has_own_loss: bool) -> NamedByPosition:
    """Return what names the tensors of a batch after the parameters of the model's forward.

    has_own_loss: whether something else than the model computes the loss.
    """
    parameters = forward_parameters(model).values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return NamedByPosition(type(unwrapped(model)).__name__, names, has_own_loss and not find_label_names(model))


def default_label_names(model: Any, has_own_loss: bool) -> list[str]:
    """Return the inputs that are labels if the arguments do not name them: those of forward, or of a separate loss."""
    names = find_label_names(model)
    separate = has_own_loss and not names and not returns_loss_by_default(model)
    return [LABELS] if separate else names


def takes_item_count(model: nn.Module) -> bool:
    """Return whether the model's own loss can be divided by a number of items that it is given.

    True if the model says so (`accepts_loss_kwargs`), if its forward has a parameter `num_items_in_batch`, or if it
    forwards its keyword arguments to a `loss_function`, as transformers' models with an exchangeable loss do.
    """
    model = unwrapped(model)
    declared = getattr(model, "accepts_loss_kwargs", None)
    if declared is False:
        return False
    parameters = inspect.signature(model.forward).parameters
    if "num_items_in_batch" in parameters:
        return True
    open_ended = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return open_ended and (calls_loss_function(model) or declared is True)


def calls_loss_function(model: nn.Module) -> bool:
    """Return whether forward calls the model's exchangeable `loss_function`, as in transformers' models."""
    forward = inspect.unwrap(type(model).forward)
    return "loss_function" in getattr(getattr(forward, "__code__", None), "co_names", ())


def align_special_tokens(model: Any, processing_class: Any) -> None:
    """Set the end, beginning and padding tokens of a transformers model to those of its tokenizer; log the changes.

    Tokens that the tokenizer does not have are not changed. Other tokens that end a generated text are kept.
    """
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if not hasattr(tokenizer, "eos_token_id") or not hasattr(getattr(model, "config", None), "get_text_config"):
        return
    config, generation = model.config.get_text_config(), getattr(model, "generation_config", None)
    holders = [config] if generation is None else [config, generation]
    changed = {}
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        token = getattr(tokenizer, name)
        if token is None or all(token in _declared(holder, name) for holder in holders):
            continue
        changed[name] = token
        for holder in holders:
            several = holder is generation or isinstance(getattr(config, name, None), list)
            others = [each for each in _declared(holder, name) if each not in (None, token)]
            setattr(holder, name, [token, *others] if several and name == "eos_token_id" else token)
    if changed:
        logging.getLogger("hexloop").warning(
            "The special tokens of the tokenizer and of the model's configuration differed; the model now has %s.",
            changed,
        )


def _declared(holder: Any, name: str) -> list[int | None]:
    value = getattr(holder, name, None)
    return value if isinstance(value, list) else [value]


def cache_name() -> str:
    """Return the output with the cache of keys and values, which transformers calls "cache" from release 5.24 on."""
    release = transformers_release()
    return "cache" if release is not None and release >= (5, 24) else "past_key_values"


def transformers_release() -> tuple[int, ...] | None:
    """Return the major and minor number of the installed transformers; None if there is none that is numbered so."""
    try:
        return tuple(map(int, version("transformers").split(".")[:2]))
    except (PackageNotFoundError, ValueError):
        return None
