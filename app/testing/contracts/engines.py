"""Contract suite of an engine: its adapter of the Parallelism port, and what the app asks of it around a run."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.adapters.device.simulated import SimulatedDevice
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.app.testing.contracts.processes import ParallelismContract
from hexloop.app.testing.contracts.state import contents, kept
from hexloop.domain.loop import StandardLearner
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine, RunFacts
from hexloop.ports.learner import Learner
from hexloop.ports.parallelism import OwnState, OwnUpdate, Parallelism, Sharding
from hexloop.ports.trainable import Trainable

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")
Model = TypeVar("Model")


def _no_op() -> None:
    """No-op."""


class EngineContract(ParallelismContract[Model, Batch, Loss], Generic[Model, Batch, Loss]):
    """Contract suite of an engine, for a single process and for each rank of a larger world.

    Optional abilities are tested if the capabilities of the adapter state them.
    """

    def engine(self) -> Engine[Any, Loss]:
        """Return the engine under test."""
        raise NotImplementedError

    def arguments(self) -> Any:
        """Return training arguments that choose the engine, with valid options."""
        raise NotImplementedError

    def device(self) -> Device:
        """Return the device to train on."""
        return SimulatedDevice()

    def make(self) -> Parallelism[Loss]:
        """Return a new adapter of the engine."""
        return self.engine().make(self.arguments(), self.device())

    def learner(
        self,
        parallelism: Parallelism[Loss],
        model: Model,
        optimizer: Any,
        before: Callable[[], None] = _no_op,
        after: Callable[[], None] = _no_op,
    ) -> Learner[Batch, Loss]:
        """Return the learner that a run uses: the engine's own if it owns the update, else the standard one."""
        trainable: Trainable[Batch, Loss] = self.trainable(model, optimizer)
        if parallelism.capabilities.owns_update:
            return cast("OwnUpdate[Loss]", parallelism).learner(model, trainable, before, after)
        return StandardLearner(trainable, PlainPrecision(), parallelism, before, after)

    def step(self, learner: Learner[Batch, Loss], size: int = 1) -> tuple[float, float | None]:
        """Run a step on a window of `size` equal batches; return its loss and gradient norm."""
        window = [self.batch() for _ in range(size)]
        items = learner.count_items(window)
        shares = [learner.micro_step(batch, items, index == size - 1) for index, batch in enumerate(window)]
        norm, taken = learner.update(1e30)
        assert taken
        return sum(float(cast(Any, share)) for share in shares), None if norm is None else float(norm)

    def test_valid_options_have_no_problems(self) -> None:
        """Arguments with valid options are accepted, before and after the model is known."""
        engine, facts = self.engine(), RunFacts(self.model(), total_steps=3)

        assert engine.name
        assert not engine.problems(self.arguments())
        assert not engine.check(self.arguments(), facts)
        assert engine.precision(self.arguments()) != ""
        assert engine.consolidates(self.arguments()) in (True, False)

    def test_models_can_be_created_in_its_contexts(self) -> None:
        """A model that is created in the engine's contexts can be prepared."""
        engine, parallelism = self.engine(), self.make()
        with engine.model_init(self.arguments()):
            model = self.model()
        assert parallelism.unwrap(parallelism.prepare(model, self.optimizer)[0]) is model
        with engine.sharded_init(self.arguments(), _no_op):
            model = self.model()
        assert parallelism.unwrap(parallelism.prepare(model, self.optimizer)[0]) is model

    def test_a_step_calls_both_hooks_once(self, parallelism: Parallelism[Loss]) -> None:
        """The learner calls `before` and then `after` in every update, and not in micro-steps."""
        calls: list[str] = []
        model, optimizer = parallelism.prepare(self.model(), self.optimizer)
        learner = self.learner(
            parallelism, model, optimizer, lambda: calls.append("before"), lambda: calls.append("after")
        )
        for _ in range(2):
            self.step(learner, size=2)

        assert calls == ["before", "after"] * 2

    def test_steps_decrease_the_loss(self, parallelism: Parallelism[Loss]) -> None:
        """The second step on the same batch has a lower loss, and its norm is reported before clipping."""
        learner = self.learner(parallelism, *parallelism.prepare(self.model(), self.optimizer))
        (first, norm), (second, _) = self.step(learner), self.step(learner)

        assert second < first
        assert norm is None or norm > 0

    def test_its_own_state_resumes(self, parallelism: Parallelism[Loss]) -> None:
        """If the engine owns the state, a new adapter that loads it continues with the same losses and weights."""
        if not parallelism.capabilities.owns_state:
            pytest.skip("it does not own the state")
        trained = self._steps_and_states(parallelism)
        resumed = self._steps_and_states(cast("OwnState[Loss]", self.make()), trained[0])

        assert resumed[0] == trained[0]
        assert resumed[1:] == trained[1:]

    def _steps_and_states(self, parallelism: Parallelism[Loss], saved: Any = None) -> tuple[Any, float, Any]:
        """Return the state after a step (or the loaded one), the loss of the next step, and the state after it."""
        engine = cast("OwnState[Loss]", parallelism)
        model, optimizer = engine.prepare(self.model(), self.optimizer)
        learner = self.learner(engine, model, optimizer)
        states = engine.model_state(model, writers=1), engine.optimizer_state(model, optimizer)
        assert all(size > 0 for size in engine.group_sizes(model, optimizer))
        assert engine.spreads_optimizer(model) in (True, False)
        if saved is None:
            self.step(learner)
        else:
            for state, exported in zip(states, saved, strict=True):
                state.load([content.part() for content in exported])
        before = [contents(kept(state.export())) for state in states]
        assert not states[0].differences([content.part() for content in before[0]], types=True)
        loss, _ = self.step(learner)
        return before, loss, [contents(state.export()) for state in states]

    def test_sharded_tensors_are_complete(self, parallelism: Parallelism[Loss]) -> None:
        """If the engine shards weights, the runs of all ranks make up each tensor, and each rank holds its own run."""
        if not parallelism.capabilities.sharded:
            pytest.skip("it does not shard weights")
        sharding, model = cast("Sharding[Loss, Model, Any]", parallelism), self.model()
        assert not sharding.spreads(model)
        sharding.prepare(model, self.optimizer)
        layout = sharding.layout
        assert sharding.spreads(model)
        for tensor in layout.parameters(model).values():
            spread = layout.spread(tensor, tensor)
            if spread is None:
                continue
            held = sorted(run for run in spread.runs if run[1])
            ends = [0, *(first + length for first, length in held)]
            assert [first for first, _ in held] == ends[:-1]
            assert ends[-1] == prod(spread.shape)
            assert len(spread.runs) == layout.world_size
            assert layout.local(tensor).shape == (spread.own[1],)
