"""The random streams in a checkpoint of the reference library, and back."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hexloop.adapters.device.torch.base import decode_state, encode_state
from hexloop.app.foreign.names import RANDOM, RANDOM_OF_FIRST
from hexloop.app.foreign.pickled import read_pickled
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.ports.state import Part


def random_parts(folder: str) -> list[Part]:
    """What a device exports, of the streams in the folder; those of this moment, with a warning, where it has none."""
    from hexloop.adapters.device.torch.base import CpuDevice

    name = next((name for name in (RANDOM, RANDOM_OF_FIRST) if os.path.lexists(os.path.join(folder, name))), None)
    if name is None:
        warnings.warn(f"{folder} has no {RANDOM}, so the random streams go on from where they are now.", stacklevel=4)
        return list(CpuDevice().export())
    if name == RANDOM_OF_FIRST:
        warnings.warn(
            "The checkpoint is of several processes: the random streams of the first are taken over, the others' not.",
            stacklevel=4,
        )
    found = read_pickled(folder, name)
    try:
        version, words, gauss = found["python"]
        kind, keys, position, has_gauss, cached = found["numpy"]
        return [
            json_part("python", [version, list(words), gauss]),
            json_part("numpy", [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]),
            json_part("torch", encode_state(found["cpu"])),
            *_cards(found.get("cuda")),
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{os.path.join(folder, name)} makes no sense: {error!r}.") from error


def _cards(states: Tensor | list[Tensor] | None) -> list[Part]:
    if states is None:
        return []
    if isinstance(states, Tensor):
        return [json_part("device", encode_state(states))]
    return [
        json_part("device", encode_state(states[0])),
        json_part("devices", [encode_state(state) for state in states]),
    ]


def foreign_streams(parts: dict[str, Part]) -> dict[str, Any]:
    """The streams that a device exported, as the reference library saves them in a single process."""
    version, words, gauss = json_value(parts["python"])
    kind, keys, position, has_gauss, cached = json_value(parts["numpy"])
    streams: dict[str, Any] = {
        "python": (version, tuple(words), gauss),
        "numpy": (kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached),
        "cpu": decode_state(json_value(parts["torch"])),
    }
    if "device" in parts:
        streams["cuda"] = decode_state(json_value(parts["device"])).to(torch.uint8)
    return streams
