"""Joins this process to the other processes of its run."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hexloop.adapters.collectives import SingleProcessCollectives
from hexloop.app.engines import EngineChoice, engine_for
from hexloop.app.environment import Launched, launched
from hexloop.domain.errors import CollectiveError, ConfigurationError
from hexloop.ports.collectives import Collectives

if TYPE_CHECKING:
    import torch

    from hexloop.adapters.collectives.torch import TorchCollectives


class JoinArguments(EngineChoice, Protocol):
    """The arguments of a run that joining its processes reads."""

    ddp_backend: str | None
    ddp_timeout: int

    @property
    def device(self) -> torch.device:
        """The device of this process."""


_JOINED: list[TorchCollectives] = []
"""The collectives of this process. torch.distributed has one default process group, so there is at most one."""


def join(args: JoinArguments) -> Collectives:
    """Return the collectives of the processes that the launcher started; the first call waits for all of them.

    Raises ConfigurationError if the backend is not available, and CollectiveError if rendezvous fails.
    """
    process = launched()
    if process.world_size == 1:
        return SingleProcessCollectives()
    if not _JOINED:
        from hexloop.adapters.collectives.torch import TorchCollectives

        _init_process_group(args, process)
        _JOINED.append(TorchCollectives(float(args.ddp_timeout)))
    return _JOINED[0]


def accelerate_state(args: JoinArguments) -> Any:
    """Return accelerate's `PartialState` over the processes and the device of the run; the first call joins them."""
    from hexloop.adapters.accelerator.accelerate.state import Processes, shared_state

    process = launched()
    join(args)
    ranks = (process.rank, process.world_size, process.local_rank, process.local_world_size or process.world_size)
    return shared_state(Processes(str(args.device), *ranks))


def share_accelerate_state(args: JoinArguments) -> None:
    """Make accelerate's `PartialState` now if accelerate is imported, else as soon as it is.

    Its loggers and functions then work before there is a Trainer, as they do with the arguments of transformers.
    """
    from hexloop.adapters.accelerator.accelerate.importing import when_imported

    when_imported("arguments", partial(accelerate_state, args))


def backend_for(args: JoinArguments) -> str:
    """Return the backend of torch.distributed, by the device, the arguments and the engine."""
    from hexloop.adapters.collectives.torch import backend_of

    return backend_of(args.device.type, args.ddp_backend, engine_for(args).exchanges_host_tensors)


def _init_process_group(args: JoinArguments, process: Launched) -> None:
    import torch
    import torch.distributed as dist

    from hexloop.adapters.collectives.torch import is_built_in, leave_all

    if dist.is_initialized():
        if dist.get_world_size() != process.world_size:
            raise ConfigurationError(
                f"The launcher started {process.world_size} processes, but torch.distributed was initialized with "
                f"{dist.get_world_size()}; let hexloop initialize it, or initialize it with all of them."
            )
        return
    backend = backend_for(args)
    if not is_built_in(backend):
        raise ConfigurationError(
            f"ddp_backend={args.ddp_backend or backend!r} is not available: this build of torch does not have it; "
            "choose gloo, or leave it out."
        )
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    has_rendezvous_variables = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    try:
        dist.init_process_group(
            backend,
            init_method="env://" if has_rendezvous_variables else f"tcp://{process.address}:{process.port}",
            rank=process.rank,
            world_size=process.world_size,
            timeout=timedelta(seconds=args.ddp_timeout),
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CollectiveError(
            f"Rendezvous failed: rank {process.rank} of {process.world_size} did not meet the others at "
            f"{process.address}:{process.port} within {args.ddp_timeout} s ({reason}). Check that all processes were "
            "started, that this address can be reached from here, and that no other program uses the port."
        ) from error
    atexit.register(leave_all, _JOINED, backend)
