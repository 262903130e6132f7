"""accelerate's shared state, made from a run: `PartialState` shares the run's process group and device.

Functions of accelerate, such as `gather_object`, read this state. accelerate makes it from environment variables. Here
it is made from the run instead, and nothing else changes: the process group, the device, the number of threads and the
environment stay as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen

from hexloop.domain.errors import ConfigurationError

LAUNCHERS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
)  # fmt: skip
"""The variables from which accelerate reads the number of processes."""


@frozen
class Processes:
    """The processes of a run, and the device of this one, as torch spells it."""

    device: str = "cpu"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def connected(self) -> bool:
        """Whether torch.distributed connects them, as accelerate's functions require."""
        return self.world_size == 1 or (dist.is_initialized() and dist.get_world_size() == self.world_size)

    @property
    def of_torch(self) -> bool:
        """Whether torch has their device, which an adapter for another one may only simulate."""
        try:
            torch.device(self.device)
        except RuntimeError:
            return False
        return True


def shared_state(processes: Processes) -> Any:
    """Return accelerate's `PartialState`, made from the run unless it describes these processes already.

    Raises ConfigurationError if torch.distributed does not connect the processes.
    """
    from accelerate.state import AcceleratorState, PartialState

    if not processes.connected:
        raise ConfigurationError(
            f"accelerate's functions need torch.distributed, which does not connect the {processes.world_size} "
            "processes of this run. Use the Trainer's own methods, or start the processes with torchrun."
        )
    if not processes.of_torch:
        raise ConfigurationError(
            f"accelerate's functions need a device of torch, and the run's is {processes.device!r}. Use the Trainer's "
            "own methods, or pass another device=... to the Trainer."
        )
    if PartialState._shared_state and differences(processes):
        AcceleratorState._reset_state(reset_partial_state=True)
    if not PartialState._shared_state:
        with described_by_environment(processes):
            return PartialState(cpu=torch.device(processes.device).type == "cpu")
    return PartialState()


def differences(processes: Processes) -> list[str]:
    """Return how accelerate's state differs from the processes of a run; the state exists."""
    from accelerate.state import PartialState

    state, found = PartialState(), []
    if (state.num_processes, state.process_index) != (processes.world_size, processes.rank):
        found.append(
            f"it has process {state.process_index} of {state.num_processes}, the run process {processes.rank} of "
            f"{processes.world_size}"
        )
    if not processes.of_torch or not _are_same(state.device, torch.device(processes.device)):
        found.append(f"its device is {state.device}, the run's {processes.device}")
    return found


def _are_same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and len({one.index, other.index} - {None}) <= 1


def refuse_other_state(processes: Processes, mixed_precision: str) -> None:
    """Raise ConfigurationError unless accelerate's state exists and describes the run.

    mixed_precision: the run's, as accelerate names it.
    """
    from accelerate.state import AcceleratorState, PartialState

    setting = "accelerator_config={'use_configured_state': True}"
    if not PartialState._shared_state:
        raise ConfigurationError(
            f"{setting} needs a state of accelerate, and there is none; make an Accelerator or a PartialState before "
            "the Trainer, or leave the key out."
        )
    found = differences(processes)
    configured = AcceleratorState._shared_state.get("_mixed_precision", mixed_precision)
    if configured != mixed_precision:
        found.append(f"its mixed precision is {configured!r}, the run's {mixed_precision!r}")
    if found:
        raise ConfigurationError(
            f"{setting} asks for the state of accelerate that exists, which differs from the run: {'; '.join(found)}. "
            "Make the Accelerator with the settings of the TrainingArguments, or leave the key out."
        )


@contextmanager
def described_by_environment(processes: Processes, **variables: str) -> Iterator[None]:
    """Let the environment describe the processes, with `variables` added, and restore it and torch's flags afterwards.

    accelerate has no arguments for most of what it reads there, nor for training on another device than one of XLA
    where torch_xla is installed.
    """
    # Reading allow_tf32 raises RuntimeError if the script set TF32 through fp32_precision.
    before, products = dict(os.environ), torch.backends.cuda.matmul.fp32_precision
    for name in LAUNCHERS:
        os.environ.pop(name, None)
    if processes.world_size > 1:
        os.environ |= {
            "RANK": str(processes.rank),
            "WORLD_SIZE": str(processes.world_size),
            "LOCAL_RANK": str(processes.local_rank),
            "LOCAL_WORLD_SIZE": str(processes.local_world_size or processes.world_size),
        }
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))  # otherwise accelerate sets the threads
    os.environ |= {
        "ACCELERATE_TORCH_DEVICE": processes.device,
        "NCCL_P2P_DISABLE": "1",  # otherwise accelerate rejects some GPUs, whatever they are used for
        "NCCL_IB_DISABLE": "1",
        **variables,
    }
    state: Any = sys.modules.get("accelerate.state")
    finds_xla = getattr(state, "is_torch_xla_available", None)
    if finds_xla is not None and torch.device(processes.device).type != "xla":
        state.is_torch_xla_available = lambda **_: False
    try:
        yield
    finally:
        if finds_xla is not None:
            state.is_torch_xla_available = finds_xla
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if torch.backends.cuda.matmul.fp32_precision != products:
            torch.backends.cuda.matmul.allow_tf32 = products == "tf32"
