"""How a model is spread over processes, and how their gradients are reduced.

The port has five methods. What else an engine can do is a capability, plain data; each optional ability has a Protocol
of its own below, which the app uses only if the capability is set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import frozen

from hexloop.ports.learner import Learner, Trainable
from hexloop.ports.mesh import Mesh, Spread
from hexloop.ports.state import Exportable, Part

Model = TypeVar("Model")
Optimizer = TypeVar("Optimizer")
Loss_contra = TypeVar("Loss_contra", contravariant=True)
Model_contra = TypeVar("Model_contra", contravariant=True)
Array = TypeVar("Array")
Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


@frozen
class ParallelismCapabilities:
    """What an adapter can do. The app's table of combinations reads nothing else.

    Args:
        name: the adapter's usual name.
        processes: it spans several processes.
        sharded: a process holds only a part of the weights; the adapter is `Sharding`.
        compiles: the prepared model may be compiled.
        owns_update: the prepared model clips its gradients and takes the optimizer step itself; the adapter is
            `OwnUpdate`.
        several_devices: a process computes on all devices that it sees, a part of the batch on each.
        owns_state: weights or moments are kept outside the model and its optimizer; the adapter is `OwnState`.
        own_exchange: its processes exchange tensors through the runtime of their devices, and need no others that can.
        steps_in_backward: parameters are updated within the backward pass; the adapter is `SteppingInBackward`.
        averages: the weights can be exchanged for averages of them, and back.
        flattens: parameters are shards of flat tensors, in which those of several groups would be mixed.
    """

    name: str
    processes: bool = False
    sharded: bool = False
    compiles: bool = True
    owns_update: bool = False
    several_devices: bool = False
    owns_state: bool = False
    own_exchange: bool = False
    steps_in_backward: bool = False
    averages: bool = True
    flattens: bool = False


class Parallelism(Protocol[Loss_contra]):
    """One way of spreading a model. Model and optimizer are opaque.

    `synchronise` is called before a micro-batch's forward pass, not around its backward pass, because the usual engines
    decide in the forward pass whether gradients will be reduced.
    """

    @property
    def capabilities(self) -> ParallelismCapabilities:
        """What this adapter can do."""

    def prepare(self, model: Model, make_optimizer: Callable[[Model], Optimizer]) -> tuple[Model, Optimizer]:
        """Wrap the model, then create the optimizer of the wrapped model's parameters. Return both.

        An engine that is configured to create the optimizer itself does not call `make_optimizer`.

        Args:
            model: the user's model.
            make_optimizer: makes the optimizer of the wrapped model's parameters.
        """

    def synchronise(self, last_of_window: bool) -> None:
        """Set whether the gradients of the next micro-batch are reduced (the window's last) or only accumulated.

        Args:
            last_of_window: whether the micro-batch is the last of its window.
        """

    def backward(self, loss: Loss_contra) -> None:
        """Add the gradients of `loss` to those of the window.

        Args:
            loss: the loss of the micro-batch.
        """

    def unwrap(self, model: Model) -> Model:
        """Return the model as the user passed it.

        Args:
            model: the model, as the user passed it, or prepared.
        """


class Layout(Protocol[Model_contra, Array]):
    """The tensors of a prepared model: how they are distributed, and their names in the user's model."""

    @property
    def mesh(self) -> Mesh:
        """The processes."""

    @property
    def whole(self) -> bool:
        """Whether every rank holds all elements of every tensor, so that nothing has to be gathered."""

    @property
    def uneven(self) -> bool:
        """Whether a rank may hold no element of a parameter, and then has no moments of it."""

    def state(self, model: Model_contra) -> Mapping[str, Array]:
        """Return this rank's parameters and buffers; a tied tensor appears under each of its names. Collective.

        Args:
            model: the model, as the user passed it, or prepared.
        """

    def parameters(self, model: Model_contra) -> Mapping[str, Array]:
        """Return this rank's parameters, each under one name.

        Args:
            model: the model, as the user passed it, or prepared.
        """

    def spread(self, tensor: Array, parameter: Array) -> Spread | None:
        """Return how a parameter, or a moment of it, is distributed; None if every rank holds all of it.

        Args:
            tensor: a tensor of the prepared model.
            parameter: a parameter of the prepared model.
        """

    def local(self, tensor: Array) -> Array:
        """Return the box of a sharded tensor that this rank holds, as a view of the tensor, in any shape.

        Args:
            tensor: a tensor of the prepared model.
        """

    def like(self, parameter: Array, local: Array) -> Array:
        """Return a tensor that is distributed like a parameter, from this rank's box of it, in any shape.

        Args:
            parameter: a parameter of the prepared model.
            local: the elements that this rank holds.
        """

    def norm(self, own: Array) -> Array:
        """Return the norm of sharded gradients, from the norm of this rank's elements. Collective.

        Args:
            own: the norm of this rank's elements.
        """


class Sharding(Parallelism[Loss_contra], Protocol[Loss_contra, Model_contra, Array]):
    """An adapter whose capability `sharded` is set."""

    def spreads(self, model: Model_contra) -> bool:
        """Return whether the user's model is prepared, so that no rank holds all of it.

        Args:
            model: the model, as the user passed it, or prepared.
        """

    @property
    def layout(self) -> Layout[Model_contra, Array]:
        """The layout of the model that was prepared last."""


class OwnUpdate(Parallelism[Loss_contra], Protocol[Loss_contra]):
    """An adapter whose capability `owns_update` is set."""

    def learner(
        self,
        model: object,
        trainable: Trainable[Batch, Loss],
        before_optimizer_step: Callable[[], None],
        after_optimizer_step: Callable[[], None],
    ) -> Learner[Batch, Loss]:
        """Return the learner over the prepared model; it calls the two functions around each optimizer step.

        Args:
            model: the model, as the user passed it, or prepared.
            trainable: the pieces of a step of the prepared model.
            before_optimizer_step: called before each optimizer step.
            after_optimizer_step: called after each optimizer step.
        """


class SteppingInBackward(Parallelism[Loss_contra], Protocol[Loss_contra]):
    """An adapter whose capability `steps_in_backward` is set."""

    def attach(self, trainable: Trainable[Batch, Loss], max_norm: float) -> Callable[[], None]:
        """Let the optimizer of a trainable step within the backward pass. Return what ends that.

        The trainable's `clip` then returns the norm of the gradients that were clipped to `max_norm`, and its optimizer
        is one whose `step` does nothing.

        Args:
            trainable: the pieces of a step of the prepared model.
            max_norm: the norm to clip the gradients to; 0 disables clipping.

        Raises:
            ConfigurationError: for an optimizer that cannot update one parameter without the others.
        """


class ExportableModel(Exportable, Protocol):
    """The weights of a model, which can be compared with saved ones."""

    def differences(self, parts: Sequence[Part], types: bool = False) -> list[str]:
        """Return how saved tensors differ from the model's: missing, unknown, other shapes and, if asked, types.

        Args:
            parts: the saved tensors.
            types: whether their types have to agree.
        """


class OwnState(Parallelism[Loss_contra], Protocol[Loss_contra]):
    """An adapter whose capability `owns_state` is set. `model` is the prepared one.

    The exported parts have the names and the form in which one process exports a plain model and its optimizer, so that
    a run may resume with another engine.
    """

    def model_state(self, model: object, writers: int, kept: Callable[[str], bool] | None = None) -> ExportableModel:
        """Return what exports and loads the weights.

        Args:
            model: the model, as the user passed it, or prepared.
            writers: how many ranks export tensors of sharded weights.
            kept: returns whether the tensor of a name in the user's model is exported and loaded, as that of an
                adapter; all are if None.
        """

    def optimizer_state(self, model: object, optimizer: object) -> Exportable:
        """Return what exports and loads the moments.

        Args:
            model: the model, as the user passed it, or prepared.
            optimizer: the optimizer of its parameters.

        Raises:
            CheckpointError: if the engine's state is unknown.
        """

    def kept_state(self, model: object, optimizer: object) -> Mapping[str, Exportable]:
        """Return what exports and loads the "model" and the "optimizer" for a copy to which the same run returns.

        Each rank exports what it holds itself; all ranks load together.

        Args:
            model: the model, as the user passed it, or prepared.
            optimizer: the optimizer of its parameters.

        Raises:
            ConfigurationError: if the run could not return.
        """

    def group_sizes(self, model: object, optimizer: object) -> Sequence[int]:
        """Return how many of the model's parameters each of the optimizer's groups has.

        Args:
            model: the model, as the user passed it, or prepared.
            optimizer: the optimizer of its parameters.
        """

    def spreads_optimizer(self, model: object) -> bool:
        """Return whether each process keeps only a part of the moments.

        Args:
            model: the model, as the user passed it, or prepared.
        """
