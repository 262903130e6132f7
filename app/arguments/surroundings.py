"""Where a process stands among the processes of its run, and what it computes on."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from hexloop.app.arguments.environment import word


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
    n_gpu: GPUs that this process trains on; None for the one that was found, if one was.
    """

    world_size: int = 1
    process_index: int = 0
    local_process_index: int = 0
    barrier: Callable[[], None] = _nobody_to_wait_for
    device: str | None = None
    n_gpu: int | None = None


SINGLE_PROCESS = Surroundings()


def found_device() -> str:
    """The device that the environment names, or that torch offers a single process: the first GPU, or the processor."""
    import torch

    named = word("ACCELERATE_TORCH_DEVICE", "")
    if named:
        return named
    if torch.cuda.is_available():
        return "cuda:0"
    if torch.backends.mps.is_available():
        return "mps"
    if torch.xpu.is_available():
        return "xpu:0"
    return "cpu"
