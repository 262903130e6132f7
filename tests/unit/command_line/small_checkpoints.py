"""Checkpoints of a linear model, saved within milliseconds and without a framework."""

from __future__ import annotations

from attrs import define, field

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.trainable.least_squares import LeastSquares, least_squares
from hexloop.domain.checkpoints.manifest import new_session
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.state import RunState
from hexloop.ports.storage import Storage


@define
class SmallRun:
    """A run that only saves; before each save its first weight is set to the step."""

    storage: Storage
    name: str
    trainable: LeastSquares = field(factory=lambda: least_squares(3))
    store: CheckpointStore = field(init=False)
    state: RunState = field(init=False)

    @store.default
    def _make_store(self) -> CheckpointStore:
        contents = CheckpointContents({"model": self.trainable.model, "optimizer": self.trainable.optimizer})
        return CheckpointStore(self.storage, contents, session=new_session())

    @state.default
    def _make_state(self) -> RunState:
        return RunState(run=self.name)

    def save(self, step: int, eval_loss: float | None = None, weight: float | None = None) -> None:
        """Save a checkpoint at a step; an evaluated one may be the best."""
        self.state.step = step
        self.trainable.model.parameters[0] = float(step) if weight is None else weight
        if eval_loss is not None:
            self.state.history.append({"eval_runtime": 0.5, "eval_loss": eval_loss, "epoch": 0.5, "step": step})
            if self.state.best_metric is None or eval_loss < self.state.best_metric:
                self.state.best_metric, self.state.best_step = eval_loss, step
        for _ in self.store.save(self.state):
            pass


def saved(storage: Storage, name: str, *steps: int) -> SmallRun:
    """Return a run with a checkpoint at each of the steps and the lowest loss at step 20."""
    run = SmallRun(storage, name)
    for step in steps:
        run.save(step, eval_loss=abs(step - 20) / 10)
    return run


def flip(storage: Storage, path: str) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(b"".join(storage.read(path)))
    data[len(data) // 2] ^= 1
    storage.remove(path)
    storage.write(path, [bytes(data)])
