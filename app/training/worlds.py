"""The processes of a run, as those see them who compute with tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from hexloop.adapters.batches.torch.shares import Dispatcher
from hexloop.adapters.evaluator.torch.evaluator import RankGatherer, SingleRank
from hexloop.adapters.trainable.torch.trainable import LOCAL_ITEM_SUM, ItemSum, estimated_item_sum, exact_item_sum
from hexloop.app.arguments.accelerator_config import AcceleratorConfig
from hexloop.app.wiring.parts import TrainerParts
from hexloop.ports.collectives import Reduction
from hexloop.ports.parallelism import Parallelism, ParallelismCapabilities


def world_of(parts: TrainerParts, normalises: bool) -> ItemSum:
    """How a window's items are counted over the processes: exactly, unless the arguments ask for equal weights.

    normalises: the loss divides by the count that it is given.
    """
    args, collectives = parts.args, parts.adapters.collectives
    size = collectives.world_size
    if size == 1:
        return LOCAL_ITEM_SUM
    exact = args.average_tokens_across_devices if normalises else args.loss_weighting == "exact"
    return exact_item_sum(size, parts.adapters.device.name, collectives) if exact else estimated_item_sum(size)


def totals_of(parts: TrainerParts) -> Callable[[Sequence[float]], Sequence[float]]:
    """How the processes add up numbers of which each has as many."""
    collectives = parts.adapters.collectives

    def totals(numbers: Sequence[float]) -> Sequence[float]:
        if collectives.world_size == 1:
            return numbers
        return collectives.start_reduction(numbers, Reduction.SUM).result()

    return totals


def total_of(parts: TrainerParts) -> Callable[[float], float]:
    """How the processes add up a number that each has counted."""
    totals = totals_of(parts)
    return lambda number: totals([number])[0]


def ranks_of(parts: TrainerParts) -> RankGatherer:
    """How the processes bring together what each predicts."""
    if parts.adapters.collectives.world_size == 1:
        return SingleRank()
    from hexloop.adapters.collectives.torch.tensors import TensorRanks

    return TensorRanks(parts.adapters.device.name)


def dispatcher_of(parts: TrainerParts) -> Dispatcher:
    """How the first process hands out what it reads. All processes ask for it together, at the first time."""
    from hexloop.adapters.collectives.torch.tensors import host_group

    args = parts.args
    return Dispatcher(args.process_index, args.world_size, host_group(float(args.ddp_timeout)))


@frozen
class MeetingEachBatch:
    """Another parallelism, whose gradients meet at every micro-batch and not at a window's last alone.

    That takes longer, and where weights are sharded less memory.
    """

    inner: Parallelism[Any]

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """Those of the other."""
        return self.inner.capabilities

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Let the other prepare the model."""
        return self.inner.prepare(model, make_optimizer)

    def synchronise(self, last_of_window: bool) -> None:
        """Let gradients meet in the next backward pass."""
        self.inner.synchronise(True)

    def backward(self, loss: Any) -> None:
        """Let the other add the gradients."""
        self.inner.backward(loss)

    def unwrap(self, model: Any) -> Any:
        """Let the other unwrap the model."""
        return self.inner.unwrap(model)


def parallelism_of(parts: TrainerParts) -> Parallelism[Any]:
    """How the model is spread; with `sync_each_batch` in accelerator_config gradients meet at each micro-batch."""
    config = parts.args.accelerator_config
    told = config.gradient_accumulation_kwargs if isinstance(config, AcceleratorConfig) else None
    parallelism = parts.adapters.parallelism
    return MeetingEachBatch(parallelism) if (told or {}).get("sync_each_batch") else parallelism
