"""The weights of a checkpoint of the reference library, whichever of its formats they are in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from hexloop.adapters.contents.checkpoint.contents import parts_of
from hexloop.adapters.contents.checkpoint.safetensors_files import is_weights
from hexloop.adapters.trainable.torch.serialization import tensor_part
from hexloop.app.foreign.names import WEIGHTS, WEIGHTS_INDEX
from hexloop.app.foreign.pickled import read_pickled, refuse_irregular
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import read_json
from hexloop.ports.state import Part

CHUNK = 1 << 22


def weight_parts(folder: str) -> list[Part]:
    """The weights, each tensor once, under the first of its names. Raises CheckpointError where there are none."""
    names = os.listdir(folder)
    if any(is_weights(name) for name in names):
        weights = [name for name in names if is_weights(name)]
        return parts_of("model", weights, lambda path, start=0: _chunks(folder, path, start))
    if WEIGHTS in names:
        return _distinct(read_pickled(folder, WEIGHTS), WEIGHTS)
    if WEIGHTS_INDEX in names:
        held: dict[str, Any] = {}
        for shard in _shards(folder, names):
            held |= read_pickled(folder, shard)
        return _distinct(held, WEIGHTS_INDEX)
    raise CheckpointError(
        f"You chose to import {folder}, but it has neither model.safetensors nor {WEIGHTS}, whole or in parts; import "
        "a checkpoint with the model's own weights (adapters and those of sharded runs are not read)."
    )


def _distinct(state: Any, name: str) -> list[Part]:
    """A part for each tensor; one that several names have (tied weights) leaves once."""
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{name} holds something else than the weights of a model, by name.")
    seen: dict[object, str] = {}
    for key, tensor in state.items():
        seen.setdefault(
            (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) if len(tensor.shape) else key, key
        )
    return [tensor_part(key, state[key]) for key in seen.values()]


def _shards(folder: str, names: list[str]) -> list[str]:
    refuse_irregular(os.path.join(folder, WEIGHTS_INDEX))
    with open(os.path.join(folder, WEIGHTS_INDEX), "rb") as file:
        try:
            shards = sorted(set(read_json(file.read())["weight_map"].values()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{WEIGHTS_INDEX} is not an index of weights: {error!r}.") from error
    if missing := [shard for shard in shards if shard not in names]:
        raise CheckpointError(f"{WEIGHTS_INDEX} names files that are not beside it: {', '.join(map(repr, missing))}.")
    return shards


def _chunks(folder: str, name: str, start: int) -> Iterator[memoryview]:
    path = os.path.join(folder, name)
    refuse_irregular(path)
    with open(path, "rb") as file:
        file.seek(start)
        while chunk := file.read(CHUNK):
            yield memoryview(chunk)
