"""What a model returned under automatic mixed precision, in the precision that a loss should be computed in."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


def in_full_precision(outputs: Any) -> Any:
    """`outputs` with float32 in place of half precision: a tensor, or a tuple, list or mapping of outputs."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.dtype in HALVES else outputs
    if isinstance(outputs, Mapping):
        converted: Any = copy(outputs)
        for name, value in outputs.items():
            converted[name] = in_full_precision(value)
        return converted
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*map(in_full_precision, outputs))
    if isinstance(outputs, tuple | list):
        return type(outputs)(map(in_full_precision, outputs))
    return outputs
