"""Exponential moving averages of weights, kept beside any optimizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from attrs import define
from torch import Tensor, nn

from hexloop.adapters.trainable.torch.averaged_weights import DOCUMENT, AveragedWeights, SavedAverages
from hexloop.adapters.trainable.torch.layouts import WHOLE, TorchLayout
from hexloop.adapters.trainable.torch.serialization import read_tensor, tensor_part
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.schemas import shown
from hexloop.domain.wording import listed
from hexloop.ports.state import Part

HALF = (torch.float16, torch.bfloat16)
"""The types of weights whose averages are kept in float32: a small change of an average would be lost in them."""


class MovingAverages(AveragedWeights):
    """Exponential moving averages of the weights, updated after optimizer steps.

    average = decay * average + (1 - decay) * weight. They begin as a copy of the weights after step `first`, of the
    initial ones if that is 0, and are updated after every `every` further steps.

    decay: between 0 and 1. beside: see `AveragedWeights.beside`. over: whether the run is.
    """

    kind = "ema"

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, Tensor],
        decay: float,
        first: int = 0,
        every: int = 1,
        beside: bool = False,
        layout: TorchLayout = WHOLE,
    ) -> None:
        super().__init__(model, parameters, layout)
        self._decay, self._first, self._every = decay, first, every
        self.beside = beside
        self.updates, self.over = 0, False
        self.averages: dict[str, Tensor] = {}
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None
        if first == 0:
            self._begin()

    @property
    def started(self) -> bool:
        """Whether there are averages yet."""
        return bool(self.averages)

    def update(self, taken: bool = True) -> None:
        """Update the averages after an optimizer step. Does not wait for the device. taken: whether it was taken."""
        if not taken:
            return
        self.updates += 1
        if not self.averages:
            if self.updates >= self._first:
                self._begin()
        elif (self.updates - self._first) % self._every == 0:
            self._advance()

    def _begin(self) -> None:
        """Begin with a copy of the weights."""
        self.allocate()
        with torch.no_grad():
            torch._foreach_copy_(*self._both())

    def allocate(self) -> None:
        """Allocate averages, in float32 for weights of half precision."""
        if self.averages:
            return
        self._pairs = None
        for name, each in self.parameters.items():
            dtype = torch.float32 if each.dtype in HALF else each.dtype
            if self.layout.whole:
                self.averages[name] = torch.zeros_like(each.detach(), dtype=dtype)
            else:
                self.averages[name] = self.layout.like(each, self.local(each).to(dtype, copy=True))

    def _both(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return this rank's elements of the averages and of the weights."""
        if self.layout.whole and self._pairs is not None:
            return self._pairs
        averages = [self.local(self.averages[name]) for name in self.parameters]
        weights = [self.local(each) for each in self.parameters.values()]
        if self.layout.whole:
            averages, weights = list(self.averages.values()), list(self.parameters.values())
            self._pairs = averages, weights
        return averages, weights

    def _advance(self) -> None:
        averages, weights = self._both()
        with torch.no_grad():
            if all(one.dtype == other.dtype for one, other in zip(averages, weights, strict=True)):
                torch._foreach_lerp_(averages, weights, 1 - self._decay)
            else:
                torch._foreach_mul_(averages, self._decay)
                torch._foreach_add_(averages, weights, alpha=1 - self._decay)

    def _put_averages(self) -> None:
        averages, weights = self._both()
        torch._foreach_copy_(weights, averages)

    def _enter(self) -> None:
        if self.averages:
            super()._enter()

    def _leave(self) -> None:
        if self._training is not None:
            super()._leave()

    def settle(self) -> None:
        """Leave the averages in the model, unless they are kept beside it."""
        self.over = True
        if not self.beside:
            super().settle()
            self.forget()

    def forget(self) -> None:
        """Drop the averages."""
        self.averages, self._pairs = {}, None

    # Checkpoints

    def exported(self) -> Mapping[int, Tensor]:
        """Return the averages; those in float32 are converted to the type of their weights."""
        found = ((each, self.averages[name]) for name, each in self.parameters.items() if self.averages)
        return {id(each): own if own.dtype == each.dtype else own.to(each.dtype) for each, own in found}

    def precise(self) -> Mapping[str, Tensor]:
        """Return the averages in float32 of weights in half precision."""
        return {name: each for name, each in self.averages.items() if each.dtype != self.parameters[name].dtype}

    def load(self, parts: Iterable[Part]) -> None:
        """Take what a checkpoint has; see `AveragedWeights.load`."""
        super().load(parts)
        saved = self._saved
        if saved is None or not saved.document["started"]:
            return
        half = {name for name, part in saved.training.items() if part.dtype in ("F16", "BF16")}
        if saved.document["kind"] == self.kind and (missing := half - saved.precise.keys()):
            raise ValueError(f"The saved averages lack those of {listed(sorted(missing), ', ', shown)} in float32.")
        self.allocate()  # for what is loaded next

    def _resume_averages(self, saved: SavedAverages | None, updates: int) -> None:
        self.updates = updates
        if saved is None:
            self.forget()
            if updates >= self._first:
                self._begin()
            return
        if not saved.document["started"]:
            self.forget()
            return
        if saved.document["replaced"]:  # the model's files hold the averages
            torch._foreach_copy_(*self._both())
        for name, part in saved.precise.items():
            self.fill(self.averages[name], self.parameters[name], part)

    def kept(self) -> Mapping[str, KeptAverages]:
        """Return what exports and loads all averages, as this rank has them."""
        return {"averages": KeptAverages(self)}


@define(eq=False)
class KeptAverages:
    """Implements the Exportable port for moving averages, for a copy in memory to which the same run returns."""

    _averages: MovingAverages

    def export(self) -> Iterator[Part]:
        """Export this rank's elements of each average, and the number of updates."""
        averages = self._averages
        for name, each in averages.averages.items():
            yield tensor_part(name, averages.local(each))
        yield json_part(DOCUMENT, {"updates": averages.updates})

    def load(self, parts: Iterable[Part]) -> None:
        """Return to the averages of the copy."""
        averages, found = self._averages, {part.name: part for part in parts}
        averages.updates = json_value(found.pop(DOCUMENT))["updates"]
        if not found:
            averages.forget()
            return
        averages.allocate()
        with torch.no_grad():
            for name, part in found.items():
                local = averages.local(averages.averages[name])
                local.copy_(read_tensor(part).view(local.shape))
