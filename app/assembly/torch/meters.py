"""What a run of torch is measured by: time spent on compiling, the most that its devices can compute, and profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hexloop.adapters.device.torch import FORMATS
from hexloop.adapters.device.torch.kinds import Kind, known_kinds
from hexloop.adapters.profiler.torch import CompileSeconds, TorchProfiler
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.torch.determinism import computes_in_tf32
from hexloop.ports.device import Device
from hexloop.ports.process import Clock

__all__ = ["TorchProfiler", "compiling", "peak_flops"]


def _kind_of(device: Device) -> Kind | None:
    return known_kinds().get(device.name.partition(":")[0])


@contextmanager
def compiling(device: Device, clock: Clock) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds spent on compiling: by torch.compile, and by the device's runtime."""
    own, kind = CompileSeconds(clock.monotonic), _kind_of(device)
    try:
        yield own if kind is None else lambda: own() + kind.compile_seconds()
    finally:
        own.close()


def peak_flops(parts: TrainerParts, given: float | None) -> float | None:
    """Return the operations per second that the devices of this process do at most, in the format of its products.

    None if that is not known. given: those of one device, as the user knows them.
    """
    device = parts.adapters.device
    kind, number = _kind_of(device), device.name.partition(":")[2]
    one = given
    if one is None and kind is not None:
        one = kind.peak(int(number or 0), product_format(parts))
    together = max(1, parts.args.n_gpu) * (1 if kind is None else kind.driven())
    return None if one is None else one * together


def product_format(parts: TrainerParts) -> str:
    """Return the name of the format of the model's products: that of the run, or else of most of its weights."""
    precision, device = str(parts.adapters.precision.name), parts.adapters.device
    if precision != "fp32":
        return precision
    values = Counter[Any]()
    for each in parts.unwrapped_model.parameters():
        values[each.dtype] += each.numel()
    for kind, _ in values.most_common(1):
        if kind in FORMATS:
            return FORMATS[kind]
    return "tf32" if "tf32" in device.capabilities.precisions and computes_in_tf32() else "fp32"
