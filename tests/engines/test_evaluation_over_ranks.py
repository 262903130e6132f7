"""The ranks of an evaluation exchange whatever they have, and none waits for one that fails or has fewer batches."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hexloop.adapters.collectives.simulated import SimulatedCollectives, SimulatedWorld
from hexloop.adapters.collectives.torch.tensors import NUMERIC, TensorRanks
from hexloop.domain.errors import CollectiveError, DataError
from tests.engines.processes import in_processes
from tests.examples import examples

Result = TypeVar("Result")
Steps = Callable[[TensorRanks], Any]


class SimulatedRanks(TensorRanks):
    """Ranks of a simulated world, which reports an error at once if they wait for each other in vain."""

    def __init__(self, rank: SimulatedCollectives) -> None:
        self._own = rank
        self._size, self._rank, self._device = rank.world_size, rank.rank, torch.device("cpu")
        self._announces, self._batches, self._is_over = True, 0, False

    def each(self, value: Tensor) -> list[Tensor]:
        """Return every rank's tensor, after checking what torch requires: all have one type and one shape."""
        sent = [str(value.dtype), list(value.shape), value.contiguous().reshape(-1).view(torch.uint8).tolist()]
        found: list[Any] = self._own.gather(json.loads(json.dumps(sent)))
        assert len({(dtype, tuple(shape)) for dtype, shape, _ in found}) == 1
        kind = value.dtype
        return [torch.tensor(data, dtype=torch.uint8).view(kind).reshape(shape) for _, shape, data in found]


def simulated(size: int, steps: Steps) -> list[Any]:
    """Return what the steps return or raise on each rank."""

    def run(rank: SimulatedCollectives) -> Any:
        try:
            return steps(SimulatedRanks(rank))
        except Exception as error:
            return error

    return SimulatedWorld(size).run(run)


def real(size: int, steps: Steps) -> list[Any]:
    """Return what the steps return or raise in each of several processes."""
    return in_processes(size, lambda _rank: steps(TensorRanks("cpu")))


def plain(value: Any) -> Any:
    """Return a nested value with lists for tensors; numbers and scalars have one row."""
    if isinstance(value, NUMERIC):
        tensor = torch.as_tensor(value)
        return [str(tensor.dtype), tensor.reshape(tensor.shape or (1,)).tolist()]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(plain, value)]
    return value


TENSORS = st.builds(
    lambda shape, dtype: torch.arange(int(np.prod(shape))).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
VALUES = st.recursive(
    st.one_of(st.none(), TENSORS, st.integers(0, 9), st.lists(st.sampled_from("abc"), min_size=1, max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).filter(lambda values: any(isinstance(each, Tensor) for each in values)),
        st.tuples(TENSORS, inner),
        st.dictionaries(st.sampled_from(["loss", "boxes"]), inner),
    ),
    max_leaves=6,
)


@given(values=st.lists(VALUES, min_size=2, max_size=4))
@settings(max_examples=examples(60), deadline=None)
def test_values_of_any_structure_are_exchanged(values: list[Any]) -> None:
    """Each rank receives what every rank has: other numbers of tensors, types, dimensions, or None."""

    def exchange(ranks: TensorRanks) -> Any:
        found = ranks.parts(values[ranks._rank], ranks._rank, None if ranks._rank else torch.tensor(0.5))
        ranks.finish()
        return found

    for found in simulated(len(values), exchange):
        assert not isinstance(found, Exception), found
        assert [plain(part) for part, _, _ in found] == [plain(value) for value in values]
        assert [rows for _, rows, _ in found] == [*range(len(values))]
        assert [loss is None for _, _, loss in found] == [False] + [True] * (len(values) - 1)


@given(batches=st.lists(st.integers(0, 4), min_size=2, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_ranks_with_different_numbers_of_batches_all_raise(batches: list[int]) -> None:
    """The error names a rank without more batches and one with more; equal numbers are accepted."""

    def evaluate(ranks: TensorRanks) -> str:
        for number in range(batches[ranks._rank]):
            ranks.parts(torch.zeros(number), number, None)
        ranks.finish()
        return "done"

    outcomes = simulated(len(batches), evaluate)
    if len(set(batches)) == 1:
        assert outcomes == ["done"] * len(batches)
        return
    fewest = min(batches)
    expected = f"Rank {batches.index(fewest)} has {fewest} batches to evaluate, and rank "
    for outcome in outcomes:
        assert isinstance(outcome, DataError)
        assert str(outcome).startswith(expected)


def failing(ranks: TensorRanks) -> str:
    """Evaluate three batches; rank 1 fails before its second one."""
    try:
        for number in range(3):
            if (ranks._rank, number) == (1, 1):
                raise OSError("the file is gone")
            ranks.parts({"logits": torch.ones(2, number + 1), "names": ["a", "b"]}, 2, torch.tensor(1.0))
    except OSError as error:
        ranks.fail(error)
        raise
    ranks.finish()
    return "done"


def uneven(ranks: TensorRanks) -> list[Any]:
    """Exchange a list of dictionaries, of which each rank has another number, with texts of other lengths."""
    values = [{"boxes": torch.ones(rows, 4), "name": "x" * rows} for rows in range(1, 2 + ranks._rank)]
    found = [plain(part) for part, _, _ in ranks.parts(values, 1 + ranks._rank, None)]
    ranks.finish()
    return found


def unsendable(ranks: TensorRanks) -> None:
    """Exchange an object that JSON cannot represent, on rank 0 alone."""
    ranks.parts([object() if ranks._rank == 0 else "text"], 1, None)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.matrix)])
def test_real_processes_exchange_and_fail_together(world: int) -> None:
    """As simulated ranks do: a failure of one reaches all, and structures may differ."""

    def run(ranks_of: Callable[[], TensorRanks]) -> list[Any]:
        outcomes: list[Any] = [uneven(ranks_of())]
        for steps in (failing, unsendable):
            try:
                outcomes.append(steps(ranks_of()))
            except Exception as error:
                outcomes.append((type(error).__name__, str(error)))
        return outcomes

    found = in_processes(world, lambda _rank: run(lambda: TensorRanks("cpu")))
    for rank, outcome in enumerate(found):
        assert not isinstance(outcome, BaseException), outcome
        exchanged, failed, unsent = outcome
        assert [len(each) - 1 for each in exchanged] == [*range(1, world + 1)]
        assert exchanged[1][2] == {"boxes": ["torch.float32", [[1.0] * 4] * 2], "name": "xx"}
        lost = ("CollectiveError", "The evaluation failed on rank 1: OSError: the file is gone")
        assert failed == (("OSError", "the file is gone") if rank == 1 else lost)
        assert unsent[0] == ("DataError" if rank == 0 else "CollectiveError")
        assert "cannot be sent to the other processes" in unsent[1]


def test_a_failure_is_reported_once() -> None:
    """A rank whose error all ranks have raised does not wait for them again."""

    def twice(ranks: TensorRanks) -> str:
        try:
            return failing(ranks)
        except (OSError, CollectiveError) as error:
            ranks.fail(error)
            return type(error).__name__

    assert simulated(3, twice) == ["CollectiveError", "OSError", "CollectiveError"]
