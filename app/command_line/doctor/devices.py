"""The devices that torch finds, and whether they really compute in the number formats that they should."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.util import find_spec

from hexloop.app.command_line.doctor.report import DeviceFound
from hexloop.ports.device import Device

GIBIBYTE = 2**30
FORMATS = ("fp32", "tf32", "bf16", "fp16")
GET_TORCH = "https://pytorch.org/get-started/locally"


def devices() -> list[DeviceFound]:
    """The processor, every card, and what is missing of the kinds that there are adapters for."""
    if find_spec("torch") is None:
        return [DeviceFound("cpu", "not known without torch", {}, f"install torch: {GET_TORCH}")]
    return [*_cpu(), *_cuda(), *_mps()]


def _cpu() -> Iterator[DeviceFound]:
    import torch

    from hexloop.adapters.device.torch.base import CpuDevice

    yield _working(CpuDevice(), f"{os.cpu_count()} cores, {torch.get_num_threads()} of torch's threads")


def _cuda() -> Iterator[DeviceFound]:
    import torch

    from hexloop.adapters.device.torch.cuda import CudaDevice

    built_for = torch.version.cuda or torch.version.hip
    if built_for is None:
        advice = f"for an NVIDIA or AMD card, install a torch that is built for it: {GET_TORCH}"
        yield DeviceFound("cuda", f"torch {torch.__version__} is built without CUDA and ROCm", {}, advice)
    elif not torch.cuda.is_available():
        kind = "CUDA" if torch.version.cuda else "ROCm"
        advice = f"see that the driver is installed ({'nvidia-smi' if torch.version.cuda else 'rocm-smi'} lists cards)"
        yield DeviceFound("cuda", f"torch is built for {kind} {built_for}, but finds no card", {}, advice)
    else:
        for index in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(index).total_memory / GIBIBYTE
            yield _working(CudaDevice(index), f"{torch.cuda.get_device_name(index)}, {memory:.0f} GiB")


def _mps() -> Iterator[DeviceFound]:
    import torch

    from hexloop.adapters.device.torch.mps import MpsDevice

    if torch.backends.mps.is_available():
        yield _working(MpsDevice(), "Apple's GPU through Metal")
    elif platform.system() == "Darwin":
        yield DeviceFound(
            "mps", "torch finds no Metal", {}, f"install a current torch on macOS 14 or later: {GET_TORCH}"
        )
    else:
        yield DeviceFound("mps", "only Macs have it", {})


def _working(device: Device, description: str) -> DeviceFound:
    present = device.capabilities.precisions
    formats = [*(name for name in FORMATS if name in present), *sorted(present.difference(FORMATS))]
    return DeviceFound(device.name, description, {name: _tried(device.name, name) for name in formats})


def _tried(device: str, precision: str) -> str:
    """Multiply two small matrices of ones in the number format: "works", or what went wrong."""
    import torch

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        product = (ones @ ones).sum().item()
    except Exception as error:  # whatever a driver raises
        return f"{type(error).__name__}: {error}"
    return "works" if product == 512 else f"a product of ones came out as {product}, not 512"
