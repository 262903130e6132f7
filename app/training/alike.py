"""Whether the processes of a run were started alike."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

from hexloop.adapters.trainable.torch.layouts import shape_of
from hexloop.app.training.sharded import layout_of
from hexloop.app.wiring.parts import TrainerParts
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.collectives import Json

MAY_DIFFER = frozenset({"local_rank", "log_level", "log_level_replica", "logging_dir", "run_name"})
"""Arguments that a process may have for itself."""

LIBRARIES = ("hexloop", "torch", "numpy", "safetensors", "transformers", "accelerate", "deepspeed", "peft")
"""What computes, shares and saves: other versions of it may do so otherwise."""

MOST_TOLD = 8


def refuse_unlike(parts: TrainerParts) -> None:
    """Raise ConfigurationError, on every process, where arguments, versions, model or data are not everywhere the same.

    One small message a process; what differs is told by key and rank, only where anything does.
    """
    collectives = parts.adapters.collectives
    if collectives.world_size == 1:
        return
    own = _described(parts)
    digest = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=16).hexdigest()
    if len(set(cast("list[str]", collectives.gather(digest)))) == 1:
        return
    everybody = cast("list[dict[str, Any]]", collectives.gather(cast(Json, own)))
    problems = []
    for rank, theirs in enumerate(everybody):
        for key in sorted(theirs.keys() | everybody[0].keys()):
            first, other = everybody[0].get(key), theirs.get(key)
            if first != other:
                problems.append(
                    f"Rank {rank} has {key}={other}, but rank 0 has {first}; start all processes with the same."
                )
    raise ConfigurationError(problems[:MOST_TOLD])


def _described(parts: TrainerParts) -> dict[str, Any]:
    """What has to be the same, as plain values."""
    arguments = {name: value for name, value in parts.args.to_dict().items() if name not in MAY_DIFFER}
    model, layout = parts.adapters.parallelism.unwrap(parts.model), layout_of(parts)
    shapes = [
        [name, *shape_of(tensor, tensor, layout), str(tensor.dtype)]
        for name, tensor in layout.parameters(model).items()
    ]
    described = {
        **{
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in arguments.items()
        },
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        **{f"the version of {library}": _version(library) for library in LIBRARIES},
        "the model": type(model).__qualname__,
        "the model's parameters": hashlib.blake2b(json.dumps(shapes).encode(), digest_size=8).hexdigest(),
    }
    length = _length(parts.train_dataset)
    return described if length is None else {**described, "the number of training samples": length}


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none installed"


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
