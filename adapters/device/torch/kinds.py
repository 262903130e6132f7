"""The kinds of devices that torch drives, each a row: what the rest of hexloop asks about a kind before there is one.

To add one that torch knows, add a row. `AcceleratorDevice` is the adapter of all that have torch's usual module; what a
kind does in another way is a method of a subclass.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from attrs import frozen

from hexloop.adapters.device.torch import AcceleratorDevice, CpuDevice, CudaDevice, MpsDevice
from hexloop.ports.device import Device

GIBIBYTE = 2**30
GET_TORCH = "https://pytorch.org/get-started/locally"


@frozen
class Missing:
    """Why torch finds no device of a kind, and what to do about it, if anything."""

    reason: str
    advice: str | None = None


@frozen
class Kind:
    """A kind of device.

    name: torch's. make: returns the adapter of the device with a number. numbered: devices have numbers ("cuda:0").
    together: a single process may train on all of them, each on a part of the batch. module: torch's module of the
    kind, by default that of its name. computes_on: the name that torch has for the device, if it is another one.
    """

    name: str
    make: Callable[[int], Device]
    numbered: bool = True
    together: bool = False
    module: Any = None
    computes_on: str | None = None

    @property
    def functions(self) -> Any:
        """The module with torch's functions for devices of this kind."""
        return torch.get_device_module(self.name) if self.module is None else self.module

    def is_available(self) -> bool:
        """Return whether this machine has such devices; False without the package that brings torch's module."""
        return (self.module is not None or hasattr(torch, self.name)) and bool(self.functions.is_available())

    def count(self) -> int:
        """Return how many of them torch sees."""
        return int(self.functions.device_count())

    def describe(self, number: int) -> str:
        """Return what the device with this number is, for people."""
        memory = self.functions.get_device_properties(number).total_memory / GIBIBYTE
        return f"{self.functions.get_device_name(number)}, {memory:.0f} GiB"

    def missing(self) -> Missing | None:
        """Return why there is none; None if that is not worth a word."""
        return None

    def chosen(self, local_rank: int) -> str:
        """Return the name of the device for a process with this number on its machine."""
        return f"{self.name}:{local_rank % max(1, self.count())}" if self.numbered else self.name

    def device(self, number: int) -> Device | None:
        """Return the device with this number; None if this machine does not have it."""
        return self.make(number) if self.is_available() and number < self.count() else None

    def torch_name(self, name: str) -> str:
        """Return the name under which torch has the device that is called `name`."""
        return name if self.computes_on is None else self.computes_on


class Cuda(Kind):
    """GPUs through CUDA or ROCm."""

    def missing(self) -> Missing:
        """Tell a torch without GPU support from a machine without a driver."""
        built_for = torch.version.cuda or torch.version.hip
        if built_for is None:
            advice = f"for an NVIDIA or AMD GPU, install a torch that is built for it: {GET_TORCH}"
            return Missing(f"torch {torch.__version__} is built without CUDA and ROCm", advice)
        kind, tool = ("CUDA", "nvidia-smi") if torch.version.cuda else ("ROCm", "rocm-smi")
        advice = f"check that the driver is installed ({tool} lists GPUs)"
        return Missing(f"torch is built for {kind} {built_for}, but finds no GPU", advice)


class Metal(Kind):
    """Apple's GPU, of which there is one."""

    def is_available(self) -> bool:
        """Return whether torch finds Metal."""
        return torch.backends.mps.is_available()

    def count(self) -> int:
        """Return 1 if it is there."""
        return int(self.is_available())

    def describe(self, number: int) -> str:
        """Return what it is, for people."""
        return "Apple's GPU through Metal"

    def missing(self) -> Missing:
        """Tell an old torch on a Mac from another machine."""
        if platform.system() == "Darwin":
            return Missing("torch finds no Metal", f"install a current torch on macOS 14 or later: {GET_TORCH}")
        return Missing("available on Macs only")


KINDS: dict[str, Kind] = {
    each.name: each
    for each in (
        Cuda("cuda", CudaDevice, together=True),
        Metal("mps", lambda _number: MpsDevice(), numbered=False),
        Kind("xpu", partial(AcceleratorDevice, "xpu")),
        Kind("cpu", lambda _number: CpuDevice(), numbered=False),
    )
}
"""By name, in the order in which they are preferred."""
