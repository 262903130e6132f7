"""How one model is spread over processes, and how their gradients meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import frozen

from hexloop.ports.learner import Learner
from hexloop.ports.state import Exportable, Part
from hexloop.ports.trainable import Trainable

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")
Loss_contra = TypeVar("Loss_contra", contravariant=True)
Model_contra = TypeVar("Model_contra", contravariant=True)
Array = TypeVar("Array")
Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


@frozen
class ParallelismCapabilities:
    """What combines with an adapter; the app's table of combinations reads nothing else.

    `name` is the adapter's usual name, `processes` whether it spans several, `sharded` whether a process holds only a
    part of the weights, `compiles` whether the prepared model may be compiled afterwards, `owns_update` whether the
    prepared model clips its gradients and takes the optimizer's step itself (the adapter has `OwnUpdate`),
    `owns_state` whether weights or moments are kept elsewhere than in the model and its optimizer (the adapter has
    `OwnState`), `several_devices` whether a process computes on all devices that it sees, each a part of the batch.
    """

    name: str
    processes: bool = False
    sharded: bool = False
    compiles: bool = True
    owns_update: bool = False
    several_devices: bool = False
    owns_state: bool = False


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


@frozen
class Spread:
    """A tensor of which each process holds a run of the flattened elements.

    `shape` is the whole's. `runs` says for each process, by rank, the first element that it holds and how many; one
    that holds a copy of another's run counts as holding none. `own` is what this process holds, copy or not.
    """

    shape: tuple[int, ...]
    runs: tuple[tuple[int, int], ...]
    own: tuple[int, int]


class Layout(Protocol[Model_contra, Array]):
    """Where the tensors of a prepared model lie, and what they are called in the model that the user passed in."""

    @property
    def rank(self) -> int:
        """This process's number, from 0."""
        ...

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        ...

    @property
    def uneven(self) -> bool:
        """Whether a process may hold nothing of a parameter, and then has no moments of it."""
        ...

    def state(self, model: Model_contra) -> Mapping[str, Array]:
        """Parameters and buffers as they lie here; one that goes by several names comes under each. Collective."""
        ...

    def parameters(self, model: Model_contra) -> Mapping[str, Array]:
        """The parameters as they lie here, each under one name."""
        ...

    def spread(self, tensor: Array, parameter: Array) -> Spread | None:
        """How a tensor lies that is a parameter, or one of its moments; None where every process has the whole."""
        ...

    def local(self, tensor: Array) -> Array:
        """What this process holds of a tensor that is spread, flat; writing to it writes to the tensor."""
        ...

    def like(self, parameter: Array, local: Array) -> Array:
        """A tensor that is spread as a parameter is, made of what this process holds of it, flat."""
        ...

    def norm(self, own: Array) -> Array:
        """The norm of gradients that are spread, from what a norm of this process's comes to. Collective."""
        ...


class Sharding(Parallelism[Loss_contra], Protocol[Loss_contra, Model_contra, Array]):
    """What an adapter answers besides, where its capabilities say that it is sharded."""

    def spreads(self, model: Model_contra) -> bool:
        """Whether this model, as the user passed it in, is prepared: no process holds the whole of it."""
        ...

    @property
    def layout(self) -> Layout[Model_contra, Array]:
        """Where the tensors of the model lie that was prepared last."""
        ...


class OwnUpdate(Parallelism[Loss_contra], Protocol[Loss_contra]):
    """What an adapter has besides, where its capabilities say that it owns the update."""

    def learner(
        self,
        model: object,
        trainable: Trainable[Batch, Loss],
        before_optimizer_step: Callable[[], None],
        after_optimizer_step: Callable[[], None],
    ) -> Learner[Batch, Loss]:
        """Return the learner over the prepared model; it calls the two functions around each optimizer step."""
        ...


class ModelState(Exportable, Protocol):
    """The weights of a model, which can be compared with saved ones."""

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        """Return how saved tensors differ from the model's: missing, unknown, other shapes and, if asked, types."""
        ...


class OwnState(Parallelism[Loss_contra], Protocol[Loss_contra]):
    """What an adapter has besides, where its capabilities say that it owns the state. `model` is the prepared one.

    Parts have the names and the form in which one process exports a plain model and its optimizer, so that a run may
    resume under another engine.
    """

    def model_state(self, model: object, writers: int) -> ModelState:
        """Return what exports and loads the weights; `writers`: from how many processes tensors leave."""
        ...

    def optimizer_state(self, model: object, optimizer: object) -> Exportable:
        """Return what exports and loads the moments. Raises CheckpointError if the engine's state is unknown."""
        ...

    def group_sizes(self, model: object, optimizer: object) -> Sequence[int]:
        """Return how many of the model's parameters each of the optimizer's groups has."""
        ...

    def spreads_optimizer(self, model: object) -> bool:
        """Return whether each process keeps only a part of the moments."""
        ...
