"""A model's weights as one file, or as several with an index, under the usual names."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from hexloop.adapters.contents.checkpoint import documents
from hexloop.adapters.contents.checkpoint.tensors import Tensor, tensor_file
from hexloop.domain.checkpoints.dealing import deal
from hexloop.domain.errors import CheckpointError
from hexloop.ports.contents import OpenFile
from hexloop.ports.files import File

MODEL = "model"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_METADATA = {"format": "pt"}


def is_weights(path: str) -> bool:
    """Whether a file of this name holds weights, or says where they are."""
    return path in (WEIGHTS, INDEX) or bool(_SHARD.fullmatch(path))


def weight_files(tensors: list[Tensor], largest: int) -> Iterator[File]:
    """The files of a model, none above `largest` bytes of tensors, unless a single tensor is."""
    shards = _shards(tensors, largest)
    names = shard_names(MODEL, len(shards))
    for name, shard in zip(names, shards, strict=True):
        yield tensor_file(name, shard, _METADATA)
    if len(shards) > 1:
        yield _index(names, shards)


def dealt_files(keeper: str, tensors: list[Tensor], largest: int, rank: int, writers: int) -> Iterator[File]:
    """Those files of a keeper that a process writes, of several that each hold the tensors that fall to it by `deal`.

    Each file is of tensors of one process. The first also writes the index of the model's, where these are several.
    """
    owners = deal([tensor.size for tensor in tensors], writers)
    shards = [
        (owner, shard)
        for owner, its in groupby(zip(owners, tensors, strict=True), key=itemgetter(0))
        for shard in _shards((tensor for _, tensor in its), largest)
    ]
    names = shard_names(keeper, len(shards))
    metadata = _METADATA if keeper == MODEL else None
    for name, (owner, shard) in zip(names, shards, strict=True):
        if owner == rank:
            yield tensor_file(name, shard, metadata)
    if keeper == MODEL and rank == 0 and len(shards) != 1:
        yield _index(names, [shard for _, shard in shards])


def shard_names(keeper: str, count: int) -> list[str]:
    """The usual names of the parts of a file; a single one is the file."""
    if count == 1:
        return [f"{keeper}.safetensors"]
    return [f"{keeper}-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def keeper_of(path: str) -> str:
    """Whose tensors a file of this name holds, all of them or some."""
    return re.sub(r"(-\d{5}-of-\d{5})?\.safetensors$", "", path)


def tensor_paths(keeper: str, names: Collection[str]) -> list[str]:
    """Which of a checkpoint's files hold the tensors of a keeper other than the model."""
    pattern = re.compile(re.escape(keeper) + r"(-\d{5}-of-\d{5})?\.safetensors")
    return sorted(name for name in names if pattern.fullmatch(name))


def _index(names: list[str], shards: list[list[Tensor]]) -> File:
    index = {
        "metadata": {"total_size": sum(tensor.size for shard in shards for tensor in shard)},
        "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
    }
    return File(INDEX, [(json.dumps(index, indent=2) + "\n").encode()])


def weight_paths(names: Collection[str], open_file: OpenFile) -> list[str]:
    """Which of a checkpoint's files hold the weights. Raises CheckpointError where they are not all there."""
    if WEIGHTS in names:
        return [WEIGHTS]
    if INDEX not in names:
        raise CheckpointError(f"The checkpoint holds no weights: it has neither {WEIGHTS} nor {INDEX}.")
    index = documents.read(open_file(INDEX))
    try:
        paths = sorted(set(index["weight_map"].values()))
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{INDEX} is not an index of shards: {error!r}.") from error
    missing = [path for path in paths if path not in names]
    if missing:
        raise CheckpointError(
            f"{INDEX} names shards that the checkpoint does not hold: {', '.join(map(str, missing))}."
        )
    return paths


def _shards(tensors: Iterable[Tensor], largest: int) -> list[list[Tensor]]:
    """The tensors in order, in groups of at most `largest` bytes; at least one group."""
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.size > largest:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.size
    return shards
