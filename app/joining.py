"""Joins this process to the other processes of its run."""

from __future__ import annotations

import atexit
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hexloop.adapters.collectives import SingleProcessCollectives
from hexloop.app.devices import connect_device, usual_exchange
from hexloop.app.engines import EngineChoice, engine_for
from hexloop.app.environment import Launched, launched
from hexloop.domain.errors import ConfigurationError
from hexloop.ports.collectives import Collectives

if TYPE_CHECKING:
    import torch

    from hexloop.adapters.collectives.torch import TorchCollectives


class JoinArguments(EngineChoice, Protocol):
    """The arguments of a run that joining its processes reads."""

    ddp_timeout: int
    rendezvous_timeout: float

    @property
    def ddp_backend(self) -> str | None:
        """The name of a back end of torch.distributed; None for the one that fits the device."""

    @property
    def device(self) -> torch.device:
        """The device of this process."""


AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable by which torchrun tells its processes that they share its store, instead of that of rank 0."""

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
        import torch.distributed as dist

        if dist.is_initialized():
            _JOINED.append(_join_the_script(args, process))
        else:
            _JOINED.append(_join_the_others(args, process))
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

    chosen = args.ddp_backend or usual_exchange(args.device_name)
    return backend_of(args.device.type, chosen, engine_for(args).exchanges_host_tensors)


def _join_the_script(args: JoinArguments, process: Launched) -> TorchCollectives:
    """Return collectives over the default process group, which the script has initialized."""
    import torch.distributed as dist

    from hexloop.adapters.collectives.torch import TorchCollectives

    if dist.get_world_size() != process.world_size:
        raise ConfigurationError(
            f"The launcher started {process.world_size} processes, but torch.distributed was initialized with "
            f"{dist.get_world_size()}; let hexloop initialize it, or initialize it with all of them."
        )
    return TorchCollectives(float(args.ddp_timeout))


def _join_the_others(args: JoinArguments, process: Launched) -> TorchCollectives:
    """Meet the other processes, initialize the default process group, and return collectives over it."""
    from hexloop.adapters.collectives.torch import TorchCollectives, is_built_in, leave_all
    from hexloop.adapters.collectives.torch.world import MeetingPlace, Timeouts, start_world

    backend = backend_for(args)
    if not is_built_in(backend):
        raise ConfigurationError(
            f"ddp_backend={args.ddp_backend or backend!r} is not available: this build of torch does not have it; "
            "choose gloo, or leave it out."
        )
    connect_device(args.device_name, process.local_rank, process.local_world_size or process.world_size)
    timeouts = Timeouts(args.rendezvous_timeout, float(args.ddp_timeout))
    place = MeetingPlace(process.address, process.port, hosted=os.environ.get(AGENT_STORE) != "True")
    world = start_world(place, process.rank, process.world_size, backend, timeouts)
    with world.connecting():
        collectives = TorchCollectives(timeouts.operations, connect_timeout=timeouts.connecting)
    world.settle()
    atexit.register(leave_all, _JOINED, backend)
    return collectives
