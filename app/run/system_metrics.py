"""Starts what samples the machine and the GPU of a rank while a run is live."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from hexloop.app.assembly.adapters import keeps_records
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.folders import Folder
from hexloop.domain.run import Run
from hexloop.domain.system_metrics import LONGEST_NAME, SessionStart
from hexloop.domain.system_sampling import SystemSampler
from hexloop.ports.device import Device
from hexloop.ports.process import Machine

LOGGER = logging.getLogger("hexloop")


def sample_system(parts: TrainerParts, run: Run[Any, Any], cleanups: ExitStack) -> None:
    """Sample the system metrics of this rank until the run is closed, if it records what happens in it.

    cleanups: gets what ends that.
    """
    args, adapters = parts.args, parts.adapters
    folder = adapters.storage.capabilities.local_folder
    if not args.system_metrics or not keeps_records(args) or folder is None:
        return
    host, wall = platform.node()[:LONGEST_NAME], adapters.clock.wall()
    start = SessionStart(run.state.run, adapters.mesh.rank, host, os.getpid(), run.state.step, wall)
    measure = measure_of(adapters.machine, adapters.device)
    sampler = SystemSampler(measure, lambda: run.state.step, Folder(folder), start, adapters.clock, LOGGER.info)
    sampler.start()
    cleanups.callback(sampler.close)


def measure_of(machine: Machine, device: Device) -> Callable[[], Mapping[str, float]]:
    """Return what measures the machine and the device of this rank, by the names of `METRICS`."""

    def measure() -> Mapping[str, float]:
        use, memory = device.use(), device.memory()
        of_device = {
            "gpu_use": use.use,
            "gpu_memory": use.memory,
            "gpu_power": use.power,
            "gpu_temperature": use.temperature,
            "gpu_memory_total": memory.total or None,
            "gpu_allocated": memory.used if memory.total else None,
        }
        return {**machine.measure(), **{name: value for name, value in of_device.items() if value is not None}}

    return measure
