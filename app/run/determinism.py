"""Which runs are live in this process, and whose random streams and global switches are in force."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import define, field

from hexloop.app.arguments import TrainingArguments
from hexloop.ports.device import Device
from hexloop.ports.state import Part


@define
class GlobalSwitches:
    """Global switches of torch that a run sets for itself and puts back: name of the switch to the wanted value."""

    wanted: dict[str, tuple[Callable[[], Any], Callable[[Any], None], Any]] = field(factory=dict)
    _before: dict[str, Any] = field(factory=dict, init=False)

    def apply(self) -> None:
        """Set the switches, noting how they stood."""
        for name, (read, write, value) in self.wanted.items():
            self._before[name] = read()
            write(value)

    def restore(self) -> None:
        """Put the switches back."""
        for name, before in self._before.items():
            self.wanted[name][1](before)
        self._before.clear()


@define(eq=False)
class Control:
    """One live run's hold on what is global: the random streams and the switches."""

    device: Device
    switches: GlobalSwitches
    thread: int = field(factory=threading.get_ident, init=False)
    _streams: list[Part] | None = field(default=None, init=False)

    def take(self) -> None:
        """Put this run's streams and switches in force, keeping those of the run that had control."""
        holder = _live.holder
        if holder is self:
            return
        if holder is not None:
            holder._streams = list(holder.device.export())
            holder.switches.restore()
        if self._streams is not None:
            self.device.load(self._streams)
        self.switches.apply()
        _live.holder = self

    def release(self) -> None:
        """The run is over."""
        _live.runs.discard(self)
        if _live.holder is self:
            self.switches.restore()
            _live.holder = None


@define
class _Live:
    holder: Control | None = None
    runs: set[Control] = field(factory=set)


_live = _Live()


def begin_control(device: Device, switches: GlobalSwitches) -> Control:
    """A new run begins and takes control; warns where another is live in another thread."""
    control = Control(device, switches)
    if any(run.thread != control.thread for run in _live.runs):
        warnings.warn(
            "Two runs are live in two threads of this process. They share no state, files or callbacks, but both draw "
            "from torch's random generators, so neither is reproducible; step them from one thread, or use processes.",
            stacklevel=2,
        )
    _live.runs.add(control)
    control.take()
    return control


@define
class OwnDraws:
    """Random numbers drawn while a run is live, of which its streams show nothing afterwards.

    Used as a context around whoever draws. Where no run is live the streams simply go on.
    """

    device: Device
    _holder: Control | None = field(default=None, init=False)
    _runs: list[Part] | None = field(default=None, init=False)

    def __enter__(self) -> OwnDraws:
        self._holder = _live.holder
        self._runs = list(self.device.export()) if _live.runs else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._runs is not None and _live.holder is self._holder:
            self.device.load(self._runs)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """In between, the streams are as the run left them, and what is drawn is the run's."""
        if self._runs is None:
            yield
            return
        own = list(self.device.export())
        self.device.load(self._runs)
        try:
            yield
        finally:
            if _live.holder is self._holder:
                self._runs = list(self.device.export())
                self.device.load(own)


@contextmanager
def seeded(device: Device, seed: int) -> Iterator[None]:
    """Begin the random streams anew; afterwards those of a live run are where it left them."""
    kept = list(device.export()) if _live.runs else None
    device.seed(seed)
    try:
        yield
    finally:
        if kept is not None:
            device.load(kept)


VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}
"""What cuBLAS and FlashAttention read before they give the same bits each time."""


def switches_for(args: TrainingArguments) -> GlobalSwitches:
    """TF32 products and deterministic kernels, where they are asked for; everything else is left as it is."""
    switches = GlobalSwitches()
    if args.tf32 is not None:
        switches.wanted["matmul precision"] = (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "high" if args.tf32 else "highest",
        )
    if args.full_determinism:
        switches.wanted["deterministic algorithms"] = (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
            True,
        )
        switches.wanted["cudnn benchmark"] = (
            lambda: torch.backends.cudnn.benchmark,
            lambda value: setattr(torch.backends.cudnn, "benchmark", value),
            False,
        )
        switches.wanted["cudnn deterministic"] = (
            lambda: torch.backends.cudnn.deterministic,
            lambda value: setattr(torch.backends.cudnn, "deterministic", value),
            True,
        )
        for name, value in VARIABLES.items():
            switches.wanted[name] = (partial(os.environ.get, name), partial(_set_variable, name), value)
    return switches


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


SYNCHRONOUS = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "ASCEND_LAUNCH_BLOCKING": "1",
    "HCCL_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}
"""What the environment has to say before CUDA, or its like, starts, so that its kernels are deterministic."""


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the generators of python, numpy and torch, on every device.

    deterministic: also let torch use deterministic kernels only; an operation that has none raises RuntimeError then.
    """
    import torch

    from hexloop.adapters.device.torch.base import CpuDevice

    CpuDevice().seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed every generator, and let torch use deterministic kernels only, for the rest of the process.

    warn_only: whether an operation that has no such kernel warns instead of raising RuntimeError. Call it before the
    first use of a device: CUDA reads its environment when it starts. (The argument `full_determinism` does this for
    the length of a run.)
    """
    import torch

    set_seed(seed)
    os.environ.update(SYNCHRONOUS)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
