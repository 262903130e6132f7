"""Which device a process trains on: detected, or named by the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, Protocol

from hexloop.app.environment import lower_variable
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.device import Device

KINDS = "hexloop.adapters.device.torch.kinds:known_kinds"
"""The function that returns the table of kinds, which imports torch."""


class DeviceKind(Protocol):
    """What the app asks of a row of the table; see `hexloop.adapters.device.torch.kinds.Kind`."""

    name: str
    numbered: bool
    together: bool
    compiler: str
    exchange: str | None
    launched_by: str | None
    parallel_mode: str | None
    visible: str | None

    def is_available(self) -> bool:
        """Return whether this machine has such devices."""

    def count(self) -> int:
        """Return how many."""

    def describe(self, number: int, /) -> str:
        """Return what the device with this number is."""

    def report(self) -> str | None:
        """Return what the kind's runtime counts, for people; None if it has no such report."""

    @property
    def unavailable(self) -> str:
        """Why there is none, if no package is broken."""

    def missing(self) -> Any:
        """Return why there is none, with `reason` and `advice`; None if that is not worth a word."""

    def broken(self) -> Any:
        """Return which package of the kind is installed and cannot be imported, as `missing` does; None if none is."""

    def chosen(self, local_rank: int) -> str:
        """Return the name of the device for a process with this number on its machine."""

    def device(self, number: int) -> Device | None:
        """Return the device with this number; None if this machine does not have it."""

    def connect(self, number: int, local_rank: int, local_world_size: int) -> None:
        """Make the device with this number that of this process, before it meets the other processes of its run."""

    def torch_name(self, name: str) -> str:
        """Return the name under which torch has the device that is called `name`."""


def device_kinds() -> Mapping[str, DeviceKind]:
    """Return the kinds of devices by name, in the order in which they are preferred; the CPU is the last."""
    kinds: Mapping[str, DeviceKind] = resolve_name(KINDS)()
    return kinds


def kind_of(name: str) -> DeviceKind | None:
    """Return the kind of the device that is called `name`; None if hexloop has no adapter for it."""
    return device_kinds().get(name.partition(":")[0])


def available_kinds() -> Iterable[DeviceKind]:
    """Return the kinds that this machine has, the CPU last."""
    return [kind for kind in device_kinds().values() if kind.is_available()]


def detect_device(local_rank: int = 0) -> str:
    """Return the device that ACCELERATE_TORCH_DEVICE names, or this process's accelerator, or the CPU.

    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER determine which GPUs torch sees, and their numbers. Raises
    ConfigurationError if what follows the colon of the named device is not a number.
    """
    named = lower_variable("ACCELERATE_TORCH_DEVICE", "")
    if named:
        _, colon, number = named.partition(":")
        if colon and not re.fullmatch("[0-9]{1,9}", number):
            raise _unusable(named, "what follows the colon must be a number, as in cuda:0")
        return named
    try:
        return next(iter(available_kinds())).chosen(local_rank)
    except ImportError:  # there is no torch, whose devices these are
        return "cpu"


def missing_device(name: str) -> ConfigurationError:
    """Return the error that says why this machine does not have the device that is called `name`."""
    row = kind_of(name)
    if row is None:
        return _unusable(name, "hexloop has no adapter for it")
    found = row.broken()
    return _unusable(
        name, "torch does not find it on this machine" if found is None else f"{found.reason}; {found.advice}"
    )


def _unusable(name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"The device {name} cannot be used: {reason}. Choose another, pass device=..., or set use_cpu=True."
    )


def torch_name(name: str) -> str:
    """Return the name under which torch has the device that is called `name`."""
    kind = kind_of(name)
    return name if kind is None else kind.torch_name(name)


def connect_device(name: str, local_rank: int, local_world_size: int) -> None:
    """Make the device that is called `name` that of this process, if it has a number, before the processes meet."""
    number = name.partition(":")[2]
    if number and (row := kind_of(name)) is not None:
        row.connect(int(number), local_rank, local_world_size)


def usual_exchange(name: str) -> str | None:
    """Return the back end of torch.distributed for the device that is called `name`; None for the one of torch."""
    kind = kind_of(name)
    return None if kind is None else kind.exchange


def own_parallel_mode(name: str) -> str | None:
    """Return the value of ParallelMode for runs on the device that is called `name`; None if they have none."""
    kind = kind_of(name)
    return None if kind is None else kind.parallel_mode


def missing_launched(option: str) -> str | None:
    """Return why this machine cannot start processes for the kind of device of an option of `hexloop launch`.

    Returns None if it can.
    """
    row = next(row for row in device_kinds().values() if row.launched_by == option)
    if row.is_available():
        return None
    found = row.broken()
    return row.unavailable if found is None else f"{found.reason}; {found.advice}"


def runtime_report(name: str) -> str | None:
    """Return what the runtime of the device that is called `name` counts, for people; None if there is no report."""
    kind = kind_of(name)
    return None if kind is None else kind.report()


def broken_before(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the kinds with broken packages that are preferred to that of the device called `name`, and what `broken`
    returned.
    """
    for kind in device_kinds().values():
        if kind.name == name.partition(":")[0]:
            return
        if (found := kind.broken()) is not None:
            yield kind.name, found


def usual_compiler(name: str) -> str:
    """Return the backend with which torch.compile usually compiles for the device that is called `name`."""
    kind = kind_of(name)
    return "inductor" if kind is None else kind.compiler


def count_devices(name: str, world_size: int) -> int:
    """Return on how many devices a process with this one trains: all GPUs if it is alone, else one; 0 on the CPU.

    A device with a number other than 0, or named by the environment, is the only one.
    """
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return 0
    row = kind_of(name)
    chosen = world_size > 1 or int(number or 0) or lower_variable("ACCELERATE_TORCH_DEVICE", "")
    if row is None or not row.together or chosen:
        return 1
    return max(1, row.count())


def count_accelerators() -> int:
    """Return how many numbered accelerators of the preferred kind this machine has."""
    kind = next(iter(available_kinds()))
    return kind.count() if kind.numbered else 0


def devices_of_worker(worker: int, workers: int) -> dict[str, str]:
    """Return the environment variables with which one of several processes of this machine sees its own devices.

    Each has an equal part of the numbered accelerators of the preferred kind that this process sees; with more
    processes than devices, several share one. Nothing is returned if there is at most one device, or if the kind has no
    such variable.
    """
    kind = next(iter(available_kinds()))
    count = kind.count() if kind.numbered else 0
    if kind.visible is None or count < 2:
        return {}
    seen = [each.strip() for each in os.environ.get(kind.visible, "").split(",") if each.strip()]
    devices = seen if len(seen) == count else [str(number) for number in range(count)]
    own = devices[worker::workers] if workers <= count else [devices[worker % count]]
    return {kind.visible: ",".join(own)}
