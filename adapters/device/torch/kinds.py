"""The kinds of devices that torch drives, each a row: what the rest of hexloop asks about a kind before there is one.

To add one that torch knows, add a row. `AcceleratorDevice` is the adapter of all that have torch's usual module; what a
kind does in another way is a method of a subclass.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from attrs import field, frozen

from hexloop.adapters.device.torch import AcceleratorDevice, CpuDevice, CudaDevice, MpsDevice, total_memory
from hexloop.adapters.device.torch.peaks import peak_of, tpu_peak
from hexloop.domain.wording import variable_truth
from hexloop.ports.device import Device, DeviceCapabilities

GIBIBYTE = 2**30
USE_XLA = "USE_TORCH_XLA"
TPU_TYPE = "TPU_ACCELERATOR_TYPE"
GET_TORCH = "https://pytorch.org/get-started/locally"


@frozen
class Missing:
    """Why torch finds no device of a kind, and what to do about it, if anything."""

    reason: str
    advice: str | None = None


@cache
def import_error(package: str) -> Exception | None:
    """Import a package that adds a kind of device to torch; return the error, if it cannot be imported."""
    try:
        import_module(package)
    except Exception as error:  # such packages raise anything where their driver is missing
        return error
    return None


@cache
def is_installed(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    return find_spec(package.partition(".")[0]) is not None


@frozen
class Kind:
    """A kind of device.

    name: torch's. make: returns the adapter of the device with a number. numbered: devices have numbers ("cuda:0").
    together: a single process may train on all of them, each on a part of the batch. module: torch's module of the
    kind, by default that of its name. computes_on: the name that torch has for the device, if it is another one.
    packages: those that add the kind to torch when they are imported. compiler: the usual backend of torch.compile.
    exchange: the back end of torch.distributed for a run of several processes, by default the one that torch names.
    launched_by: the option of `hexloop launch` that starts a process for each device of a kind that cannot be counted
    before. parallel_mode: the value of transformers' ParallelMode for all runs on the kind, if it has one of its own.
    visible: the environment variable with the numbers of the devices that a process sees.
    """

    name: str
    make: Callable[[int], Device]
    numbered: bool = True
    together: bool = False
    module: Any = None
    computes_on: str | None = None
    packages: tuple[str, ...] = ()
    compiler: str = "inductor"
    exchange: str | None = None
    launched_by: str | None = None
    parallel_mode: str | None = None
    visible: str | None = None

    @property
    def functions(self) -> Any:
        """The module with torch's functions for devices of this kind."""
        return torch.get_device_module(self.name) if self.module is None else self.module

    def is_available(self) -> bool:
        """Return whether this machine has such devices; False without the package that brings torch's module."""
        if not all(is_installed(each) and import_error(each) is None for each in self.packages):
            return False
        return (self.module is not None or hasattr(torch, self.name)) and bool(self.functions.is_available())

    def count(self) -> int:
        """Return how many of them torch sees."""
        return int(self.functions.device_count())

    def describe(self, number: int) -> str:
        """Return what the device with this number is, for people."""
        named = getattr(self.functions, "get_device_name", None)
        described = self.name if named is None else str(named(number))
        memory = total_memory(self.functions, number) / GIBIBYTE
        return f"{described}, {memory:.0f} GiB" if memory else described

    def missing(self) -> Missing | None:
        """Return why there is none; None if that is not worth a word."""
        return self.broken()

    def broken(self) -> Missing | None:
        """Return which package of the kind is installed and cannot be imported; None if there is no such package."""
        for package in filter(is_installed, self.packages):
            if (error := import_error(package)) is not None:
                reason = str(error).strip().partition("\n")[0]
                name = package.partition(".")[0]
                advice = f"install the {name} that was built for torch {torch.__version__}, or remove it"
                return Missing(f"{package} cannot be imported ({type(error).__name__}: {reason})", advice)
        return None

    @property
    def unavailable(self) -> str:
        """Why there is none, if no package is broken: which is not installed, or that torch finds none."""
        missing = [package.partition(".")[0] for package in self.packages if not is_installed(package)]
        return f"{missing[0]} is not installed" if missing else f"torch finds no device {self.name}"

    def report(self) -> str | None:
        """Return what the kind's runtime counts, for people; None if it has no such report."""
        return None

    def peak(self, number: int, precision: str) -> float | None:
        """Return the floating-point operations per second that the device with this number does at most.

        None if that is not known for its model, or for the format in which products are computed.
        """
        named = getattr(self.functions, "get_device_name", None)
        return None if named is None else peak_of(str(named(number)), precision)

    def driven(self) -> int:
        """Return how many devices one process drives together, as one."""
        return 1

    def compile_seconds(self) -> float:
        """Return the seconds that the kind's runtime has spent on compiling in this process, besides torch's own."""
        return 0.0

    def chosen(self, local_rank: int) -> str:
        """Return the name of the device for a process with this number on its machine."""
        return f"{self.name}:{local_rank % max(1, self.count())}" if self.numbered else self.name

    def device(self, number: int) -> Device | None:
        """Return the device with this number; None if this machine does not have it."""
        return self.make(number) if self.is_available() and number < self.count() else None

    def connect(self, number: int, local_rank: int, local_world_size: int) -> None:
        """Make the device with this number that of this process, before it meets the other processes of its run."""
        if self.numbered:
            self.functions.set_device(number)

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


@frozen
class Xla(Kind):
    """The device of XLA, of which a process has one. USE_TORCH_XLA, a variable of accelerate, turns it off.

    _compiled: how many programs torch_xla had compiled when its metrics were read last, and the seconds that this took.
    """

    _compiled: list[float] = field(factory=lambda: [0, 0.0], eq=False, init=False)

    def is_available(self) -> bool:
        """Return whether torch_xla can be imported, and is not turned off."""
        return _xla_is_on() and all(is_installed(each) and import_error(each) is None for each in self.packages)

    def broken(self) -> Missing | None:
        """Return that torch_xla cannot be imported, unless it is turned off."""
        return super().broken() if _xla_is_on() else None

    @property
    def unavailable(self) -> str:
        """Why there is none: torch_xla is not installed, or turned off."""
        return super().unavailable if _xla_is_on() else f"{USE_XLA} turns XLA off"

    def count(self) -> int:
        """Return 1 if it is there."""
        return int(self.is_available())

    def describe(self, number: int) -> str:
        """Return on what XLA runs, for people."""
        return f"XLA on {import_module('torch_xla.runtime').device_type()}"

    def report(self) -> str:
        """Return torch_xla's counts of compilations, transfers and operations that XLA lacks."""
        return str(import_module("torch_xla.debug.metrics").metrics_report())

    def peak(self, number: int, precision: str) -> float | None:
        """Return the figure of a TPU of the type that the environment names, as it does on Google Cloud."""
        return tpu_peak(os.environ.get(TPU_TYPE, ""), precision)

    def driven(self) -> int:
        """Return the number of devices that SPMD spreads programs over; 1 without it."""
        runtime = import_module("torch_xla.runtime")
        return int(runtime.global_runtime_device_count() // runtime.process_count()) if runtime.is_spmd() else 1

    def compile_seconds(self) -> float:
        """Return what torch_xla's metrics say. They are read only after a compilation, because that takes a while."""
        metrics = import_module("torch_xla.debug.metrics")
        compiled = metrics.counter_value("UncachedCompile") or 0
        if compiled != self._compiled[0]:
            found = metrics.metric_data("CompileTime")
            self._compiled[:] = [compiled, 0.0 if found is None else found[1] / 1e9]
        return self._compiled[1]

    def chosen(self, local_rank: int) -> str:
        """Return the name of the device of this process."""
        return f"{self.name}:0"

    def connect(self, number: int, local_rank: int, local_world_size: int) -> None:
        """Let XLA connect the processes; those of torch.distributed exchange what is in host memory."""
        import_module("hexloop.adapters.device.torch.xla").connect(local_rank, local_world_size)


def _xla_is_on() -> bool:
    return variable_truth(USE_XLA, os.environ.get(USE_XLA, "1"))


def _xla(_number: int) -> Device:
    device: Device = import_module("hexloop.adapters.device.torch.xla").XlaDevice()
    return device


def _by_package(
    name: str,
    *packages: str,
    precisions: tuple[str, ...] = (),
    compiler: str = "inductor",
    visible: str | None = None,
) -> Kind:
    """Return the row of a kind that packages add to torch. precisions: by default those that torch's module states."""
    able = DeviceCapabilities(name, frozenset(precisions), pins_memory=True) if precisions else None
    make = partial(AcceleratorDevice, name, capabilities=able)
    return Kind(name, make, packages=packages, compiler=compiler, visible=visible)


KINDS: dict[str, Kind] = {
    each.name: each
    for each in (
        Xla("xla", _xla, packages=("torch_xla",), exchange="gloo", launched_by="tpu", parallel_mode="tpu"),
        Metal("mps", lambda _number: MpsDevice(), numbered=False),
        _by_package("mlu", "torch_mlu", visible="MLU_VISIBLE_DEVICES"),
        _by_package("sdaa", "torch_sdaa", visible="SDAA_VISIBLE_DEVICES"),
        _by_package("musa", "torch_musa", visible="MUSA_VISIBLE_DEVICES"),
        _by_package("npu", "torch_npu", visible="ASCEND_RT_VISIBLE_DEVICES"),
        _by_package(
            *("hpu", "habana_frameworks.torch", "habana_frameworks.torch.distributed.hccl"),
            precisions=("fp32", "bf16"),  # it has no scaler of gradients, which fp16 needs
            compiler="hpu_backend",
            visible="HABANA_VISIBLE_MODULES",
        ),
        Cuda("cuda", CudaDevice, together=True, visible="CUDA_VISIBLE_DEVICES"),
        Kind("xpu", partial(AcceleratorDevice, "xpu"), visible="ZE_AFFINITY_MASK"),
        _by_package(
            *("neuron", "torch_neuronx"),
            precisions=("fp32", "bf16"),
            compiler="neuron",
            visible="NEURON_RT_VISIBLE_CORES",
        ),
        Kind("cpu", lambda _number: CpuDevice(), numbered=False),
    )
}
"""By name, in the order in which they are preferred, which is that of transformers and accelerate."""


def known_kinds() -> Mapping[str, Kind]:
    """Return the table, with the accelerator that a program has registered with torch, if it is no row of it."""
    registered = torch.accelerator.current_accelerator()
    if registered is None or registered.type in KINDS:
        return KINDS
    return {registered.type: Kind(registered.type, partial(AcceleratorDevice, registered.type)), **KINDS}
