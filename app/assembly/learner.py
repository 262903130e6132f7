"""What takes a run's training steps, and how micro-batches are grouped to them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol

from attrs import define, field, frozen

from hexloop.domain.errors import DataError
from hexloop.domain.loop import StandardLearner
from hexloop.domain.run import Run
from hexloop.ports.learner import Learner
from hexloop.ports.parallelism import ExportableModel
from hexloop.ports.state import Exportable

Windows = Callable[[Generator[Any, None, None], int], Generator[list[Any], None, None]]


@define
class WindowState:
    """Where a run is in its window of micro-batches, as far as an overridden hook needs to know.

    length: micro-batches of the current window; None if no hook that asks for it is overridden. run: None until it is
    constructed.
    """

    length: int | None = None
    run: Run[Any, Any] | None = None

    @property
    def batches_left(self) -> int | None:
        """How many micro-batches the epoch has after those of all windows so far; None if that is not known."""
        if self.run is None or self.run.plan.batches_per_epoch is None:
            return None
        return max(0, self.run.plan.batches_per_epoch - self.run.state.batches)


class Modes(Protocol):
    """Puts a model in evaluation mode, and back in the modes that it had before."""

    def enter_evaluation(self, model: Any) -> None:
        """Put the model in evaluation mode, and keep the modes that it had."""

    def restore(self) -> None:
        """Restore the modes that the model had before the first evaluation since the last call."""


class AlwaysInTraining:
    """Implements Modes for models that have none."""

    def enter_evaluation(self, model: Any) -> None:
        """No-op."""

    def restore(self) -> None:
        """No-op."""


class AveragedWeights(Protocol):
    """Averages of the weights that are trained, which are evaluated and saved in their place, or beside them."""

    @property
    def before_forward(self) -> Callable[[], object] | None:
        """What is called before each forward pass of training; None if there is nothing to call."""

    @property
    def after_step(self) -> Callable[[bool], None] | None:
        """What is called after each optimizer step, with whether it was taken; None if there is nothing to call."""

    @property
    def kind(self) -> str:
        """What computes them: "optimizer", "ema"; "" for none, or if they are not part of checkpoints."""

    @property
    def beside(self) -> bool:
        """Whether the weights that are trained are evaluated and saved too."""

    @property
    def shown(self) -> bool:
        """Whether they are in the model at present."""

    def show(self) -> None:
        """Put them into the model, until `hide` has been called as often."""

    def hide(self) -> None:
        """Put the weights that are trained back, bit-identical to what they were."""

    def conceal(self) -> Callable[[], None]:
        """Put the weights that are trained back for some time; return what shows the averages again."""

    def settle(self) -> None:
        """Leave them in the model at the end of a run, unless they are kept beside it."""

    def resume(self, updates: int) -> None:
        """Continue with what was loaded from a checkpoint. updates: of the optimizer so far."""

    def components(self, model: ExportableModel) -> Mapping[str, Exportable]:
        """Return the components of a checkpoint that differ for them. model: what is saved of the model otherwise."""

    def kept(self) -> Mapping[str, Exportable]:
        """Return what a copy in memory, to which a run returns, holds of them."""


class NoAverages:
    """Implements AveragedWeights for a run that evaluates and saves the weights that it trains."""

    kind = ""
    beside = False
    shown = False
    before_forward: Callable[[], object] | None = None
    after_step: Callable[[bool], None] | None = None

    def show(self) -> None:
        """No-op."""

    def hide(self) -> None:
        """No-op."""

    def conceal(self) -> Callable[[], None]:
        """Return a function that does nothing."""
        return lambda: None

    def settle(self) -> None:
        """No-op."""

    def resume(self, updates: int) -> None:
        """No-op."""

    def components(self, model: ExportableModel) -> Mapping[str, Exportable]:
        """Return none."""
        return {}

    def kept(self) -> Mapping[str, Exportable]:
        """Return none."""
        return {}


EMA = "ema"
"""The end of the prefix of metrics of averages that are evaluated beside the trained weights, and their folder."""


@define(eq=False)
class Averages:
    """The averaged weights of the live or the last run of a Trainer.

    layout: the framework's layout that has them in the place of the weights, where the state of a model is made for
    them; None otherwise.
    """

    weights: AveragedWeights = field(factory=NoAverages)
    layout: Any = None

    @property
    def replacing(self) -> AveragedWeights | None:
        """Those that are evaluated and saved in place of the weights that are trained; None if there are none."""
        return None if self.weights.beside or type(self.weights) is NoAverages else self.weights

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within, those that replace the weights that are trained are in the model. No event may be yielded within."""
        replacing = self.replacing
        if replacing is None:
            yield
            return
        replacing.show()
        try:
            yield
        finally:
            replacing.hide()

    def settle(self) -> None:
        """Leave them in the model, and forget them, unless they are kept beside it."""
        self.weights.settle()
        if not self.weights.beside and self.weights.kind:
            self.weights = NoAverages()


@frozen
class RunLearner:
    """What takes a run's training steps.

    standard: forward, backward and update as they are if no hook is overridden. learner: what the loop calls; the same
    object in that case. windows: groups micro-batches for each optimizer step. window: where the run is in its window.
    modes: the training modes of the model's modules, which evaluations change and the next step restores.
    trainable: the model and its optimizer, as `standard` drives them. count_items: returns the item count of a window
    as `standard` counts, on the device. close: called when the run has ended.
    """

    standard: Learner[Any, Any]
    learner: Learner[Any, Any]
    windows: Windows
    window: WindowState
    modes: Modes
    trainable: Any
    count_items: Callable[[Sequence[Any]], object]
    close: Callable[[], None] = lambda: None


def whole_windows(group: Windows) -> Windows:
    """Return `group`, which raises DataError where transformers would keep gradients for the next epoch."""

    def checked(batches: Generator[Any, None, None], accumulation: int) -> Generator[list[Any], None, None]:
        with closing(group(batches, accumulation)) as found:
            for window in found:
                if len(window) < accumulation:
                    raise DataError(
                        f"The data have no length and ended after {len(window)} of the {accumulation} micro-batches "
                        "of a step, whose gradients transformers adds to the next epoch's first step and "
                        "reproduce='transformers' does not; give the data set a length, let its batches fill whole "
                        "steps, or leave reproduce out."
                    )
                yield window

    return checked


class SynchronisingLearner(StandardLearner[Any, Any]):
    """A standard learner that averages gradients at every micro-batch instead of the last one of a window.

    This is slower, but needs less memory if weights are sharded.
    """

    def micro_step(self, batch: Any, window_items: object, last_of_window: bool) -> Any:
        """Run forward and backward of one micro-batch, and average its gradients."""
        return super().micro_step(batch, window_items, True)


class AfterStep:
    """What a learner calls after each optimizer step; the function passed to `first` is called once."""

    def __init__(self, each: Callable[[], None]) -> None:
        self._each = self._call = each

    def __call__(self) -> None:
        """Call the functions."""
        self._call()

    def first(self, call: Callable[[], None]) -> None:
        """Call a function after the next optimizer step only."""

        def call_both() -> None:
            self._call = self._each
            self._each()
            call()

        self._call = call_both
