"""What DeepSpeed needs to find before it does anything, and what it can do before there is an engine."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}


def begin(device: torch.device, local_rank: int) -> None:
    """See to it that DeepSpeed finds the kind of device, the number of this process, and a group of processes."""
    os.environ.setdefault("LOCAL_RANK", number_for(device, local_rank, os.environ))
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if not dist.is_initialized():  # a run of one process needs no launcher, and no port
        dist.init_process_group(BACKENDS.get(device.type), store=HashStore(), rank=0, world_size=1)
    if device.type == "cpu":  # as DeepSpeed's launcher says; or ZeRO 3 starts a program at every step to find out
        os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE") or str(dist.get_world_size()))
    import deepspeed

    # DeepSpeed calls functions that torch renamed in 2.13, several times a step.
    warnings.filterwarnings("ignore", r"`torch.distributed.\w+_tensor` is deprecated", FutureWarning)
    # All-reduce over shared memory is for inference alone; building it takes a minute, and is left undone for ever
    # by a process that dies meanwhile, as the others then wait for its lock.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


def number_for(device: torch.device, local_rank: int, environment: Mapping[str, str]) -> str:
    """What DeepSpeed is to take for the number of this process on its machine, by which it chooses the device."""
    if device.type == "cpu" or device.index is None or "OMPI_COMM_WORLD_LOCAL_RANK" in environment:
        return str(local_rank)  # Open MPI's variable and this one have to agree
    return str(device.index)


def spreading(configuration: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A context in which ZeRO 3 spreads the parameters of every module as it is made."""
    import deepspeed

    made: AbstractContextManager[Any] = deepspeed.zero.Init(config_dict_or_path=dict(configuration))
    return made
