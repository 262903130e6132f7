"""What a run of several processes is told; one process has no use for most of it."""

from __future__ import annotations

from hexloop.app.arguments.checks import at_least, one_of
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments

BACKENDS = ("nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl")
"""The ways in which torch's processes talk to each other that the reference library knows."""


@argument_group
class Processes(Arguments):
    """Several processes."""

    local_rank: int = argument(
        default=-1,
        checks=(at_least(-1),),
        help="this process among those of its machine, as old launchers pass it; read local_process_index instead",
    )
    ddp_backend: str | None = argument(
        default=None,
        checks=(one_of(*BACKENDS),),
        help=f"how processes talk to each other: {', '.join(BACKENDS)}; as fits the device if not given",
    )
    ddp_timeout: int = argument(
        default=1800, checks=(at_least(1),), help="seconds after which a process gives up waiting for the others"
    )
    ddp_find_unused_parameters: bool | None = argument(
        default=None, help="look in every step for parameters that took no part in the loss"
    )
    ddp_bucket_cap_mb: int | None = argument(
        default=None, checks=(at_least(1),), help="MiB of gradients that processes exchange at once"
    )
    ddp_broadcast_buffers: bool | None = argument(
        default=None, help="give all processes the first one's buffers before each forward pass"
    )
    ddp_static_graph: bool | None = argument(
        default=None, help="promise that every step uses the same parameters in the same order"
    )
