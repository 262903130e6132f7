"""Searches that draw by themselves, without a library: at random, over a grid, and from a list for tests.

None of them prunes. A trial that functions receive is a `SpaceTrial`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hexloop.adapters.search import SearchOptions, refuse_unknown_options
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.search.space import Choices, Distribution, SpaceTrial, parameters_of
from hexloop.ports.collectives import Json
from hexloop.ports.search import PastTrial, Proposal, TrialExport, TrialState


class DrawingSearch:
    """What searches that draw by themselves have in common. A subclass defines `_draw`.

    Trials are numbered from 0 in the order of `ask`.
    """

    summary: Any = None

    def __init__(self, space: Callable[[Any], Any]) -> None:
        self._space = space
        self._next = 0

    def ask(self) -> Proposal | None:
        """Draw the next trial; see `Search.ask`."""
        proposal = self._proposal(self._next, {})
        self._next += 1
        return proposal

    def report(self, proposal: Proposal, step: int, values: Sequence[float]) -> bool:
        """Return True: no trial is pruned."""
        return True

    def tell(self, proposal: Proposal, state: TrialState, values: Sequence[float] | None = None) -> None:
        """No-op: proposals do not depend on earlier trials."""

    def close(self) -> None:
        """No-op."""

    def export_state(self) -> Json:
        """Return the number of the next trial, which is all that a proposal depends on."""
        return {"next": self._next}

    def export_trial(self, proposal: Proposal) -> TrialExport:
        """Return what the trial has drawn."""
        trial: Any = proposal.trial
        return TrialExport(trial.params, {})

    def load_state(self, state: Json, trials: Sequence[PastTrial]) -> Sequence[Proposal]:
        """Continue after these trials; see `Search.load_state`."""
        number = state.get("next") if isinstance(state, dict) else None
        if type(number) is not int or any(each.number >= number for each in trials):
            raise CheckpointError(
                f"The state of the search is {state!r:.80}, which is not one of {type(self).__name__}."
            )
        self._next = number
        return [self._proposal(each.number, each.export.drawn) for each in trials if each.state is None]

    def _proposal(self, number: int, drawn: Mapping[str, Any]) -> Proposal:
        trial = SpaceTrial(number, lambda name, distribution: self._draw(number, name, distribution), drawn)
        return Proposal(number, str(number), parameters_of(self._space, trial), trial)

    def _draw(self, number: int, name: str, distribution: Distribution) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define _draw")


class RandomSearch(DrawingSearch):
    """Search adapter that draws each value by itself, as a function of the seed, the trial and the name.

    Proposals therefore do not depend on restarts, on the order of the space, or on how many trials are in progress.

    Args:
        options: the space, the seed, the number of trials and what else a search is told.
    """

    def __init__(self, options: SearchOptions) -> None:
        refuse_unknown_options(options.options, (), "random")
        super().__init__(options.space)
        self._seed = options.seed

    def _draw(self, number: int, name: str, distribution: Distribution) -> Any:
        digest = hashlib.blake2b(f"{self._seed}/{number}/{name}".encode(), digest_size=8).digest()
        return distribution.at((int.from_bytes(digest, "big") >> 11) * 2.0**-53)


class GridSearch(DrawingSearch):
    """Search adapter that tries every combination once, the value that is drawn last changing first.

    What is drawn may depend on what was drawn before: each combination is a path through the space. Everything is to be
    drawn in the search space itself, with finitely many values.

    Args:
        options: the space, the seed, the number of trials and what else a search is told.
    """

    def __init__(self, options: SearchOptions) -> None:
        refuse_unknown_options(options.options, (), "grid")
        super().__init__(options.space)
        self._path: list[list[int]] | None = []
        self._taken: list[list[int]] = []
        self._is_drawing = False

    def ask(self) -> Proposal | None:
        """Return the next combination; None after the last one."""
        if self._path is None:
            return None
        self._taken = []
        proposal = super().ask()
        self._path = _advanced(self._taken)
        return proposal

    def export_state(self) -> Json:
        """Return the number of the next trial, and the path of its combination."""
        return {"next": self._next, "path": self._path}

    def load_state(self, state: Json, trials: Sequence[PastTrial]) -> Sequence[Proposal]:
        """Continue after these trials; see `Search.load_state`."""
        found = super().load_state(state, trials)
        path: Any = state.get("path", ()) if isinstance(state, dict) else ()
        if path is not None and not (
            isinstance(path, list)
            and all(isinstance(each, list) and list(map(type, each)) == [int, int] for each in path)
        ):
            raise CheckpointError(f"The path of the grid is {path!r:.80}, which is not one of indices.")
        self._path = path
        return found

    def _proposal(self, number: int, drawn: Mapping[str, Any]) -> Proposal:
        self._is_drawing = True
        try:
            return super()._proposal(number, drawn)
        finally:
            self._is_drawing = False

    def _draw(self, number: int, name: str, distribution: Distribution) -> Any:
        values = distribution.values
        if not self._is_drawing:
            raise ConfigurationError(
                f"{name!r} is drawn outside of the search space, so the grid does not contain it; draw it in hp_space."
            )
        if values is None:
            raise ConfigurationError(
                f"The search space has {name!r} without a step, so a grid has no end; give a step, or choices."
            )
        place = len(self._taken)
        index = self._path[place][0] if self._path and place < len(self._path) else 0
        self._taken.append([min(index, len(values) - 1), len(values)])
        return values[self._taken[-1][0]]


def _advanced(path: Sequence[Sequence[int]]) -> list[list[int]] | None:
    """Return the path after this one, None after the last. Each entry is an index and the number of values."""
    for place in reversed(range(len(path))):
        index, count = path[place]
        if index + 1 < count:
            return [*map(list, path[:place]), [index + 1, count]]
    return None


class ScriptedSearch(DrawingSearch):
    """Search adapter for tests, which proposes a list of parameters and prunes as it is told.

    Args:
        parameters: the parameters of each trial.
        prunes: returns whether a trial is pruned, given its number, a step and the values. told: how each trial ended,
            by number, with its values. reports: what was reported, in order. closed: whether the search was closed.
    """

    def __init__(
        self,
        parameters: Sequence[Mapping[str, Any]],
        prunes: Callable[[int, int, Sequence[float]], bool] = lambda number, step, values: False,
    ) -> None:
        super().__init__(lambda trial: self._parameters[trial.number])
        self._parameters = [dict(each) for each in parameters]
        self._prunes = prunes
        self.told: dict[int, tuple[TrialState, tuple[float, ...] | None]] = {}
        self.reports: list[tuple[int, int, tuple[float, ...]]] = []
        self.closed = False

    def ask(self) -> Proposal | None:
        """Return the next trial of the list; None at its end."""
        return super().ask() if self._next < len(self._parameters) else None

    def report(self, proposal: Proposal, step: int, values: Sequence[float]) -> bool:
        """Note the report, and return whether the trial continues."""
        self.reports.append((proposal.number, step, tuple(values)))
        return not self._prunes(proposal.number, step, values)

    def tell(self, proposal: Proposal, state: TrialState, values: Sequence[float] | None = None) -> None:
        """Note how the trial ended.

        Raises:
            ValueError: for a trial that was told before.
        """
        if proposal.number in self.told:
            raise ValueError(f"Trial {proposal.number} was told before.")
        self.told[proposal.number] = state, None if values is None else tuple(values)

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def load_state(self, state: Json, trials: Sequence[PastTrial]) -> Sequence[Proposal]:
        """Continue after these trials, noting how they ended."""
        found = super().load_state(state, trials)
        for each in trials:
            if each.state is not None:
                values = None if each.values is None else tuple(each.values)
                self.told[each.number] = each.state, values
        return found

    def _proposal(self, number: int, drawn: Mapping[str, Any]) -> Proposal:
        return super()._proposal(number, drawn or self._parameters[number])

    def _draw(self, number: int, name: str, distribution: Distribution) -> Any:
        values = distribution.values
        return distribution.at(0.0) if isinstance(distribution, Choices) or values is None else values[0]
