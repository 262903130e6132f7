"""The weights of checkpoints: loaded into a model of torch, and two tensors compared."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen

from hexloop.adapters.contents.adapter_files import DEFAULT, adapter_in, model_paths
from hexloop.adapters.contents.checkpoint import CheckpointContents, parts_of
from hexloop.adapters.contents.safetensors_files import MODEL
from hexloop.adapters.trainable.torch.serialization import TYPES
from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.assembly.storage import chunks_of, files_below
from hexloop.app.assembly.torch.saved_weights import saved_weights
from hexloop.domain.errors import CheckpointError


@frozen
class LoadedKeys:
    """The keys of a model that loaded weights lack, and the loaded ones that the model does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_model_weights(model: torch.nn.Module, checkpoint: CheckpointFiles) -> None:
    """Load the weights of a checkpoint into a model. Raises CheckpointError if they are another model's."""
    CheckpointContents({MODEL: saved_weights(model).own_state()}).restore_weights(checkpoint.files, checkpoint.read)


def load_folder_weights(model: torch.nn.Module, folder: str) -> LoadedKeys:
    """Load the weights in a folder into a model; return the keys that were missing or unexpected.

    The folder is a checkpoint, or what `save_model` or `save_pretrained` wrote: safetensors, in one file or with an
    index, or adapters of PEFT. Raises CheckpointError if there are none, or if a shape differs; the model is then
    unchanged.
    """
    own = {DEFAULT, *(getattr(model, "peft_config", None) or ())}
    paths = {path: file for path, file in files_below(Path(folder)).items() if adapter_in(path) in (None, *own)}
    if not model_paths(paths):
        raise CheckpointError(
            f"{folder} has no weights: it needs model.safetensors, or shards with an index, or adapters of PEFT."
        )

    def open_file(path: str, start: int = 0, /) -> Iterator[memoryview]:
        return chunks_of(paths[path], start)

    try:
        return LoadedKeys(*saved_weights(model).own_state().load_present(parts_of(MODEL, paths, open_file)))
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype for a dtype name of safetensors, such as "BF16"."""
    return TYPES[name]


@frozen
class Largest:
    """The largest absolute difference between two tensors, with its index and both elements."""

    difference: float
    index: tuple[int, ...]
    values: tuple[Any, Any]


BLOCK = 1 << 20
"""Elements that are compared at a time."""


def largest_difference(
    first: memoryview, second: memoryview, dtype: str, shape: tuple[int, ...]
) -> tuple[int, Largest | None]:
    """Return how many elements differ, and the largest difference, None if no value differs. NaN counts as largest."""
    kind = torch_dtype(dtype)
    width, count, largest = kind.itemsize, 0, None
    for start in range(0, math.prod(shape), BLOCK):
        block = slice(start * width, (start + BLOCK) * width)
        raw = [torch.frombuffer(view[block], dtype=torch.uint8) for view in (first, second)]
        unequal = (raw[0] != raw[1]).view(-1, width).any(dim=1)
        if not unequal.any():
            continue
        count += int(unequal.sum())
        one, other = (each.view(kind) for each in raw)
        distances = _distances(one, other, unequal)
        most = int(distances.argmax())
        difference = float(distances[most])
        if difference and (largest is None or _is_larger(difference, largest.difference)):
            index = tuple(int(each) for each in np.unravel_index(start + most, shape))
            largest = Largest(difference, index, (one[most].item(), other[most].item()))
    return count, largest


def _distances(one: torch.Tensor, other: torch.Tensor, unequal: torch.Tensor) -> torch.Tensor:
    """Return the absolute difference of each element; 0 if both are the same or both are NaN."""
    if one.is_complex():
        one, other, least = one.to(torch.complex128), other.to(torch.complex128), 0.0
    else:
        # Integers too large for a double to distinguish differ by at least 1.
        least = 0.0 if one.is_floating_point() else 1.0
        one, other = one.double(), other.double()
    distances = (one - other).abs().clamp(min=least)
    return torch.where(unequal & ~(one.isnan() & other.isnan()), distances, 0.0)


def _is_larger(difference: float, largest: float) -> bool:
    """Return whether a difference is larger than the largest so far; NaN is larger than any number."""
    return not math.isnan(largest) and not difference <= largest
