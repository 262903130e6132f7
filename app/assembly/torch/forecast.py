"""The memory of a training step of a torch model, by fake tensors where that is possible, else by a real step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import define

from hexloop.adapters.profiler.allocations import (
    Allocations,
    FakeAllocations,
    FakeModel,
    state_of,
    tensors_of,
    values_in,
)
from hexloop.app.assembly.parts import TrainerParts
from hexloop.domain.forecast import StepMemory
from hexloop.domain.run import Run
from hexloop.ports.device import Device

__all__ = ["values_in"]
"""A function of an adapter that the framework gets from here."""

WINDOWS = 2
"""Steps that are counted: the optimizer makes its state in the first one."""


def _kind(device: Device) -> str:
    return device.name.partition(":")[0]


@define(eq=False)
class FakeCopy:
    """A copy of a model and what refers to it, with fake tensors.

    objects: the model, the optimizer and the schedule of the user's, None for those that there are not.
    """

    objects: Sequence[Any]
    fake: FakeModel
    kind: str

    def step_memory(self, parts: TrainerParts, run: Run[Any, Any], window: Sequence[Any]) -> StepMemory:
        """Return the memory of a step on a window of batches.

        Raises whatever torch or the model's code raises where it needs values, such as for a shape.
        """
        allocations = FakeAllocations(self.kind)
        learner, model = run.learner, parts.model
        with self.fake.counting(allocations):
            weights = allocations.see(tensors_of(model))
            for _ in range(WINDOWS):
                items = learner.count_items(window)
                allocations.restart()
                for number, batch in enumerate(window, 1):
                    learner.micro_step(self.fake.batch(batch), items, number == len(window))
                gradients = allocations.see(each.grad for each in model.parameters() if each.grad is not None)
                learner.update(run.max_norm)
                moments = allocations.see(state_of(parts.optimizer))
        return _memory(allocations, weights, gradients, moments, "fake tensors")


def fake_copy(model: Any, optimizer: Any, schedule: Any, device: Device) -> FakeCopy:
    """Return the copy. Raises whatever a module raises that cannot be copied."""
    fake = FakeModel.of((model, optimizer, schedule), tensors_of(model), device.name)
    return FakeCopy(fake.copy, fake, _kind(device))


def count_real_step(parts: TrainerParts, step: Callable[[], object]) -> StepMemory:
    """Return the memory of a step that is taken by a call; it is not the first one."""
    allocations = Allocations(_kind(parts.adapters.device))
    weights = allocations.see(tensors_of(parts.model))
    moments = allocations.see(state_of(parts.optimizer))
    allocations.restart()
    with allocations:
        step()
    sizes = {"weights": sum(each.size for each in weights), "moments": sum(each.size for each in moments)}
    trained = sum(each.nbytes for each in parts.model.parameters() if each.requires_grad)
    rest = allocations.peak - sizes["weights"] - sizes["moments"]
    return StepMemory(sizes["weights"], 0, sizes["moments"], max(rest, 0), trained, "a real step")


def _memory(
    allocations: Allocations, weights: Sequence[Any], gradients: Sequence[Any], moments: Sequence[Any], how: str
) -> StepMemory:
    parts = [allocations.at_peak(each) for each in (weights, gradients, moments)]
    everything = sum(each.size for each in gradients)
    return StepMemory(parts[0], parts[1], parts[2], allocations.peak - sum(parts), everything, how)


def free_on(device: Device) -> int | None:
    """Return the bytes of an accelerator that this process can have in all; None if torch does not know it."""
    kind, _, index = device.name.partition(":")
    if kind == "cpu":
        return None
    module = torch.get_device_module(kind)
    if not hasattr(module, "mem_get_info"):
        return device.memory().total or None
    free, _ = module.mem_get_info(int(index or 0))
    return int(free) + int(module.memory_reserved(int(index or 0)))


def wait_for_device(device: Device) -> None:
    """Wait until an accelerator has done what it was given."""
    if _kind(device) != "cpu" and torch.accelerator.is_available():
        torch.accelerator.synchronize()
