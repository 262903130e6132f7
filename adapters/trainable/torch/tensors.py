"""Tensors as parts, and parts as tensors."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor

from hexloop.domain.errors import CheckpointError
from hexloop.ports.state import Part

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The safetensors name of each type."""

TYPES = {name: dtype for dtype, name in DTYPES.items()}


def part_of(name: str, tensor: Tensor) -> Part:
    """The whole tensor as one part; its bytes are copied to the host when they are read.

    Raises CheckpointError for a tensor that is no plain array of numbers, or of a type that safetensors lacks.
    """
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, on {tensor.device}, and safetensors has no place "
            "for that; keep a plain tensor of another type there."
        )

    def read() -> memoryview:
        flat = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().reshape(-1)
        return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")

    return Part(name, DTYPES[tensor.dtype], tuple(tensor.shape), 0, tensor.numel(), read, tensor)


def tensor_of(part: Part) -> Tensor:
    """A new tensor of the part's type and shape that shares no memory with the part.

    Raises ValueError, naming the part, where its bytes are not as many as its shape takes, before it takes memory.
    """
    return _tensor(part, part.read, prod(part.shape)).view(part.shape)


def run_of(part: Part, begin: int, length: int) -> Tensor:
    """The elements of a whole tensor's part from `begin` on, as a new flat tensor. Raises ValueError as `tensor_of`."""
    return _tensor(part, lambda: part.run(begin, length), length)


def _tensor(part: Part, read: Callable[[], memoryview], count: int) -> Tensor:
    if part.dtype not in TYPES:
        raise ValueError(f"{part.name} is of the type {part.dtype}, which this torch does not have.")
    dtype, data = TYPES[part.dtype], read()
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{part.name} has {len(data)} bytes, and its shape {part.shape} takes another number of them.")
    tensor = torch.empty(count, dtype=dtype)
    if count:
        tensor.view(torch.uint8).numpy()[:] = data
    return tensor
