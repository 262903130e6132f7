"""What takes a training step: the model with its loss and optimizer, the number format, and the learning rates.

The loop sees a learner, with two indivisible actions. There are only two so that a user's hook, an engine or a compiler
may own a whole action. The loop does not know how many kernels, processes or machines an action takes. The standard
learner (`hexloop.domain.loop`) calls the pieces of a Trainable and of a Precision in the standard order: forward,
backward, unscale, clip, step. An engine whose step cannot be divided implements Learner instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ParamSpec, Protocol, SupportsFloat, TypeVar

from hexloop.ports.state import Part

Batch_contra = TypeVar("Batch_contra", contravariant=True)
Loss = TypeVar("Loss")
Loss_co = TypeVar("Loss_co", covariant=True)
Loss_contra = TypeVar("Loss_contra", contravariant=True)
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

HALF_FORMATS = ("fp16", "bf16")
"""The names of the formats of 16 bits."""

MIXED_FORMATS = (*HALF_FORMATS, "fp8")
"""The names of the formats in which a forward pass returns numbers of 16 bits; in fp8, some layers multiply in 8."""


class Learner(Protocol[Batch_contra, Loss_co]):
    """Learns from windows of micro-batches. Each window ends in one update."""

    def count_items(self, window: Sequence[Batch_contra]) -> object:
        """Return the number of items (label tokens, rows) that the window's loss averages over, on the device.

        None if the learner needs no count, because every micro-batch of the window has the same weight.

        Args:
            window: the micro-batches of the step.
        """

    def micro_step(self, batch: Batch_contra, window_items: object, last_of_window: bool) -> Loss_co:
        """Run forward and backward of one micro-batch. Return its share of the window's loss, on the device.

        Args:
            batch: the micro-batch.
            window_items: what `count_items` returned for the window.
            last_of_window: whether an update follows.
        """

    def update(self, max_norm: float) -> tuple[SupportsFloat | None, bool]:
        """Clip the gradients to `max_norm` (0: do not clip) and take one optimizer step.

        Return the gradient norm before clipping (None if it was not measured), and whether the step was taken. It is
        skipped after an overflow under loss scaling; weights and moments are unchanged then.

        Args:
            max_norm: the norm to clip the gradient to; 0 disables clipping.
        """


class Optimizer(Protocol):
    """The part of an optimizer that the domain knows."""

    def step(self) -> object:
        """Update the weights with the gradients."""


class Trainable(Protocol[Batch_contra, Loss]):
    """The pieces of one training step."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the model's parameters. Precision adapters of the same framework may use more of its API."""

    def count_items(self, window: Sequence[Batch_contra]) -> object:
        """See `Learner.count_items`.

        Args:
            window: the micro-batches of the step.
        """

    def loss(self, batch: Batch_contra, window_items: object) -> Loss:
        """Run the forward pass and return the micro-batch's share of the window's loss, ready for backward.

        Args:
            batch: the micro-batch.
            window_items: what `count_items` returned for the window.
        """

    def clip(self, max_norm: float) -> SupportsFloat | None:
        """Clip the gradients to `max_norm` and return their norm before clipping (None if it was not measured).

        Args:
            max_norm: the norm to clip the gradient to; 0 disables clipping.
        """

    def clear_gradients(self) -> None:
        """Clear the gradients of the window."""

    def detached(self, loss: Loss) -> Loss:
        """Return the loss as a scalar on the device without its graph, so that activations can be freed.

        Args:
            loss: a loss on the device.
        """


class Precision(Protocol[Loss]):
    """The number format of the computation, and whether an update is safe to apply.

    `wrap` is called once, not at each step, so that the plain format has no cost; `scale`, `unscale` and `step` exist
    for loss scaling and are trivial otherwise.
    """

    @property
    def name(self) -> str:
        """Usual name of the format: fp32, tf32, bf16, fp16, ..."""

    def wrap(self, forward: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        """Return the forward pass computed in this format; contexts are open only during the call.

        Args:
            forward: the forward pass.
        """

    def convert(self, model: object) -> None:
        """Let the layers of a model compute in this format, in place; no-op if `wrap` alone decides.

        It is called before an engine prepares the model, and again in later runs and evaluations, where it changes
        nothing.

        Args:
            model: the model, as the engine or the caller passes it.
        """

    def scale(self, loss: Loss) -> Loss:
        """Return the loss to call backward on.

        Args:
            loss: a loss on the device.
        """

    def unscale(self, optimizer: Optimizer) -> None:
        """Undo `scale` on the gradients that `optimizer` is about to use, once: again before `step` it is a no-op.

        Args:
            optimizer: the optimizer of the model's parameters.
        """

    def step(self, optimizer: Optimizer) -> bool:
        """Step the optimizer if its gradients are finite; return whether it stepped.

        Args:
            optimizer: the optimizer of the model's parameters.
        """

    def discard_update(self) -> None:
        """Forget an update that was begun with `scale` or `unscale` and not completed; a run calls it at its start."""

    def export(self) -> Iterator[Part]:
        """Yield the loss scale and its history, if there is one."""

    def load(self, parts: Iterable[Part]) -> None:
        """Restore an exported state, without the gradients of an update that was begun and not completed."""


class Scheduler(Protocol):
    """Sets the learning rates. The loop calls it after each update that was taken and after each evaluation."""

    def start(self, updates: int) -> None:
        """Set the rates of the update numbered `updates`, from 0.

        Args:
            updates: the number of the update, from 0.
        """

    def advance(self, updates: int) -> None:
        """Set the rates of the next update, after `updates` updates were taken.

        Args:
            updates: updates taken.
        """

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Adapt the rates to the metrics of an evaluation, if the schedule follows one.

        Args:
            metrics: the metrics of the evaluation by name.
        """

    def rates(self) -> tuple[float, ...]:
        """Return the current rates, one for each parameter group."""

    def export(self) -> Iterator[Part]:
        """Export the state that the number of updates does not determine."""

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported state."""


class Losses(Protocol[Loss_contra]):
    """Sums losses without waiting for the device. The host only waits in `drain`, when a log is due."""

    def add(self, loss: Loss_contra) -> None:
        """Add one micro-batch's share of its window's loss.

        Args:
            loss: a loss on the device.
        """

    def drain(self) -> float:
        """Return the sum of everything added since the last drain, and reset it to zero."""

    def drain_components(self) -> Mapping[str, float]:
        """Return the sums of the scalars beside the loss, by name, as `drain` found them. Called after it."""

    def export(self) -> Iterator[Part]:
        """Export the sum that was not drained yet."""

    def load(self, parts: Iterable[Part]) -> None:
        """Load an exported sum."""


class WindowValues(Protocol[Loss_contra]):
    """Collects what each optimizer step computed. `add` does not wait for the device; `drain` does."""

    def add(self, shares: Sequence[Loss_contra], gradient_norm: SupportsFloat | None) -> None:
        """Add a window: the shares of its micro-batches, whose sum is its loss, and its norm (None: not measured).

        Args:
            shares: one loss per micro-batch.
            gradient_norm: the norm before clipping; None if it was not measured.
        """

    def drain(self) -> Sequence[tuple[float, float | None]]:
        """Return the loss and the gradient norm of each window since the last drain, in order, and forget them."""
