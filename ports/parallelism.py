"""How one model is spread over processes, and how their gradients meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from attrs import frozen

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")
Loss_contra = TypeVar("Loss_contra", contravariant=True)


@frozen
class ParallelismCapabilities:
    """What combines with an adapter; the app's table of combinations reads nothing else.

    `name` is the adapter's usual name, `processes` whether it spans several, `sharded` whether a process holds only a
    part of the weights, `compiles` whether the prepared model may be compiled afterwards, `owns_update` whether the
    prepared model clips its gradients and takes the optimizer's step itself, so that it needs a learner of its own.
    """

    name: str
    processes: bool = False
    sharded: bool = False
    compiles: bool = True
    owns_update: bool = False


class Parallelism(Protocol[Loss_contra]):
    """One way of spreading a model.

    The model and optimizer are opaque. `synchronise` comes before a micro-batch's forward pass and not around its
    backward pass, because the usual engines decide in forward whether the gradients of that pass will meet.
    """

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """What this adapter can and cannot do."""
        ...

    def prepare(self, model: Model, make_optimizer: Callable[[Model], Optimizer]) -> tuple[Model, Optimizer]:
        """Wrap the model, then make the optimizer over the parameters that the wrapped model really has.

        An engine that was told to make the optimizer itself gives its own, and does not call `make_optimizer`.
        """
        ...

    def synchronise(self, last_of_window: bool) -> None:
        """Say whether the gradients of the coming micro-batch meet (the window's last) or only pile up."""
        ...

    def backward(self, loss: Loss_contra) -> None:
        """Add the gradients of `loss` to those of the window."""
        ...

    def unwrap(self, model: Model) -> Model:
        """The model as the user passed it in."""
        ...
