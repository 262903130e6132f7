"""How a batch gets to the device and into the model, and the check of the first one: is it what forward takes?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any

from hexloop.adapters.batches.torch.collate import TOKENIZE
from hexloop.adapters.batches.torch.structure import Transfer, row_count, shallow_copy, transfer_to, unchanged
from hexloop.adapters.trainable.torch.forward import forward_parameters, named_by_position
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.errors import DataError, InputsError
from hexloop.domain.wording import did_you_mean, enumeration

__all__ = ["shallow_copy"]
"""An adapter's name that the rest of the app gets from here."""

MOST_NAMED = 6
"""The arguments of a forward that a message lists."""

BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


Inspect = Callable[[Any], None]


def batch_preparation(parts: TrainerParts) -> tuple[Transfer, Inspect]:
    """Return how a training batch gets to the device, and how the first one is checked before.

    The user's own step or loss may take any batch; the standard ones take mappings of stacked tensors.
    """
    takes_any = parts.hooks.takes_any_batch
    transfer = batch_transfer(parts, takes_any)
    if takes_any:
        return transfer, lambda _batch: None
    named = named_by_position(parts.model, parts.has_own_loss)
    return transfer, lambda batch: check_first_batch(parts, named(batch))


def batch_transfer(parts: TrainerParts, takes_any: bool) -> Transfer:
    """Return what moves a batch to the device and, unless the user's code `takes_any` batch, names its tensors."""
    transfer = transfer_to(parts.adapters.device.name, non_blocking=True)
    if takes_any:
        return transfer
    named = named_by_position(parts.model, parts.has_own_loss)
    return named if transfer is unchanged else lambda batch: named(transfer(batch))


def checked_batches(parts: TrainerParts, loader: Any, transfer: Transfer) -> Transfer:
    """Return what moves the batches of an evaluation, and checks the names in the first of them."""
    left = [getattr(loader, "dataset", None)]

    def transferred(batch: Any) -> Any:
        batch = transfer(batch)
        if left and isinstance(batch, Mapping) and len(batch):
            _check(parts, left.pop(), list(map(str, batch)))
        return batch

    return transfer if parts.hooks.predicts_any_batch else transferred


def check_first_batch(parts: TrainerParts, batch: Any) -> None:
    """Raise DataError if a batch is not a mapping of stacked samples, and InputsError if forward does not take it."""
    if batch is None:
        raise DataError("The data_collator returned None instead of a batch; let it return a dictionary of tensors.")
    if not isinstance(batch, Mapping):
        raise DataError(
            f"The data_collator returned a value of type {type(batch).__name__}, but the model is called with "
            "keyword arguments; let it return a dictionary of tensors whose first dimension is the batch."
        )
    if not batch:
        raise DataError(_why_empty(parts))
    if row_count(batch) == 0:
        raise DataError(
            f"The data_collator returned {', '.join(map(str, batch))} without a batch dimension; "
            "let it stack its samples into tensors whose first dimension is the batch."
        )
    _check(parts, parts.train_dataset, list(map(str, batch)))


def _check(parts: TrainerParts, data: Any, names: Sequence[str]) -> None:
    """Raise InputsError if a batch of `data` with entries of these names is not what forward takes."""
    if parts.hooks.prepares_inputs or parts.unwrapped_model._forward_pre_hooks:
        return  # the user changes the inputs on the way
    _refuse_labels_alone(parts, data, names)
    parameters = _certain_parameters(parts)
    if parameters is not None:
        _check_names(parts, data, parameters, names)


def _certain_parameters(parts: TrainerParts) -> Mapping[str, Parameter] | None:
    """Return the parameters of forward, if it is certain to be called with the batch as it is; None otherwise.

    It is not if forward is decorated or wrapped by another model, or the loss is computed from its outputs.
    """
    model = parts.unwrapped_model
    if hasattr(model, "get_base_model") or parts.compute_loss_func is not None or parts.label_smoother:
        return None
    with suppress(TypeError, ValueError):
        return signature(model.forward, follow_wrapped=False).parameters
    return None


def _refuse_labels_alone(parts: TrainerParts, data: Any, names: Sequence[str]) -> None:
    """Raise InputsError if the batch has labels and nothing else, because the inputs are texts or have other names."""
    model, main = parts.unwrapped_model, parts.main_input_name
    takes = list(forward_parameters(model))
    if main not in takes or not set(names) <= {*parts.label_names, "labels"}:
        return
    left_out = [name for name in _columns(data) if name not in {*names, "label", "label_ids"}]
    texts, forward = _texts(data, left_out), f"the forward of {type(model).__name__}"
    if texts:
        raise InputsError(
            f"The batch has only {enumeration(names)}: the data's {_columns_text(texts)} left out, because {forward} "
            f"takes {_some(takes)} as tensors, and texts cannot be stacked. {TOKENIZE}"
        )
    if hasattr(model, "main_input_name"):  # a model of transformers, which cannot do without
        others = f" (the data's {_columns_text(left_out)} left out)" if left_out else ""
        raise InputsError(
            f"The batch has only {enumeration(names)}{others}, and {forward} takes {_some(takes)}. Make {main} of the "
            "data first, such as with dataset.map (texts with a tokenizer) or in a data_collator with "
            "remove_unused_columns=False, or rename the column that has it."
        )


def _check_names(parts: TrainerParts, data: Any, parameters: Mapping[str, Parameter], names: Sequence[str]) -> None:
    """Raise InputsError if forward needs an input that the batch does not have, or does not take one that it has."""
    forward, takes = f"the forward of {type(parts.unwrapped_model).__name__}", list(parameters)
    if any(each.kind is Parameter.POSITIONAL_ONLY for each in parameters.values()):
        return
    missing = [
        name
        for name, each in parameters.items()
        if each.kind in BY_NAME and each.default is Parameter.empty and name not in names
    ]
    # Reading a sample may draw random numbers, so only where something is missing.
    left_out = [name for name in _columns(data) if name not in names] if missing else []
    texts = _texts(data, left_out) if left_out else []
    if set(missing) & set(texts):
        raise InputsError(
            f"The batch has only {enumeration(names)}: the data's {_columns_text(texts)} left out, because {forward} "
            f"takes {enumeration(takes)} as tensors, and texts cannot be stacked. {TOKENIZE}"
        )
    if missing:
        similar = did_you_mean(missing[0], left_out, "")
        told = (
            f" The data's {_columns_text(left_out)} not among them, because forward takes no such argument."
            if left_out and parts.args.remove_unused_columns and parts.signature_columns is None
            else ""
        )
        hint = f" ({similar})" if similar else ""
        raise InputsError(
            f"The batch lacks {enumeration(missing)}{hint}, which {forward} needs: it has "
            f"{enumeration(names)}.{told} Rename the column of the data to {missing[0]}, or let data_collator add it."
        )
    surplus = [name for name in names if name not in parameters]
    if surplus and not any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values()):
        raise InputsError(
            f"The batch has {enumeration(surplus)}, which {forward} does not take: its parameters are "
            f"{enumeration(takes) if takes else 'none'}. Rename the column, let data_collator leave it out, or set "
            "remove_unused_columns=True."
        )


def _why_empty(parts: TrainerParts) -> str:
    """Return why a batch has no columns."""
    found, takes = _columns(parts.train_dataset), list(forward_parameters(parts.unwrapped_model))
    forward = f"the forward of {type(parts.unwrapped_model).__name__} takes {enumeration(takes) if takes else 'none'}"
    texts = _texts(parts.train_dataset, found)
    if (
        found
        and not set(found) & {*takes, *parts.label_names, "label", "label_ids"}
        and parts.args.remove_unused_columns
    ):
        step = TOKENIZE if texts else "Rename the columns of the data, or set remove_unused_columns=False."
        return f"None of the data's columns reaches the model: they are {enumeration(found)}, and {forward}. {step}"
    if found and len(texts) == len(found):
        return f"The batch is empty: the data's {_columns_text(texts)} texts, and {forward}, as tensors. {TOKENIZE}"
    return (
        "The data_collator returned an empty batch; let it return a dictionary of tensors whose first dimension is the "
        f"batch: {forward}."
    )


def _texts(dataset: Any, names: Sequence[str]) -> list[str]:
    """Return which columns of a data set hold texts in its first sample; none if that cannot be found out."""
    with suppress(Exception):  # a data set of the user, on the way to an error message
        first = dataset[0]
        return [name for name in names if isinstance(first[name], str)]
    return []


def _some(names: Sequence[str]) -> str:
    """Return the names, of which models of transformers have dozens."""
    return enumeration(names) if len(names) <= MOST_NAMED else f"{', '.join(names[:MOST_NAMED])} and others"


def _columns_text(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {enumeration(names)} {'are' if len(names) > 1 else 'is'}"


def _columns(dataset: Any) -> list[str]:
    """Return the columns of a data set, or the names in its first sample; none if they cannot be found out."""
    with suppress(Exception):  # a data set of the user, on the way to an error message
        names = getattr(dataset, "column_names", None)
        return list(names if names else dataset[0])
    return []
