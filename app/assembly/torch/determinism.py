"""Global state that training reads or sets: random streams, determinism flags, and which run uses them."""

from __future__ import annotations

import logging
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import define, field

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters, cpu_device
from hexloop.ports.device import Device
from hexloop.ports.state import Part

log = logging.getLogger("hexloop")

# Flags of torch and the environment

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}
"""Environment variables that make cuBLAS and FlashAttention deterministic."""

Flag = tuple[Callable[[], Any], Callable[[Any], None], Any]
"""A global flag that a run sets and restores: how it is read and set, and the wanted value."""


def flags_for(args: TrainingArguments, device: Device) -> list[Flag]:
    """Return the flags for TF32 and deterministic kernels, if the arguments require them."""
    flags: list[Flag] = []
    if (tf32 := _tf32(args, device)) is not None:
        flags.append((_products, _set_products, ("high", "tf32") if tf32 else ("highest", "ieee")))
        flags.append((_cudnn_formats, _set_cudnn_formats, ("tf32", "tf32") if tf32 else ("ieee", "ieee")))
    if args.full_determinism:
        flags.append((torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True))
        for name, value in (("benchmark", False), ("deterministic", True)):
            cudnn = torch.backends.cudnn
            flags.append((partial(getattr, cudnn, name), partial(setattr, cudnn, name), value))
        for variable, wanted in VARIABLES.items():
            flags.append((partial(os.environ.get, variable), partial(_set_variable, variable), wanted))
    return flags


def _tf32(args: TrainingArguments, device: Device) -> bool | None:
    """Return whether to use TF32, None to leave torch's flags as they are.

    As in transformers, compiled models use it unless the arguments say otherwise, or train in fp16.
    """
    if args.tf32 is not None or not args.torch_compile or args.fp16 or "tf32" not in device.capabilities.precisions:
        return args.tf32
    log.info("TF32 is on, because torch_compile=True; set tf32=False to compute in full fp32.")
    return True


def _products() -> tuple[str, str]:
    """Return how torch computes fp32 products: its precision of that name, and the format, "tf32", "ieee" or "none".

    torch does not tell the precision if a script has set the format only.
    """
    form = torch.backends.cuda.matmul.fp32_precision
    try:
        return torch.get_float32_matmul_precision(), form
    except RuntimeError:
        return "high" if form == "tf32" else "highest", form


def _set_products(wanted: tuple[str, str]) -> None:
    torch.set_float32_matmul_precision(wanted[0])
    if torch.backends.cuda.matmul.fp32_precision != wanted[1]:
        torch.backends.cuda.matmul.fp32_precision = wanted[1]


def _cudnn_formats() -> tuple[str, str]:
    """Return the formats in which cuDNN computes convolutions and recurrent layers in fp32, "tf32" or "ieee"."""
    cudnn: Any = torch.backends.cudnn
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def _set_cudnn_formats(formats: tuple[str, str]) -> None:
    """Set both through `allow_tf32`, unless they differ, so that scripts can still read that flag."""
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = formats[0] == "tf32"
    if formats != _cudnn_formats():
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = formats


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


# Runs that share the random streams of this process


@define(eq=False)
class GlobalState:
    """The random streams and flags of one live run. Of several live runs, one holds the global state at a time."""

    device: Device
    flags: Sequence[Flag]
    thread: int = field(factory=threading.get_ident, init=False)
    _streams: list[Part] | None = field(default=None, init=False)
    _flags_before: list[Any] = field(factory=list, init=False)

    def take(self) -> None:
        """Put this run's streams and flags in force, and keep those of the run that held the global state."""
        holder = _live.holder
        if holder is self:
            return
        if holder is not None:
            holder._streams = list(holder.device.export())
            holder._restore_flags()
        if self._streams is not None:
            self.device.load(self._streams)
        for read, write, wanted in self.flags:
            self._flags_before.append(read())
            write(wanted)
        _live.holder = self

    def release(self) -> None:
        """Restore the flags at the end of the run."""
        _live.runs.discard(self)
        if _live.holder is self:
            self._restore_flags()
            _live.holder = None

    def _restore_flags(self) -> None:
        for (_, write, _), before in zip(self.flags, self._flags_before, strict=False):
            write(before)
        self._flags_before.clear()


@define
class _LiveRuns:
    holder: GlobalState | None = None
    runs: set[GlobalState] = field(factory=set)


_live = _LiveRuns()


def take_global_state(device: Device, flags: Sequence[Flag]) -> GlobalState:
    """Take the global state for a new run; warn if another run is live in another thread."""
    state = GlobalState(device, flags)
    if any(run.thread != state.thread for run in _live.runs):
        warnings.warn(
            "Two runs are live in two threads of this process. They share no state, files or callbacks, but both draw "
            "from torch's random generators, so neither is reproducible; step them from one thread, or use processes.",
            stacklevel=2,
        )
    _live.runs.add(state)
    state.take()
    return state


@define
class IsolatedRandomness:
    """A context whose random draws do not affect the random streams of a live run. No-op if no run is live.

    leaks: they do affect them, as in transformers, but a checkpoint that is saved in between has the earlier streams.
    """

    device: Device
    leaks: bool = False
    _holder: GlobalState | None = field(default=None, init=False)
    _streams: list[Part] | None = field(default=None, init=False)

    def __enter__(self) -> IsolatedRandomness:
        self._holder = _live.holder
        self._streams = list(self.device.export()) if _live.runs else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._streams is not None and _live.holder is self._holder and not self.leaks:
            self.device.load(self._streams)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Put the streams of the run back in force within the block."""
        if self._streams is None:
            yield
            return
        isolated = list(self.device.export())
        self.device.load(self._streams)
        try:
            yield
        finally:
            if _live.holder is self._holder:
                self._streams = list(self.device.export())
                self.device.load(isolated)


@contextmanager
def seeded(device: Device, seed: int) -> Iterator[None]:
    """Seed the random streams; restore those of a live run afterwards."""
    with IsolatedRandomness(device):
        device.seed(seed)
        yield


def environment_of(adapters: Adapters) -> dict[str, str]:
    """Return facts on which the last bits of a result may depend."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": adapters.device.name,
        "precision": adapters.precision.name,
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


# Without a Trainer

SYNCHRONOUS = VARIABLES | dict.fromkeys(("CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"), "1")
"""Environment variables that make kernels deterministic if they are set before CUDA, or its like, starts."""


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the random generators of Python, numpy and torch, on every device.

    deterministic: also restrict torch to deterministic kernels; operations that have none raise RuntimeError.
    """
    cpu_device().seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed every random generator, and restrict torch to deterministic kernels, for the rest of the process.

    warn_only: operations without such a kernel warn instead of raising RuntimeError. Call it before the first use of a
    device, because CUDA reads its environment when it starts. (The argument `full_determinism` does this for the length
    of a run.)
    """
    set_seed(seed)
    os.environ.update(SYNCHRONOUS)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
