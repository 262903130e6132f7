"""What processes that agree do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from hexloop.domain.errors import CollectiveError
from hexloop.ports.collectives import Collectives, Json, Reduction

Result = TypeVar("Result")

LATE = 0.02
"""Seconds by which a rank comes last to a barrier."""

VALUES: tuple[Json, ...] = (None, True, 0, -(2**60), 0.1, "text \u00e9 \n", [], [1, [2.5]], {}, {"a": {"b": [None]}})


class CollectivesContract:
    """The suite of the Collectives port."""

    world_size = 1
    """How many ranks `run` has."""

    def run(self, function: Callable[[Collectives], Result]) -> list[Result]:
        """What the function gives on every rank of a new world, by rank. Raises what a rank raises."""
        raise NotImplementedError

    def test_ranks_are_numbered(self) -> None:
        """Each rank knows its number and how many there are."""
        size = self.world_size

        assert self.run(lambda rank: (rank.rank, rank.world_size)) == [(number, size) for number in range(size)]

    @pytest.mark.parametrize("reduction", Reduction)
    def test_numbers_are_reduced_one_by_one(self, reduction: Reduction) -> None:
        """Every rank has the sum, or the extreme, of the ranks' numbers at each place."""

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

    def test_several_reductions_may_be_under_way(self) -> None:
        """Each gives its own result, whenever and however often it is asked for."""

        def reduce(rank: Collectives) -> list[tuple[float, ...]]:
            pending = [rank.start_reduction([number], Reduction.SUM) for number in range(4)]
            rank.barrier("in between")
            return [reduction.result() for reduction in (*reversed(pending), *pending)]

        sums = [(number * self.world_size,) for number in (3, 2, 1, 0, 0, 1, 2, 3)]
        assert self.run(reduce) == [sums] * self.world_size

    def test_no_numbers_can_be_reduced(self) -> None:
        """A reduction of nothing gives nothing."""
        reduced = self.run(lambda rank: rank.start_reduction([], Reduction.SUM).result())

        assert reduced == [()] * self.world_size

    def test_everybody_has_what_everybody_said(self) -> None:
        """A gathering gives every rank's value, of any kind, by rank, to every rank."""

        def gather(rank: Collectives) -> list[list[Json]]:
            return [rank.gather([rank.rank, value]) for value in VALUES]

        expected = [[[number, value] for number in range(self.world_size)] for value in VALUES]
        assert self.run(gather) == [expected] * self.world_size

    def test_everybody_hears_one(self) -> None:
        """A broadcast gives the value of its source to every rank, whatever the others hand in."""

        def broadcast(rank: Collectives) -> list[Json]:
            return [rank.broadcast({"from": rank.rank}, source) for source in range(self.world_size)]

        assert self.run(broadcast) == [[{"from": source} for source in range(self.world_size)]] * self.world_size

    def test_a_barrier_holds_until_all_are_there(self, tmp_path: Path) -> None:
        """Behind a barrier every rank finds what all ranks did before it, whichever of them comes late."""

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

    def test_two_threads_agree_without_mixing(self) -> None:
        """What a second thread asks of the ranks is answered apart from what the first asks meanwhile."""

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

    def test_the_others_hear_why_a_rank_fails(self) -> None:
        """Whoever waits for a rank that has failed learns of it, with the cause that the rank gave."""

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
