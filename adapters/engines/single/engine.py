"""One process that holds the whole model, on one device or copied to several GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from hexloop.adapters.engines.arguments import EngineArguments
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine
from hexloop.ports.parallelism import Parallelism, ParallelismCapabilities

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")


class Differentiable(Protocol):
    """A loss with a backward pass."""

    def backward(self) -> object:
        """Add the gradients of this loss to the accumulated ones."""


class SingleProcess:
    """Parallelism adapter for one process on one device: nothing is spread."""

    capabilities = ParallelismCapabilities("single")

    def prepare(self, model: Model, make_optimizer: Callable[[Model], Optimizer]) -> tuple[Model, Optimizer]:
        """Return the model itself, and its optimizer."""
        return model, make_optimizer(model)

    def synchronise(self, last_of_window: bool) -> None:
        """No-op: there are no other processes."""

    def backward(self, loss: Differentiable) -> None:
        """Run the backward pass of the loss."""
        loss.backward()

    def unwrap(self, model: Model) -> Model:
        """Return the model itself."""
        return model


def make_single(args: EngineArguments, device: Device) -> Parallelism[Any]:
    """Return the adapter for one process: all GPUs that it sees, as in transformers, unless `device` was injected."""
    if args.n_gpu <= 1 or device.name != str(args.device):
        if args.steps_in_backward:
            from hexloop.adapters.trainable.torch.layerwise import LayerwiseProcess

            return LayerwiseProcess()
        return SingleProcess()
    from hexloop.adapters.engines.single.data_parallel import DataParallel
    from hexloop.adapters.trainable.torch.trainable import item_count

    count = partial(item_count, label_names=args.label_names or ["labels"], shifted=False)
    return DataParallel(range(args.n_gpu), None if args.loss_weighting == "reference" else count)


ENGINE: Engine[EngineArguments, Any] = Engine("single", make_single)
