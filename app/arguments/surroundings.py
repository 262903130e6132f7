"""Where a process stands among the processes of its run, and what it computes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from hexloop.app.arguments.environment import word
from hexloop.app.arguments.launched import Launched

if TYPE_CHECKING:
    import torch


def _nobody_to_wait_for() -> None:
    return None


@attrs.frozen
class Surroundings:
    """What arguments derive from the world around the process; the wiring replaces it in a run of several processes.

    world_size: processes in the run.
    process_index: this process among all of them.
    local_process_index: this process among those of its machine.
    barrier: returns once every process of the run has called it.
    device: name of the device, as torch spells it; None to look for one.
    n_gpu: GPUs that this process trains on; None for those that are found: all that a process sees that is alone.
    """

    world_size: int = 1
    process_index: int = 0
    local_process_index: int = 0
    barrier: Callable[[], None] = _nobody_to_wait_for
    device: str | None = None
    n_gpu: int | None = None


SINGLE_PROCESS = Surroundings()


def surroundings_of(process: Launched, barrier: Callable[[], None]) -> Surroundings:
    """Those of a process that a launcher started."""
    if process.world_size == 1:
        return SINGLE_PROCESS
    return Surroundings(process.world_size, process.rank, process.local_rank, barrier)


def found_device(local_rank: int = 0) -> str:
    """The device that the environment names, or that torch offers the process: a GPU of its own, or the processor.

    CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say which GPUs torch sees, and as which numbers.
    """
    import torch

    named = word("ACCELERATE_TORCH_DEVICE", "")
    if named:
        return named
    if torch.cuda.is_available():
        return f"cuda:{local_rank % max(1, torch.cuda.device_count())}"
    if torch.backends.mps.is_available():
        return "mps"
    if torch.xpu.is_available():
        return f"xpu:{local_rank % max(1, torch.xpu.device_count())}"
    return "cpu"


def found_gpus(device: torch.device, world_size: int) -> int:
    """The GPUs that a process trains on whose device this is: all of NVIDIA's or AMD's where it is alone, else one.

    A device that is named with a number other than 0 is the only one, as is one that the environment names.
    """
    import torch

    if device.type == "cpu":
        return 0
    if device.type != "cuda" or world_size > 1 or device.index or word("ACCELERATE_TORCH_DEVICE", ""):
        return 1
    return max(1, torch.cuda.device_count())
