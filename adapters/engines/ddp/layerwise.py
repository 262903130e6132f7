"""DDP without torch's wrapper, for optimizers that step within the backward pass.

torch's `DistributedDataParallel` holds the gradients of all parameters until the backward pass has ended, which is what
such steps are to avoid. Here each gradient is summed over the ranks by itself, as soon as it arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from attrs import define, field
from torch import Tensor
from torch.nn import Parameter

from hexloop.adapters.trainable.torch.layerwise import LayerwiseProcess, Reduction, parameters_and_buffers
from hexloop.adapters.trainable.torch.names import wrapper_in
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.ports.parallelism import ParallelismCapabilities

IN_FLIGHT = 25 * 2**20
"""Bytes of gradients that may be on their way at the same time, besides the newest; torch's buckets are as large."""


class SumOverRanks:
    """Implements Reduction for the ranks of torch.distributed's default group.

    All ranks sum the gradients in the same order, which is the one in which those of rank 0 arrived in the first pass,
    and in that pass the reverse of the model's. A gradient that arrives early waits for those before it. A rank without
    a gradient of a parameter adds zeros, and learns at the end whether another rank had one.
    """

    def __init__(self) -> None:
        self._order = list[Parameter]()
        self._number = dict[int, int]()
        self._found: list[int] | None = []
        self._arrived = set[int]()
        self._missing = list[Parameter]()
        self._next = 0
        self._in_flight = deque[tuple[Any, Parameter]]()
        self._bytes = 0
        self._is_open = False

    def begin(self, parameters: Sequence[Parameter], take: Callable[[Parameter], None]) -> None:
        """See `Reduction.begin`."""
        self._take, self._is_open = take, True
        known = {id(each) for each in self._order}
        if len(known) != len(parameters) or not all(id(each) in known for each in parameters):
            self._order, self._found = list(reversed(parameters)), []
        self._number = {id(each): number for number, each in enumerate(self._order)}
        self._arrived.clear()
        self._missing.clear()
        self._next = 0

    def add(self, parameter: Parameter) -> None:
        """Sum the gradient over the ranks once all before it are being summed."""
        self._arrived.add(id(parameter))
        if self._found is not None:
            self._found.append(self._number[id(parameter)])
        while self._next < len(self._order) and id(self._order[self._next]) in self._arrived:
            self._start(self._order[self._next])
        self._complete(IN_FLIGHT)

    def _start(self, parameter: Parameter) -> None:
        gradient = parameter.grad
        if gradient is None:
            raise RunStateError("A gradient was removed before it was summed over the processes.")
        if gradient.is_sparse:
            raise ConfigurationError(
                "A parameter has sparse gradients, which several processes cannot sum layer by layer; set "
                "sparse=False in its module, or optim_layerwise=False."
            )
        if not gradient.is_contiguous():
            parameter.grad = gradient = gradient.contiguous()
        self._next += 1
        self._bytes += gradient.nbytes
        self._in_flight.append((dist.all_reduce(gradient, async_op=True), parameter))

    def _complete(self, allowed: int) -> None:
        """Take the oldest gradients that are on their way, until at most so many bytes are, or only one of them."""
        while self._in_flight and self._bytes > allowed and (allowed == 0 or len(self._in_flight) > 1):
            work, parameter = self._in_flight.popleft()
            work.wait()
            if parameter.grad is not None:
                self._bytes -= parameter.grad.nbytes
            if id(parameter) in self._arrived:
                self._take(parameter)

    def finish(self) -> None:
        """See `Reduction.finish`. Collective."""
        if not self._is_open:
            return
        self._is_open = False
        for parameter in self._order:
            if id(parameter) not in self._arrived:
                if parameter.grad is None:
                    self._missing.append(parameter)
                else:  # of earlier micro-batches
                    self._arrived.add(id(parameter))
        absent = {id(each) for each in self._missing}
        while self._next < len(self._order):
            parameter = self._order[self._next]
            if id(parameter) in absent:
                parameter.grad = torch.zeros_like(parameter)
            self._start(parameter)
            self._complete(IN_FLIGHT)
        self._complete(0)
        self._settle_missing()
        self._share_order()

    def _settle_missing(self) -> None:
        """Take the gradients that only other ranks had, and drop those that none had."""
        device = self._order[0].device if self._order else None
        used = torch.tensor([id(each) in self._arrived for each in self._order], dtype=torch.uint8, device=device)
        dist.all_reduce(used, dist.ReduceOp.MAX)
        if self._missing:
            everywhere = used.tolist()
            for parameter in self._missing:
                if everywhere[self._number[id(parameter)]]:
                    self._take(parameter)
                else:
                    parameter.grad = None

    def _share_order(self) -> None:
        """After the first pass, order the parameters as their gradients arrived on rank 0."""
        if self._found is None:
            return
        rest = [number for number in range(len(self._order)) if number not in set(self._found)]
        order = torch.tensor([*self._found, *rest], device=self._order[0].device)
        dist.broadcast(order, 0)
        self._order = [self._order[number] for number in order.tolist()]
        self._found = None


@define(eq=False)
class LayerwiseDdp(LayerwiseProcess):
    """Parallelism adapter for the ranks of torch.distributed's default group, whose optimizers step in backward passes.

    Each rank computes its share of the window's loss; the gradients of the shares are summed.
    broadcasts: the buffers of rank 0 are those of every rank in each forward pass, as in torch's wrapper.
    """

    _broadcasts: bool = True
    _buffers: list[Tensor] = field(factory=list, init=False)

    capabilities = ParallelismCapabilities("ddp", processes=True, steps_in_backward=True)

    def prepare(self, model: Any, make_optimizer: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Copy the weights of rank 0 to every rank, and return the model itself and its optimizer."""
        if wrapper_in(model) is not None:
            raise ConfigurationError(
                "The model is wrapped in DistributedDataParallel, which completes gradients only at the end of the "
                "backward pass, when the layer-wise steps have been taken; pass the module that is in it."
            )
        for tensor in parameters_and_buffers(model):
            dist.broadcast(tensor, 0)
        self._buffers = list(model.buffers()) if self._broadcasts else []
        return model, make_optimizer(model)

    def synchronise(self, last_of_window: bool) -> None:
        """Note whether the next backward pass is that of the updates, and copy the buffers of rank 0."""
        super().synchronise(last_of_window)
        for buffer in self._buffers:
            dist.broadcast(buffer, 0)

    def backward(self, loss: Any) -> None:
        """See `LayerwiseProcess.backward`."""
        if self._steps is None:
            raise RunStateError(
                "Outside of a run nothing sums the gradients of the processes, because the steps of this optimizer are "
                "taken layer by layer; set optim_layerwise=False, and an optimizer that is not layer-wise."
            )
        super().backward(loss)

    def _reduction(self) -> Reduction:
        return SumOverRanks()
