"""Tensors as parts, and parts as tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from hexloop.ports.state import Part

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The safetensors name of each type."""

TYPES = {name: dtype for dtype, name in DTYPES.items()}


def part_of(name: str, tensor: Tensor) -> Part:
    """The whole tensor as one part; its bytes are copied to the host when they are read."""

    def read() -> memoryview:
        flat = tensor.detach().contiguous().cpu().reshape(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")

    return Part(name, DTYPES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), read, tensor)


def tensor_of(part: Part) -> Tensor:
    """A new tensor of the part's type and shape that shares no memory with the part.

    Raises ValueError, naming the part, where its bytes are not as many as its shape takes.
    """
    tensor = torch.empty(part.shape, dtype=TYPES[part.dtype])
    data = part.read()
    if len(data) != tensor.nbytes:
        raise ValueError(f"{part.name} has {len(data)} bytes, and its shape {part.shape} takes {tensor.nbytes}.")
    if tensor.numel():
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = data
    return tensor
