"""Losses that are not finite, and loss spikes: how a run finds them without waiting for the device, and what it does.

The values of all windows stay on the device. A check reads them together where the run waits for the device anyway: at
a log, a save, an evaluation and the end of an epoch. By then the weights may have changed with them. A run that leaves
such windows out therefore returns to the state that it keeps in memory, and trains again from there without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from enum import Enum
from statistics import median
from typing import Generic, Protocol, SupportsFloat, TypeVar

from attrs import define, evolve, field, frozen

from hexloop.domain.errors import NotFiniteError
from hexloop.domain.events import IrregularWindow
from hexloop.domain.state import RunState, SkippedWindow
from hexloop.domain.wording import troubleshooting
from hexloop.ports.learner import WindowValues

Loss = TypeVar("Loss")
Window = TypeVar("Window")

READ_AFTER = 1000
"""Steps after which values are read at the latest, so that a run that never logs does not collect them for ever."""

MEDIAN_OF, JUDGED_FROM = 64, 16
"""A spike is judged by the median of this many losses at most, and of this many at least."""

KEPT_EVERY = 100
"""Steps between two copies of the state at logs, so that the copies cost little."""

MOST_SKIPPED = 1000
"""How many windows that were left out in earlier epochs the state of a run lists."""


class Reaction(Enum):
    """What a run does with a window: train on it and warn, stop, or continue as if the data lacked it.

    SKIP and ROLLBACK have the same result. SKIP also keeps the state at logs, ROLLBACK only at saves.
    """

    WARN = "warn"
    STOP = "stop"
    SKIP = "skip"
    ROLLBACK = "rollback"

    @property
    def leaves_out(self) -> bool:
        """Whether the run continues without the window."""
        return self in (Reaction.SKIP, Reaction.ROLLBACK)


@frozen
class GuardOptions:
    """What is looked for, and the reactions.

    spike_factor: a loss greater than this times the median of recent losses is a spike; None: spikes are not looked
    for. limit: windows in a row that may be left out; None: 3 with ROLLBACK, 100 with SKIP.
    filters: a log replaces losses that are not finite by the mean of the others. counts: it then has their number.
    """

    on_nonfinite: Reaction = Reaction.WARN
    spike_factor: float | None = None
    on_spike: Reaction = Reaction.WARN
    limit: int | None = None
    filters: bool = True
    counts: bool = True

    @property
    def reactions(self) -> tuple[Reaction, ...]:
        """The reactions that may occur."""
        return (self.on_nonfinite,) if self.spike_factor is None else (self.on_nonfinite, self.on_spike)

    @property
    def acts(self) -> bool:
        """Whether there is more than a warning."""
        return any(each is not Reaction.WARN for each in self.reactions)

    @property
    def leaves_out(self) -> bool:
        """Whether windows may be left out, so that a state must be kept."""
        return any(each.leaves_out for each in self.reactions)

    def most_in_a_row(self, reaction: Reaction) -> int:
        """Return how many windows in a row may be left out."""
        return self.limit if self.limit is not None else 3 if reaction is Reaction.ROLLBACK else 100


@frozen
class WindowPlace:
    """Where a window is in the data: its first sample's position in the epoch, and its number of samples."""

    epoch: int
    position: int
    samples: int


class KeptState(Protocol):
    """A copy of a run's whole state in memory."""

    def keep(self, state: RunState) -> None:
        """Copy the state of everything, instead of the earlier copy."""

    def restore(self) -> RunState:
        """Restore everything, and return the run's state as it was."""

    def random_state(self) -> Callable[[], None]:
        """Return a function that restores the random generators as they are now."""


class NothingKept:
    """A KeptState of a run that never returns to it."""

    def keep(self, state: RunState) -> None:
        """No-op."""

    def restore(self) -> RunState:
        """Raise NotImplementedError."""
        raise NotImplementedError

    def random_state(self) -> Callable[[], None]:
        """Return a no-op."""
        return lambda: None


class NoValues:
    """WindowValues of a run that is not checked."""

    def add(self, shares: Sequence[object], gradient_norm: SupportsFloat | None) -> None:
        """No-op."""

    def drain(self) -> Sequence[tuple[float, float | None]]:
        """Return nothing."""
        return ()


@define
class Guard(Generic[Loss]):
    """Checks the windows of a run.

    indices_of: returns the dataset's indices of a window's samples, if they are known. announce: is told which windows
    are left out, before an epoch is read.
    kept: the state to return to. returns_to_kept: a check found a window to leave out, and the run has to continue from
    the kept state.
    """

    options: GuardOptions = field(factory=GuardOptions)
    values: WindowValues[Loss] = field(factory=NoValues)
    kept: KeptState = field(factory=NothingKept)
    indices_of: Callable[[WindowPlace], Sequence[int] | None] = lambda _: None
    announce: Callable[[Sequence[SkippedWindow]], None] = lambda _: None
    returns_to_kept: bool = field(default=False, init=False)
    _places: list[tuple[int, int, int]] = field(factory=list, init=False)
    _left_out: list[SkippedWindow] = field(factory=list, init=False)
    _restore_random: Callable[[], None] | None = field(default=None, init=False)
    _kept_at: int | None = field(default=None, init=False)
    _is_saved: bool = field(default=False, init=False)

    def note_window(self, epoch: int, position: int, samples: int) -> None:
        """Note where the window that was just trained on is in the data."""
        self._places.append((epoch, position, samples))

    @property
    def is_full(self) -> bool:
        """Whether values must be read now."""
        return len(self._places) >= READ_AFTER

    def check(self, state: RunState, acts: bool = True) -> Iterator[IrregularWindow]:
        """Read and judge the windows since the last check; yield the event of each that is reported.

        If one is to be left out, the windows after it count for nothing, and `returns_to_kept` is set. Without `acts`
        the run is over, and all that follows from a window is its report.
        Raises NotFiniteError if the run has to stop.
        """
        values, places = self.values.drain(), self._places
        self._places = []
        if self.options.spike_factor is None and _are_finite(values):  # as nearly always
            for loss, _ in values:
                state.finite_loss += loss
            state.finite_steps += len(values)
            return
        first = state.step - len(values)
        for number, ((loss, norm), where) in enumerate(zip(values, places, strict=False)):
            place = WindowPlace(*where)
            found = self._judged(state, first + number, place, loss, norm)
            if found is None:
                continue
            if acts and found.reaction != Reaction.WARN.value:
                yield from self._react(state, found)
                return
            if found.first:
                yield evolve(found, indices=self.indices_of(place))

    def loss_of_log(self, state: RunState, total: float, steps: int) -> tuple[float, dict[str, float]]:
        """Return the sum of the losses of the steps since the last log, and what the log says besides.

        total: the sum as it was computed. With the filter, steps whose loss is not finite count as the mean of the
        others; the sum is NaN if there are no others.
        """
        filtered, further = state.nonfinite_steps, dict[str, float]()
        if filtered and self.options.filters and self.options.counts:
            total = state.finite_loss / state.finite_steps * steps if state.finite_steps else math.nan
            further = {"nonfinite_steps": filtered}
        state.finite_loss, state.finite_steps, state.nonfinite_steps = 0.0, 0, 0
        return total, further

    # The kept state

    def note_save(self) -> None:
        """Keep the state at the next opportunity, because it was saved."""
        self._is_saved = True

    def keep(self, state: RunState) -> None:
        """Keep the state if there is none yet, if it was saved, or with SKIP if the last copy is some steps old.

        Called where all windows so far are checked.
        """
        if not self.options.leaves_out or self._places:
            return
        old = self._kept_at is None or (
            Reaction.SKIP in self.options.reactions and state.step - self._kept_at >= KEPT_EVERY
        )
        if old or self._is_saved:
            self.kept.keep(state)
            self._kept_at, self._is_saved, self._left_out = state.step, False, []

    def return_to_kept(self) -> RunState:
        """Restore the kept state, which from now on lists the window to leave out, and return it."""
        state = self.kept.restore()
        listed = [*state.skipped, *self._left_out]
        earlier = [each for each in listed if each.epoch < state.epoch][-MOST_SKIPPED:]
        state.skipped = earlier + [each for each in listed if each.epoch >= state.epoch]
        self.returns_to_kept, self._places = False, []
        return state

    def reading(self, state: RunState, windows: Generator[Window, None, None]) -> Generator[Window, None, None]:
        """Yield the windows; before one to leave out is read, remember the random state for `leaves_out`."""
        positions = {each.position for each in state.skipped if each.epoch == state.epoch}
        self.announce(state.skipped)
        with closing(windows):
            while True:
                self._restore_random = self.kept.random_state() if state.position in positions else None
                window = next(windows, None)
                if window is None:
                    return
                yield window

    def leaves_out(self) -> bool:
        """Return whether the window that was just read is left out; then the random state is that from before it."""
        restore, self._restore_random = self._restore_random, None
        if restore is not None:
            restore()
        return restore is not None

    def _judged(
        self, state: RunState, step: int, place: WindowPlace, loss: float, norm: float | None
    ) -> IrregularWindow | None:
        """Add a window to the counts of the state; return what is wrong with it. step: steps done before it."""
        options, typical = self.options, self._median(state)
        finite = math.isfinite(loss)
        state.nonfinite_steps += not finite
        if finite:
            state.finite_loss += loss
            state.finite_steps += 1
        spikes = finite and options.spike_factor is not None and typical > 0 and loss > options.spike_factor * typical
        if finite and options.spike_factor is not None:
            state.recent_losses = [*state.recent_losses[1 - MEDIAN_OF :], loss]
        if not finite:
            kind, value, reaction = "loss", loss, options.on_nonfinite
            first, state.nonfinite_losses = not self._nonfinite(state), state.nonfinite_losses + 1
        elif norm is not None and not math.isfinite(norm):
            kind, value, reaction = "gradient norm", norm, options.on_nonfinite
            first, state.nonfinite_norms = not self._nonfinite(state), state.nonfinite_norms + 1
        elif spikes:
            kind, value, reaction = "spike", loss, options.on_spike
            first, state.spikes = state.spikes == 0, state.spikes + 1
        else:
            return None
        return IrregularWindow(
            step + 1, kind, value, reaction.value, place.epoch, place.position, place.samples,
            first=first, median=typical if kind == "spike" else None,
        )  # fmt: skip

    @staticmethod
    def _nonfinite(state: RunState) -> int:
        return state.nonfinite_losses + state.nonfinite_norms

    @staticmethod
    def _median(state: RunState) -> float:
        return median(state.recent_losses) if len(state.recent_losses) >= JUDGED_FROM else 0.0

    def _react(self, state: RunState, found: IrregularWindow) -> Iterator[IrregularWindow]:
        place = WindowPlace(found.epoch, found.position, found.samples)
        found = evolve(found, indices=self.indices_of(place), back_to=self._kept_at)
        reaction, before = Reaction(found.reaction), found.step - 1
        if reaction is Reaction.STOP:
            yield evolve(found, back_to=None)
            raise NotFiniteError(
                f"{found.described}, and the run was to stop at that. No checkpoint was saved since the last check. "
                "Look at these samples, the learning rate and the precision, and resume from the last checkpoint; with "
                "on_nonfinite or on_spike 'skip' or 'rollback' a run continues without such a window. For help, "
                f"{troubleshooting('NaN loss')}."
            )
        in_a_row = 1
        for each in reversed(state.skipped):
            if each.step != before:
                break
            in_a_row += 1
        yield found
        if in_a_row > (most := self.options.most_in_a_row(reaction)):
            raise NotFiniteError(
                f"{found.described}, after {most} windows in a row that were left out for such a reason. It is not the "
                "data of single windows then: look at the learning rate, the precision, the model and the weights that "
                f"the run started from, or set a larger nonfinite_limit. For help, {troubleshooting('NaN loss')}."
            )
        self._left_out.append(SkippedWindow(place.epoch, place.position, place.samples, before, found.kind))
        self.returns_to_kept = True


def _are_finite(values: Sequence[tuple[float, float | None]]) -> bool:
    """Return whether every loss and every norm is finite. A sum that overflows makes it False as well."""
    total = 0.0
    for loss, norm in values:
        total += loss if norm is None else loss + norm
    return math.isfinite(total)
