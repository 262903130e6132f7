"""The processes of a run: how this one joins the others."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from typing import TYPE_CHECKING

from hexloop.adapters.collectives.single import SingleProcessCollectives
from hexloop.app.arguments.environment import is_on
from hexloop.app.arguments.launched import Launched, launched
from hexloop.domain.errors import CollectiveError, ConfigurationError
from hexloop.ports.collectives import Collectives

if TYPE_CHECKING:
    from hexloop.adapters.collectives.torch import TorchCollectives
    from hexloop.app.arguments.derived import DerivedValues

_JOINED: list[TorchCollectives] = []
"""The processes that this one has met. torch.distributed has one world a process, so there is one here."""


def join(args: DerivedValues) -> Collectives:
    """The processes that the launcher started with this one; waits until all are there, at the first call.

    Raises ConfigurationError where they cannot talk in the chosen way, and CollectiveError where they do not meet.
    """
    process = launched()
    if process.world_size == 1:
        return SingleProcessCollectives()
    if not _JOINED:
        from hexloop.adapters.collectives.torch import TorchCollectives

        _meet(args, process)
        _JOINED.append(TorchCollectives(float(args.ddp_timeout)))
    return _JOINED[0]


def backend_for(args: DerivedValues) -> str:
    """How the processes' tensors travel. Under FSDP the host's do, too: of what is kept there norms are added up."""
    from hexloop.adapters.collectives.torch.collectives import backend_of

    return backend_of(args.device.type, args.ddp_backend, bool(args.fsdp) or is_on("ACCELERATE_USE_FSDP"))


def _meet(args: DerivedValues, process: Launched) -> None:
    import torch
    import torch.distributed as dist

    from hexloop.adapters.collectives.torch.collectives import is_built_in, part

    if dist.is_initialized():
        if dist.get_world_size() != process.world_size:
            raise ConfigurationError(
                [
                    f"The launcher started {process.world_size} processes, but torch.distributed was initialised with "
                    f"{dist.get_world_size()}; leave that to hexloop, or initialise it with all of them."
                ]
            )
        return
    backend = backend_for(args)
    if not is_built_in(backend):
        raise ConfigurationError(
            [
                f"You chose ddp_backend={args.ddp_backend or backend!r}, but this torch is built without it; choose "
                "gloo, or leave it out."
            ]
        )
    if args.device.type == "cuda":
        torch.cuda.set_device(args.device)
    told = {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    try:
        dist.init_process_group(
            backend,
            init_method="env://" if told else f"tcp://{process.address}:{process.port}",
            rank=process.rank,
            world_size=process.world_size,
            timeout=timedelta(seconds=args.ddp_timeout),
        )
    except (RuntimeError, ValueError) as error:
        raise CollectiveError(
            f"Rank {process.rank} of {process.world_size} did not meet the others at {process.address}:{process.port} "
            f"within {args.ddp_timeout} s ({str(error).strip().partition(chr(10))[0]}); look whether all "
            "processes were started, whether that address can be reached from here, and whether nobody else has the "
            "port."
        ) from error
    atexit.register(part, _JOINED, backend)
