"""Data collators: functions that make a batch from a list of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define
from torch import Tensor
from torch.utils.data import default_collate

from hexloop.domain.errors import ConfigurationError

Collate = Callable[[list[Any]], Any]

LABELS = ("label", "label_ids")
"""Names of a sample's label that become "labels" in the batch."""


def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> Any:
    """Stack the fields of the samples, each of shape (batch, ...), by the names and types in the first sample.

    "label" and "label_ids" become "labels". Integers under "label" and lists of integers under "label_ids" become
    int64; other values become float32, e.g. a list under "label", which has a value per class; tensors keep their type.
    Texts and None are left out. Samples that are tuples, lists or tensors are stacked position by position, as torch
    does; of samples that are neither these nor mappings, the attributes are stacked.
    return_tensors: "pt" for torch tensors, "np" for numpy arrays. Raises ConfigurationError for any other value.
    """
    if return_tensors not in _STACKS:
        raise ConfigurationError(f"return_tensors={return_tensors!r} is not supported; choose 'pt' or 'np'.")
    if return_tensors == "pt" and isinstance(features[0], tuple | list | Tensor | np.ndarray):
        return default_collate(list(features))
    stack, stack_labels = _STACKS[return_tensors]
    rows = [row if isinstance(row, Mapping) else vars(row) for row in features]
    batch: dict[str, Any] = {}
    label_name = next((name for name in LABELS if rows[0].get(name) is not None), None)
    if label_name is not None:
        batch["labels"] = stack_labels([row[label_name] for row in rows], label_name == "label_ids")
    for name, value in rows[0].items():
        if name not in LABELS and value is not None and not isinstance(value, str):
            batch[name] = stack([row[name] for row in rows])
    return batch


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
    """`default_data_collator` with a fixed `return_tensors`."""

    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Any], return_tensors: str | None = None) -> Any:
        """Return the batch. `return_tensors` overrides the attribute."""
        return default_data_collator(features, return_tensors or self.return_tensors)


@define
class DataCollatorWithPadding:
    """Pads the samples of a batch to the same length with the tokenizer's `pad`.

    padding, max_length, pad_to_multiple_of, return_tensors: arguments of `pad`. "label" and "label_ids" become
    "labels".
    """

    tokenizer: Any
    padding: bool | str = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[Any]) -> Any:
        """Return the padded batch, with fields of shape (batch, longest sample)."""
        batch = self.tokenizer.pad(
            features,
            padding=self.padding,
            max_length=self.max_length,
            pad_to_multiple_of=self.pad_to_multiple_of,
            return_tensors=self.return_tensors,
        )
        for name in LABELS:
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


def collate_columns(collate: Collate, columns: frozenset[str], features: list[Any]) -> Any:
    """Collate only the fields in `columns` of each sample."""
    if isinstance(features[0], Mapping) and not features[0].keys() <= columns:
        features = [{name: row[name] for name in row if name in columns} for row in features]
    return collate(features)
