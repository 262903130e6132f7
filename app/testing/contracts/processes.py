"""Contract suites of the ports that connect processes, Collectives and Parallelism, and of engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import pytest

from hexloop.adapters.device.simulated import SimulatedDevice
from hexloop.adapters.precision.plain import PlainPrecision
from hexloop.app.testing.contracts.learning import take_step
from hexloop.app.testing.contracts.overriding import not_overridden
from hexloop.app.testing.contracts.state import contents, kept
from hexloop.domain.errors import CollectiveError
from hexloop.domain.loop import StandardLearner
from hexloop.ports.collectives import Collectives, Json, Reduction
from hexloop.ports.device import Device
from hexloop.ports.engine import Engine, RunFacts
from hexloop.ports.learner import Learner, Trainable
from hexloop.ports.parallelism import OwnState, OwnUpdate, Parallelism, Sharding, SteppingInBackward

Result = TypeVar("Result")

LATE = 0.02
"""Seconds by which the last rank is late to a barrier."""

VALUES: tuple[Json, ...] = (None, True, 0, -(2**60), 0.1, "text \u00e9 \n", [], [1, [2.5]], {}, {"a": {"b": [None]}})


class CollectivesContract:
    """Contract suite of the Collectives port."""

    world_size = 1
    """The number of ranks that `run` uses."""

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        """Call the function on every rank of a new world and return the results by rank. Raises what a rank raises.

        Args:
            function: receives the collectives of its rank.
        """
        raise not_overridden(self)

    def test_ranks_are_numbered(self) -> None:
        """Each rank knows its number and the world size."""
        size = self.world_size

        assert self.run(lambda rank: (rank.rank, rank.world_size)) == [(number, size) for number in range(size)]

    @pytest.mark.parametrize("reduction", Reduction)
    def test_reductions_are_element_wise(self, reduction: Reduction) -> None:
        """Every rank gets the element-wise sum, maximum or minimum of the ranks' numbers."""

        def reduce(rank: Collectives) -> tuple[float, ...]:
            return rank.start_reduction([rank.rank, -rank.rank, 0.5], reduction).result()

        last = self.world_size - 1
        total = last * (last + 1) / 2
        expected = {
            Reduction.SUM: (total, -total, 0.5 * self.world_size),
            Reduction.MAXIMUM: (last, 0, 0.5),
            Reduction.MINIMUM: (0, -last, 0.5),
        }
        assert self.run(reduce) == [expected[reduction]] * self.world_size

    def test_several_reductions_can_be_pending(self) -> None:
        """Each pending reduction returns its own result, in any order and any number of times."""

        def reduce(rank: Collectives) -> list[tuple[float, ...]]:
            pending = [rank.start_reduction([number], Reduction.SUM) for number in range(4)]
            rank.barrier("in between")
            return [reduction.result() for reduction in (*reversed(pending), *pending)]

        sums = [(number * self.world_size,) for number in (3, 2, 1, 0, 0, 1, 2, 3)]
        assert self.run(reduce) == [sums] * self.world_size

    def test_an_empty_list_can_be_reduced(self) -> None:
        """A reduction of an empty list returns an empty tuple."""
        reduced = self.run(lambda rank: rank.start_reduction([], Reduction.SUM).result())

        assert reduced == [()] * self.world_size

    def test_gather_returns_all_values_on_every_rank(self) -> None:
        """`gather` returns the values of all ranks, of any JSON type and in rank order, on every rank."""

        def gather(rank: Collectives) -> list[list[Json]]:
            return [rank.gather([rank.rank, value]) for value in VALUES]

        expected = [[[number, value] for number in range(self.world_size)] for value in VALUES]
        assert self.run(gather) == [expected] * self.world_size

    def test_broadcast_returns_one_value_on_every_rank(self) -> None:
        """`broadcast` returns the value of its source on every rank, whatever the others pass."""

        def broadcast(rank: Collectives) -> list[Json]:
            return [rank.broadcast({"from": rank.rank}, source) for source in range(self.world_size)]

        assert self.run(broadcast) == [[{"from": source} for source in range(self.world_size)]] * self.world_size

    def test_a_barrier_waits_for_all_ranks(self, tmp_path: Path) -> None:
        """After a barrier, every rank sees what all ranks did before it, whichever of them is late."""

        def meet(rank: Collectives) -> list[int]:
            found = []
            for late in range(rank.world_size):
                if rank.rank == late:
                    time.sleep(LATE)
                (tmp_path / f"{late} {rank.rank}").touch()
                rank.barrier(f"all are here, {late} last")
                found.append(len(list(tmp_path.glob(f"{late} *"))))
            return found

        assert self.run(meet) == [[self.world_size] * self.world_size] * self.world_size

    def test_some_ranks_communicate_among_themselves(self) -> None:
        """Even and odd ranks have collectives of their own, numbered in order, also for another thread and again."""

        def agree(rank: Collectives) -> tuple[Any, ...]:
            own = [each for each in range(rank.world_size) if each % 2 == rank.rank % 2]
            some = rank.among(own[::-1])
            part = some.among(range(some.world_size))
            some.barrier("some")
            total = part.start_reduction([rank.rank], Reduction.SUM).result()
            sent = some.broadcast(rank.rank, some.world_size - 1)
            found = some.rank, some.world_size, some.gather(rank.rank), total, sent, some.apart().gather(rank.rank)
            rank.barrier("all groups are made")
            return found

        def expected(rank: int) -> tuple[Any, ...]:
            ranks = [each for each in range(self.world_size) if each % 2 == rank % 2]
            return ranks.index(rank), len(ranks), ranks, (sum(ranks),), ranks[-1], ranks

        assert self.run(agree) == [expected(rank) for rank in range(self.world_size)]

    def test_a_rank_cannot_join_others(self) -> None:
        """A rank that is not among those whose collectives it asks for gets an error that names it."""

        def join_others(rank: Collectives) -> None:
            with pytest.raises(ValueError, match=rf"^Rank {rank.rank} is not among the ranks \[.*\]"):
                rank.among([rank.world_size])

        self.run(join_others)

    def test_two_threads_do_not_interfere(self) -> None:
        """Operations of a second thread on `apart()` do not mix with those of the first."""

        def agree(rank: Collectives) -> tuple[list[Json], list[Json]]:
            apart = rank.apart()
            heard: list[Json] = []
            beside = threading.Thread(target=lambda: heard.extend(apart.gather(["beside", rank.rank])))
            beside.start()
            own = rank.gather(["own", rank.rank])
            beside.join()
            return own, heard

        ranks = range(self.world_size)
        expected = ([["own", rank] for rank in ranks], [["beside", rank] for rank in ranks])
        assert self.run(agree) == [expected] * self.world_size

    def test_other_ranks_learn_why_a_rank_failed(self) -> None:
        """A rank that waits for a failed rank gets an error with the cause that the failed rank reported."""

        def wait_for_the_last(rank: Collectives) -> str:
            if rank.rank == rank.world_size - 1:
                rank.tell_failure("ValueError: the labels are no labels")
                return "ValueError: the labels are no labels"
            try:
                rank.gather(None)
            except CollectiveError as error:
                return str(error)
            return "answered"

        told = self.run(wait_for_the_last)
        assert all("ValueError: the labels are no labels" in said for said in told)


Batch = TypeVar("Batch")
Loss = TypeVar("Loss")
Model = TypeVar("Model")


class ParallelismContract(Generic[Model, Batch, Loss]):
    """Contract suite of the Parallelism port, for a single process and for each rank of a larger world."""

    tolerance = 1e-6
    """Relative tolerance for rounding."""

    def make(self) -> Parallelism[Loss]:
        """Return a new adapter under test."""
        raise not_overridden(self)

    def model(self) -> Model:
        """Return a new model, always with the same weights."""
        raise not_overridden(self)

    def optimizer(self, model: Model) -> Any:
        """Return an optimizer of the model's parameters.

        Args:
            model: the model, as the user passes it.
        """
        raise not_overridden(self)

    def trainable(self, model: Model, optimizer: Any) -> Trainable[Batch, Loss]:
        """Return a Trainable for the model and its optimizer.

        Args:
            model: the model, as the user passes it.
            optimizer: the optimizer of its parameters.
        """
        raise not_overridden(self)

    def batch(self) -> Batch:
        """Return a batch for the model that has nonzero gradients."""
        raise not_overridden(self)

    @pytest.fixture
    def parallelism(self) -> Parallelism[Loss]:
        """The adapter under test."""
        return self.make()

    def prepared(self, parallelism: Parallelism[Loss]) -> Trainable[Batch, Loss]:
        """Return a new, prepared model.

        Args:
            parallelism: the adapter under test.
        """
        return self.attached(parallelism, self.trainable(*parallelism.prepare(self.model(), self.optimizer)))

    def attached(self, parallelism: Parallelism[Loss], trainable: Trainable[Batch, Loss]) -> Trainable[Batch, Loss]:
        """Return a trainable after its steps were attached, if the adapter takes them in the backward pass.

        Args:
            parallelism: the adapter under test.
            trainable: trains the model.
        """
        if parallelism.capabilities.steps_in_backward:
            cast("SteppingInBackward[Loss]", parallelism).attach(trainable, 1e30)
        return trainable

    def test_the_optimizer_is_built_from_the_prepared_model(self, parallelism: Parallelism[Loss]) -> None:
        """The factory is called once, with the model that `prepare` returns, and its optimizer is returned too."""
        made: list[tuple[Model, Any]] = []

        def make_optimizer(model: Model) -> Any:
            made.append((model, self.optimizer(model)))
            return made[-1][1]

        model, optimizer = parallelism.prepare(self.model(), make_optimizer)

        assert len(made) == 1
        assert made[0][0] is model
        assert made[0][1] is optimizer

    def test_unwrap_returns_the_users_model(self, parallelism: Parallelism[Loss]) -> None:
        """`unwrap` returns the same model object that was passed to `prepare`."""
        model = self.model()
        wrapped, _ = parallelism.prepare(model, self.optimizer)

        assert parallelism.unwrap(wrapped) is model

    def test_gradients_accumulate_over_a_window(self, parallelism: Parallelism[Loss]) -> None:
        """After the last micro-batch of a window, the gradients are the sum over its micro-batches."""
        norms = []
        for count in (1, 3):
            trainable = self.prepared(parallelism)
            for index in range(count):
                parallelism.synchronise(index == count - 1)
                parallelism.backward(trainable.loss(self.batch(), trainable.count_items([self.batch()])))
            norms.append(float(cast(Any, trainable.clip(1e30))))

        assert norms[0] > 0
        assert norms[1] == pytest.approx(3 * norms[0], rel=self.tolerance)

    def test_it_describes_itself(self, parallelism: Parallelism[Loss]) -> None:
        """It has a name, and it shards weights only if it spans several processes."""
        capabilities = parallelism.capabilities

        assert capabilities.name
        assert capabilities.processes or not capabilities.sharded


def _no_op() -> None:
    """No-op."""


class EngineContract(ParallelismContract[Model, Batch, Loss], Generic[Model, Batch, Loss]):
    """Contract suite of an engine, for a single process and for each rank of a larger world.

    Optional abilities are tested if the capabilities of the adapter state them.
    """

    def engine(self) -> Engine[Any, Loss]:
        """Return the engine under test."""
        raise not_overridden(self)

    def arguments(self) -> Any:
        """Return training arguments that choose the engine, with valid options."""
        raise not_overridden(self)

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
        """Return the learner that a run uses: the engine's own if it owns the update, else the standard one.

        Args:
            parallelism: the adapter under test.
            model: the model, as the user passes it.
            optimizer: the optimizer of its parameters.
            before: called before each optimizer step.
            after: called after each optimizer step.
        """
        trainable: Trainable[Batch, Loss] = self.trainable(model, optimizer)
        if parallelism.capabilities.owns_update:
            return cast("OwnUpdate[Loss]", parallelism).learner(model, trainable, before, after)
        return StandardLearner(self.attached(parallelism, trainable), PlainPrecision(), parallelism, before, after)

    def step(self, learner: Learner[Batch, Loss], size: int = 1) -> tuple[float, float | None]:
        """Run a step on a window of `size` equal batches; return its loss and gradient norm.

        Args:
            learner: what `learner` returned.
            size: the number of equal batches.
        """
        return take_step(learner, [self.batch() for _ in range(size)], 1e30)

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

    def test_a_run_returns_to_what_was_kept(self, parallelism: Parallelism[Loss]) -> None:
        """If the engine owns the state, a run that loads what was kept takes the same steps once more."""
        if not parallelism.capabilities.owns_state:
            pytest.skip("it does not own the state")
        engine = cast("OwnState[Loss]", parallelism)
        model, optimizer = engine.prepare(self.model(), self.optimizer)
        learner, states = self.learner(engine, model, optimizer), engine.kept_state(model, optimizer)
        assert states.keys() == {"model", "optimizer"}
        for _ in range(2):  # from the start, when there may be no moments yet, and from there on
            copies = {name: kept(state.export()) for name, state in states.items()}
            steps = [self.step(learner) for _ in range(2)]
            for name, state in states.items():
                state.load(copies[name])
            assert [self.step(learner) for _ in range(2)] == steps

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
        """If the engine shards weights, the boxes of all ranks make up each tensor, and each rank holds its own one."""
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
            held = sorted(run for box in spread.holders().values() for run in box.runs(spread.divided))
            ends = [0, *(first + length for first, length in held)]
            assert [first for first, _ in held] == ends[:-1]
            assert ends[-1] == prod(spread.shape)
            assert spread.mesh.size == layout.mesh.size
            assert prod(layout.local(tensor).shape) == spread.own.size
