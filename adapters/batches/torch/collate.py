"""Data collators: functions that make a batch from a list of samples; and the columns that go into a batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define
from torch import Tensor
from torch.utils.data import default_collate

from hexloop.domain.errors import ConfigurationError, DataError

Collate = Callable[[list[Any]], Any]

LABELS = ("label", "label_ids")
"""Names of a sample's label that become "labels" in the batch."""


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Any:
    """Stack the fields of the samples, each of shape (batch, ...), by the names and types in the first sample.

    "label" and "label_ids" become "labels". Integers under "label" and lists of integers under "label_ids" become
    int64; other values become float32, e.g. a list under "label", which has a value per class; tensors keep their type.
    Texts and None are left out. Samples that are tuples, lists or tensors are stacked position by position, as torch
    does; of samples that are neither these nor mappings, the attributes are stacked.

    Args:
        features: the samples of the batch.
        return_tensors: "pt" for torch tensors, "np" for numpy arrays.

    Raises:
        ConfigurationError: for any other value.
        DataError: for a column whose values cannot be stacked, with the rows that differ.
    """
    if return_tensors not in _STACKS:
        raise ConfigurationError(f"return_tensors={return_tensors!r} is not supported; choose 'pt' or 'np'.")
    if return_tensors == "pt" and isinstance(features[0], tuple | list | Tensor | np.ndarray):
        return _stacked(list(features), default_collate, f"samples of type {type(features[0]).__name__}")
    stack, stack_labels = _STACKS[return_tensors]
    _refuse_without_columns(features)
    rows = [row if isinstance(row, Mapping) else vars(row) for row in features]
    batch: dict[str, Any] = {}
    label_name = next((name for name in LABELS if rows[0].get(name) is not None), None)
    if label_name is not None:
        listed = label_name == "label_ids"
        batch["labels"] = _column(rows, label_name, lambda values: stack_labels(values, listed))
    for name, value in rows[0].items():
        if name not in LABELS and value is not None and not isinstance(value, str):
            batch[name] = _column(rows, name, stack)
    return batch


def _refuse_without_columns(features: Sequence[Any]) -> None:
    """Raise DataError for samples that are texts, numbers or None."""
    for number, row in enumerate(features):
        if row is None or isinstance(row, str | bytes | int | float | complex | np.generic):
            found = "None" if row is None else f"a value of type {type(row).__name__}"
            step = "Leave out missing samples" if row is None else "Name the value, as in {'x': value}"
            raise DataError(
                f"Sample {number} of the batch is {found}, but a sample must be a dictionary from the names of the "
                "model's arguments to values, or a tuple of tensors. "
                f"{'Tokenize the texts' if isinstance(row, str) else step}, or pass a data_collator that makes a batch "
                "from such samples."
            )


def _column(rows: Sequence[Mapping[str, Any]], name: str, stack: Callable[[list[Any]], Any]) -> Any:
    """Return the stacked values of a column. Raises DataError, with the first row that does not fit."""
    lacking = [number for number, row in enumerate(rows) if name not in row]
    if lacking:
        raise DataError(
            f"default_data_collator cannot stack the column {name!r}: row 0 of the batch has it, and row {lacking[0]} "
            "does not. Give every sample the same columns, or pass a data_collator that fills it in."
        )
    return _stacked([row[name] for row in rows], stack, f"the column {name!r}")


def _stacked(values: list[Any], stack: Callable[[list[Any]], Any], what: str) -> Any:
    """Return the stacked values of `what`. Raises DataError, with the first row that differs."""
    try:
        return stack(values)
    except (ValueError, TypeError, RuntimeError) as error:
        first = _form(values[0])
        for number, value in enumerate(values):
            if (form := _form(value)) != first:
                raise DataError(
                    f"default_data_collator cannot stack {what}: row 0 of the batch has {first}, and row {number} has "
                    f"{form}. Bring the rows to the same length before training, or pass a data_collator that pads "
                    "them, such as DataCollatorWithPadding(tokenizer)."
                ) from error
        if "memory" in str(error).lower():  # another batch size may fit
            raise
        raise DataError(
            f"default_data_collator cannot stack {what}: {str(error).rstrip('.')} (row 0 of the batch has {first}). "
            "Convert it to numbers or tensors, leave it out, or pass a data_collator."
        ) from error


def _form(value: Any) -> str:
    """Describe the shape or the type of a value."""
    if isinstance(value, Tensor | np.ndarray):
        return f"the shape {tuple(value.shape)}"
    if isinstance(value, list | tuple):
        inner = {_form(each) for each in value if isinstance(each, list | tuple)}
        of = f", of which each has {inner.pop()}" if len(inner) == 1 else ", with entries of different lengths"
        return f"{len(value)} entries{of if any(isinstance(each, list | tuple) for each in value) else ''}"
    return "a number" if isinstance(value, int | float | np.number) else f"a value of type {type(value).__name__}"


def _stack_labels(labels: list[Any], listed: bool) -> Tensor:
    """Stack labels. `listed`: the type is that of the first element of the first label, and not that of the label."""
    first = labels[0]
    if isinstance(first, Tensor) and first.ndim:
        return torch.stack(labels)
    sample = first
    if listed and isinstance(sample, Sequence | np.ndarray) and len(sample):
        sample = sample[0]
    if isinstance(sample, Tensor | np.ndarray) and not sample.ndim:
        sample = sample.item()
    dtype = torch.int64 if isinstance(sample, int | np.integer) else torch.float32
    return torch.tensor(np.asarray(labels), dtype=dtype)


def _stack(values: list[Any]) -> Tensor:
    if isinstance(values[0], Tensor):
        return torch.stack(values)
    if isinstance(values[0], np.ndarray):
        return torch.from_numpy(np.stack(values))
    return torch.tensor(values)


def _stack_arrays(values: list[Any]) -> Any:
    return np.stack(values) if isinstance(values[0], np.ndarray) else np.array(values)


def _stack_array_labels(labels: list[Any], listed: bool) -> Any:
    first = labels[0]
    return np.stack(labels) if isinstance(first, np.ndarray) and first.ndim else _stack_labels(labels, listed).numpy()


_STACKS: Mapping[str, tuple[Callable[[list[Any]], Any], Callable[[list[Any], bool], Any]]] = {
    "pt": (_stack, _stack_labels),
    "np": (_stack_arrays, _stack_array_labels),
}
"""The functions that stack fields and labels, by the value of `return_tensors`."""


@define
class DefaultDataCollator:
    """`default_data_collator` with a fixed `return_tensors`.

    Args:
        return_tensors: the kind of the tensors: "pt", or "np" for arrays of numpy.
    """

    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Any], return_tensors: str | None = None) -> Any:
        """Return the batch. `return_tensors` overrides the attribute."""
        return default_data_collator(features, return_tensors or self.return_tensors)


@define
class DataCollatorWithPadding:
    """Pads the samples of a batch to the same length with the tokenizer's `pad`.

    Args:
        tokenizer: the tokenizer that pads; "label" and "label_ids" become "labels".
        padding: True or "longest" pads to the longest sample of the batch, "max_length" to `max_length`; False does not
            pad.
        max_length: the length, in tokens, of `padding="max_length"`.
        pad_to_multiple_of: rounds the length up to a multiple of this number.
        return_tensors: the kind of arrays: "pt" or "np".
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[Any]) -> Any:
        """Return the padded batch, with fields of shape (batch, longest sample).

        Raises DataError for a column that the tokenizer does not pad and whose rows have different lengths.
        """
        _refuse_without_columns(features)
        try:
            batch = self.tokenizer.pad(
                features,
                padding=self.padding,
                max_length=self.max_length,
                pad_to_multiple_of=self.pad_to_multiple_of,
                return_tensors=self.return_tensors,
            )
        except ValueError as error:
            raise DataError(self._explained(features, error)) from error
        for name in LABELS:
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch

    def _explained(self, features: list[Any], error: ValueError) -> str:
        """Return which columns the tokenizer cannot pad; the error of the tokenizer if it is about something else."""
        padded = set(getattr(self.tokenizer, "model_input_names", ()))
        rows = [dict(row) for row in features]
        kind, own = type(self.tokenizer).__name__, ", ".join(sorted(padded)) or "its own inputs"
        for name, first in rows[0].items():
            differing = [number for number, row in enumerate(rows) if _form(row.get(name)) != _form(first)]
            if name not in padded and (differing or isinstance(first, str)):
                what = "contains texts"
                if differing:
                    number = differing[0]
                    what = (
                        f"has {_form(first)} in row 0 of the batch, and {_form(rows[number].get(name))} in row {number}"
                    )
                return (
                    f"DataCollatorWithPadding cannot stack the column {name!r}: it {what}, and {kind} pads only {own}. "
                    "Leave the column out, or pass a data_collator that pads it, such as transformers' "
                    "DataCollatorForTokenClassification or DataCollatorForSeq2Seq."
                )
        return f"DataCollatorWithPadding could not make a batch: {error}"


def collate_columns(collate: Collate, columns: frozenset[str], features: list[Any]) -> Any:
    """Collate only the fields in `columns` of each sample."""
    if isinstance(features[0], (dict, Mapping)) and not features[0].keys() <= columns:
        features = [{name: row[name] for name in row if name in columns} for row in features]
    return collate(features)


TOKENIZE = (
    "Tokenize the texts first, such as with dataset.map(lambda rows: tokenizer(rows[...], truncation=True), "
    "batched=True), or pass a data_collator that does."
)
"""The step that is missing if data are texts."""

RENAME = "Rename the columns, or set remove_unused_columns=False and select the columns in the data_collator."


def without_unused_columns(dataset: Any, columns: frozenset[str]) -> Any:
    """Return a `datasets.Dataset` with only the columns that the model takes. Raises ConfigurationError without one."""
    unused = [name for name in dataset.column_names if name not in columns]
    if len(unused) == len(dataset.column_names):
        kinds = getattr(dataset, "features", None) or {}
        texts = any(getattr(kinds.get(name), "dtype", None) in ("string", "large_string") for name in unused)
        raise ConfigurationError(
            f"The model takes none of the dataset's columns: the dataset has {', '.join(unused)}, and the model "
            f"takes {', '.join(sorted(columns))}. {TOKENIZE if texts else RENAME}"
        )
    if unused:
        logging.getLogger("hexloop").info(
            "The columns %s of the dataset are left out, because the model's forward does not take them; "
            "set remove_unused_columns=False to keep them.",
            ", ".join(unused),
        )
    return dataset.remove_columns(unused)
