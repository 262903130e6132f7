"""The processes of a run, as those see them who compute with tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hexloop.adapters.batches.torch.dispatch import Dispatcher
from hexloop.adapters.evaluator.torch.ranks import OneRank, Ranks
from hexloop.adapters.trainable.torch.world import ALONE, World, even_world, exact_world
from hexloop.ports.collectives import Reduction

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def world_of(trainer: Trainer, normalises: bool) -> World:
    """How a window's items are counted over the processes: exactly, unless the arguments ask for equal weights.

    normalises: the loss divides by the count that it is given.
    """
    args, size = trainer.args, trainer.adapters.collectives.world_size
    if size == 1:
        return ALONE
    exact = args.average_tokens_across_devices if normalises else args.loss_weighting == "exact"
    return exact_world(size, trainer.adapters.device.name) if exact else even_world(size)


def total_of(trainer: Trainer) -> Callable[[float], float]:
    """How the processes add up a number that each has counted."""
    collectives = trainer.adapters.collectives

    def total(number: float) -> float:
        if collectives.world_size == 1:
            return number
        return collectives.start_reduction([number], Reduction.SUM).result()[0]

    return total


def ranks_of(trainer: Trainer) -> Ranks:
    """How the processes bring together what each predicts."""
    if trainer.adapters.collectives.world_size == 1:
        return OneRank()
    from hexloop.adapters.collectives.torch.tensors import TensorRanks

    return TensorRanks(trainer.adapters.device.name)


def dispatcher_of(trainer: Trainer) -> Dispatcher:
    """How the first process hands out what it reads. All processes ask for it together, at the first time."""
    from hexloop.adapters.collectives.torch.tensors import host_group

    args = trainer.args
    return Dispatcher(args.process_index, args.world_size, host_group(float(args.ddp_timeout)))
