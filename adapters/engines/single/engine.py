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
    """A loss that can send gradients back."""

    def backward(self) -> object:
        """Add this loss's gradients to those there are."""
        ...


class SingleProcess:
    """Answers the Parallelism port where there is nothing to spread and nobody to meet."""

    capabilities = ParallelismCapabilities("single")

    def prepare(self, model: Model, make_optimizer: Callable[[Model], Optimizer]) -> tuple[Model, Optimizer]:
        """The model itself, and its optimizer."""
        return model, make_optimizer(model)

    def synchronise(self, last_of_window: bool) -> None:
        """Gradients meet by being there."""

    def backward(self, loss: Differentiable) -> None:
        """The loss's own backward."""
        loss.backward()

    def unwrap(self, model: Model) -> Model:
        """The model itself."""
        return model


def make_single(args: EngineArguments, device: Device) -> Parallelism[Any]:
    """Return the adapter for one process: all GPUs that it sees, as in transformers, unless `device` was injected."""
    if args.n_gpu <= 1 or device.name != str(args.device):
        return SingleProcess()
    from hexloop.adapters.engines.single.data_parallel import DataParallel
    from hexloop.adapters.trainable.torch.trainable import item_count

    if args.loss_weighting == "reference":
        return DataParallel(range(args.n_gpu))
    return DataParallel(
        range(args.n_gpu), partial(item_count, label_names=args.label_names or ["labels"], shifted=False)
    )


ENGINE: Engine[EngineArguments, Any] = Engine("single", make_single)
