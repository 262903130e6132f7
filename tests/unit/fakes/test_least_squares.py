"""The least-squares model against hand calculations, and its shards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.trainable.least_squares import Row, predict, squared_error
from hexloop.domain.loop import StandardLearner
from hexloop.ports.collectives import Collectives
from hexloop.ports.state import Part
from hexloop.testing import (
    LinearModel,
    MomentumOptimizer,
    PlainPrecision,
    ShardedLeastSquares,
    SimulatedWorld,
    SingleProcess,
    SingleProcessCollectives,
    least_squares,
    sharded_least_squares,
)

NUMBERS = st.floats(-10, 10)


def test_two_steps_match_a_hand_calculation() -> None:
    """Loss, gradient norm, velocity and weights of two steps on two rows match a calculation on paper."""
    trainable = least_squares(1, learning_rate=0.125, momentum=0.5)
    rows: list[Row] = [((1.0,), 3.0), ((2.0,), 5.0)]

    # errors -3 and -5: loss (9 + 25) / 2, gradients 2 (-3 - 10) / 2 = -13 and 2 (-3 - 5) / 2 = -8
    loss = trainable.loss(rows, trainable.count_items([rows]))
    loss.backward()
    assert float(loss) == 17.0
    assert trainable.clip(0.0) == math.hypot(13, 8)
    trainable.optimizer.step()
    trainable.clear_gradients()
    assert trainable.optimizer.velocity == [-13.0, -8.0]
    assert trainable.model.parameters == [1.625, 1.0]

    # errors -0.375 and -0.75: gradients -1.875 and -1.125
    loss = trainable.loss(rows, trainable.count_items([rows]))
    loss.backward()
    assert float(loss) == (0.375**2 + 0.75**2) / 2
    trainable.optimizer.step()
    assert trainable.optimizer.velocity == [-6.5 - 1.875, -4.0 - 1.125]
    assert trainable.model.parameters == [1.625 + 8.375 / 8, 1.0 + 5.125 / 8]


@given(rows=st.lists(st.tuples(st.tuples(NUMBERS), NUMBERS), min_size=1, max_size=6), weight=NUMBERS, bias=NUMBERS)
def test_a_zero_feature_changes_nothing(rows: list[Row], weight: float, bias: float) -> None:
    """A second feature that is always zero changes neither the loss nor the other derivatives."""
    wider: list[Row] = [((*features, 0.0), target) for features, target in rows]
    loss, (by_weight, by_bias) = squared_error(1)([weight, bias], rows, 4)

    wider_loss, derivatives = squared_error(2)([weight, 5.0, bias], wider, 4)

    assert wider_loss == pytest.approx(loss)
    assert derivatives == pytest.approx([by_weight, 0.0, by_bias])


@given(
    rows=st.lists(st.tuples(st.tuples(NUMBERS, NUMBERS), NUMBERS), min_size=1, max_size=4),
    parameters=st.lists(NUMBERS, min_size=3, max_size=3),
)
def test_derivatives_match_finite_differences(rows: list[Row], parameters: list[float]) -> None:
    """Each derivative is the slope of the loss between two surrounding points, which is exact for a parabola."""

    def loss_at(index: int, change: float) -> float:
        moved = [value + change * (number == index) for number, value in enumerate(parameters)]
        return sum((predict(moved[:2], moved[2], features) - target) ** 2 for features, target in rows) / len(rows)

    loss, derivatives = squared_error(2)(parameters, rows, len(rows))

    assert loss == pytest.approx(loss_at(0, 0.0))
    for index, derivative in enumerate(derivatives):
        slope = (loss_at(index, 1.0) - loss_at(index, -1.0)) / 2
        assert derivative == pytest.approx(slope, abs=1e-9 * (1 + loss_at(index, 1.0)))


@pytest.mark.parametrize("features", [1, 2])
def test_rows_with_the_wrong_width_are_refused(features: int) -> None:
    """A row with too many or too few features raises ValueError."""
    trainable = least_squares(features)

    for wrong in (features - 1, features + 1):
        with pytest.raises(ValueError, match=r"values to unpack|shorter|longer"):
            trainable.loss([((1.0,) * wrong, 1.0)], 1)


def test_a_detached_loss_has_no_gradients() -> None:
    """Backward from a detached loss raises an error."""
    trainable = least_squares()
    loss = trainable.detached(trainable.loss([((1.0,), 3.0)], 1))

    assert repr(loss) == "Scalar(9.0)"
    with pytest.raises(RuntimeError, match="detached"):
        loss.backward()


def test_a_scaled_loss_has_scaled_gradients() -> None:
    """Backward from a loss times a number gives derivatives times that number."""
    trainable = least_squares()
    (trainable.loss([((1.0,), 3.0)], 1) * 4).backward()

    assert trainable.model.gradients == [-24.0, -24.0]


def test_the_optimizer_updates_the_prepared_model() -> None:
    """The optimizer changes the weights of the model that it was built from."""
    model, optimizer = SingleProcess().prepare(LinearModel(2), lambda model: MomentumOptimizer(model, 1.0, 0.0))
    model.gradients[:] = [1.0, 2.0, 4.0]
    optimizer.step()

    assert model.parameters == [-1.0, -2.0, -4.0]
    assert model.predict((1.0, 10.0)) == -25.0


PLANE: list[Row] = [((x / 4, y / 8), x / 2 - y / 8 + 1) for x in range(-2, 4) for y in range(4)]


def train(trainable: ShardedLeastSquares, rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Take four clipped steps of two micro-batches each, and return loss shares and norms."""
    learner = StandardLearner(trainable, PlainPrecision(), SingleProcess())
    window = [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    seen = []
    for _ in range(4):
        items = learner.count_items(window)
        share = sum(float(learner.micro_step(batch, items, batch is window[1])) for batch in window)
        norm, _ = learner.update(0.5)
        assert norm is not None
        seen.append((share, float(norm)))
    return seen


@pytest.mark.parametrize("size", [2, 3, 4])
def test_shards_train_like_the_whole_model(size: int) -> None:
    """Ranks with a slice of the weights and of the rows train together like the whole model."""

    def train_rank(rank: Collectives) -> tuple[list[tuple[float, float]], list[float]]:
        trainable = sharded_least_squares(rank, 2)
        seen = train(trainable, PLANE[rank.rank :: size])
        return seen, trainable.model.whole_parameters()

    whole = sharded_least_squares(SingleProcessCollectives(), 2)
    expected = train(whole, PLANE)
    ranks = SimulatedWorld(size).run(train_rank)

    for seen, parameters in ranks:
        assert parameters == pytest.approx(whole.model.parameters, rel=1e-12)
        assert [norm for _, norm in seen] == pytest.approx([norm for _, norm in expected], rel=1e-12)
    losses = [sum(share for share, _ in step) for step in zip(*(seen for seen, _ in ranks), strict=True)]
    assert losses == pytest.approx([loss for loss, _ in expected], rel=1e-12)


def test_one_shard_trains_like_the_plain_model() -> None:
    """In a world of one, the weights of a sharded model are bit-identical to those of the plain one."""
    plain, shard = least_squares(2), sharded_least_squares(SingleProcessCollectives(), 2)
    for trainable in (plain, shard):
        for _ in range(3):
            trainable.loss(PLANE, len(PLANE)).backward()
            trainable.optimizer.step()
            trainable.clear_gradients()

    assert shard.model.parameters == plain.model.parameters


def test_parts_may_be_loaded_in_any_distribution() -> None:
    """Each rank may load some of the parts, as when it reads some of the files, if all parts are loaded."""

    def export(rank: Collectives) -> list[Part]:
        shard = sharded_least_squares(rank, 3)
        shard.model.parameters[:] = shard.model.own([1.0, 2.0, 3.0, 4.0])
        return list(shard.export())

    exports = SimulatedWorld(4).run(export)
    parts = [part for exported in exports for part in exported]

    def load(rank: Collectives) -> list[float]:
        shard = sharded_least_squares(rank, 3)
        shard.load(parts[rank.rank :: 2])
        return shard.model.whole_parameters()

    assert SimulatedWorld(2).run(load) == [[1.0, 2.0, 3.0, 4.0]] * 2
    assert sorted(part.name for part in parts if part.length) == [
        "bias", "bias.momentum_buffer", "learning_rate", "weight", "weight.momentum_buffer",
    ]  # fmt: skip


def test_a_shard_alone_can_be_exported_and_loaded() -> None:
    """The weights without the optimizer are exported as parts too, and each rank loads its own."""

    def carry_over(rank: Collectives) -> tuple[list[float], list[float]]:
        first, second = sharded_least_squares(rank, 3), sharded_least_squares(rank, 3)
        first.model.parameters[:] = first.model.own([1.0, 2.0, 3.0, 4.0])
        first.optimizer.velocity[:] = first.model.own([5.0, 6.0, 7.0, 8.0])
        second.model.load(first.model.export())
        second.optimizer.load(first.optimizer.export())
        return second.model.whole_parameters(), second.optimizer.velocity

    for parameters, velocity in SimulatedWorld(2).run(carry_over):
        assert parameters == [1.0, 2.0, 3.0, 4.0]
        assert velocity in ([5.0, 6.0, 8.0], [7.0])
