"""A copy of a run's state in memory, to which the run can return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy

from attrs import define, evolve, field

from hexloop.domain.state import RunState
from hexloop.ports.state import Exportable, Part, Snapshots


@define(eq=False)
class StateInMemory:
    """Implements `hexloop.domain.guard.KeptState` with what a checkpoint holds, without a storage.

    exportables: everything that has state between steps, by name. snapshots: makes the copies; nothing else uses it.
    random: the random generators, which are restored last; one of the `exportables`, if there are any.
    before: called with the state before it is copied, to complete it. after: called with it once it is restored.
    """

    exportables: Mapping[str, Exportable]
    snapshots: Snapshots
    random: Exportable | None = None
    before: Callable[[RunState], None] = lambda _: None
    after: Callable[[RunState], None] = lambda _: None
    _state: RunState | None = field(default=None, init=False)
    _parts: dict[str, list[Part]] = field(factory=dict, init=False)

    def keep(self, state: RunState) -> None:
        """Copy the state of everything."""
        self.before(state)
        self._parts = {name: self.snapshots.take(name, each.export()) for name, each in self.exportables.items()}
        self._state = _copied(state)

    def restore(self) -> RunState:
        """Restore everything that was copied, and return a copy of the run's state."""
        assert self._state is not None  # `keep` was called
        for name, each in sorted(self.exportables.items(), key=lambda named: named[1] is self.random):
            each.load(iter(self._parts[name]))
        state = _copied(self._state)
        self.after(state)
        return state

    def random_state(self) -> Callable[[], None]:
        """Return a function that restores the random generators as they are now."""
        random = self.random
        if random is None:
            return lambda: None
        parts = list(random.export())
        return lambda: random.load(iter(parts))


def _copied(state: RunState) -> RunState:
    """Return a copy. What was logged is never changed, so the entries themselves are not copied."""
    history, state = state.history, evolve(state, history=[])
    copy = deepcopy(state)
    copy.history = list(history)
    return copy
