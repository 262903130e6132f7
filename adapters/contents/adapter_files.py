"""The files of a checkpoint that holds a model's adapters, and not its base.

The tensors of an adapter are in the files that PEFT reads: `adapter_model.safetensors`, in a folder of the adapter's
name unless that is "default". What else a run needs of the model, such as the running statistics of a normalization, is
in `adapter_state.safetensors`. In the parts of the component "model" a tensor has the path of its file before its name:
`adapter_model.safetensors/base_model.model.layer.lora_A.weight`. No tensor of a whole model has such a name, because
PyTorch allows no dot in the names of modules.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from attrs import evolve

from hexloop.adapters.contents.safetensors_files import (
    MODEL,
    Stream,
    is_weights,
    join,
    tensor_file,
    tensor_files,
    tensor_of_part,
    tensor_parts,
    weight_paths,
)
from hexloop.domain.errors import CheckpointError
from hexloop.ports.state import JSON, Part
from hexloop.ports.storage import File, OpenFile

CONFIGURATION = "adapter_config.json"

WEIGHTS = "adapter_model.safetensors"

STATE = "adapter_state.safetensors"

DEFAULT = "default"
"""The name of the adapter whose files are not in a folder of their own."""

_WEIGHTS = re.compile(rf"(?:(?P<adapter>[^/]+)/)?{re.escape(WEIGHTS)}")

_PLACED = re.compile(rf"(?P<path>(?:[^/]+/)?{re.escape(WEIGHTS)}|{re.escape(STATE)})/(?P<name>.+)", re.DOTALL)


def is_adapter_file(path: str) -> bool:
    """Return whether a file of this name holds tensors of adapters, or what else is kept of a model with them."""
    return path == STATE or _WEIGHTS.fullmatch(path) is not None


def path_of(adapter: str, name: str = WEIGHTS) -> str:
    """Return the path of a file of an adapter."""
    return name if adapter == DEFAULT else f"{adapter}/{name}"


def adapter_in(path: str) -> str | None:
    """Return the adapter whose tensors a file holds; None for a file of another kind."""
    match = _WEIGHTS.fullmatch(path)
    return None if match is None else match["adapter"] or DEFAULT


def placed(name: str) -> tuple[str, str] | None:
    """Return the path of its file and the name in it of a tensor of adapters; None for the tensor of a whole model."""
    match = _PLACED.fullmatch(name)
    return None if match is None else (match["path"], match["name"])


def model_paths(names: Collection[str]) -> list[str]:
    """Return the files of a checkpoint that hold the model's tensors: of the whole model, or else of its adapters."""
    return sorted(filter(is_weights, names)) or sorted(filter(is_adapter_file, names))


def model_parts(names: Collection[str], open_file: OpenFile) -> list[Part]:
    """Return the tensors of the model in a checkpoint, which are read later.

    Raises CheckpointError if a file is invalid or missing.
    """
    stream = Stream(open_file)
    if any(map(is_weights, names)) or not any(map(is_adapter_file, names)):
        return [part for path in weight_paths(names, open_file) for part in tensor_parts(stream, path)]
    return [
        evolve(part, name=f"{path}/{part.name}") for path in model_paths(names) for part in tensor_parts(stream, path)
    ]


def model_files(parts: Iterable[Part], largest: int, rank: int = 0, writers: int | None = None) -> Iterator[File]:
    """Yield those files of a model that one process writes.

    largest: bytes of a file of a whole model's weights, unless a single tensor is larger. writers: the number of
    processes to which the tensors are assigned, the others' being empty parts; None if this process has all of them.
    Adapters are assigned to the first process. Raises CheckpointError if slices of a tensor are missing.
    """
    held = [part for part in parts if part.dtype != JSON]
    by_path: dict[str, list[Part]] = {}
    for part in held:
        if (place := placed(part.name)) is not None:
            by_path.setdefault(place[0], []).append(evolve(part, name=place[1]))
    if not by_path:
        tensors = join(held) if writers is None else [tensor_of_part(part) for part in held]
        yield from tensor_files(MODEL, tensors, largest, rank, writers or 1)
        return
    if len(held) != sum(map(len, by_path.values())):
        raise CheckpointError("The model has tensors of adapters and others: it can be saved only as one or the other.")
    if rank == 0:
        for path, its in by_path.items():
            yield tensor_file(path, join(its), {"format": "pt"})


def adapters_among(paths: Sequence[str]) -> list[str]:
    """Return the adapters whose tensors are in files of these names, the one without a folder first."""
    found = [adapter for adapter in map(adapter_in, paths) if adapter is not None]
    return sorted(found, key=lambda adapter: (adapter != DEFAULT, adapter))
