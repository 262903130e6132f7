"""What loader workers hand over beside a batch, and how they are sent to where others stood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from attrs import frozen
from torch.utils.data import get_worker_info

from hexloop.adapters.batches.torch.data_state import DataState, capture, is_stateful
from hexloop.adapters.batches.torch.shares import Divided, Division


class Delivered(NamedTuple):
    """The rows of a batch from a worker. A tuple, through which torch pins memory."""

    worker: int
    samples: int
    state: DataState | None
    """The worker's data set, as it stood when this batch was made."""
    passed: int
    """How many rows were passed over on the way to it."""
    divided: Divided
    """What the rows make for each of the processes that the loader reads for, mostly this one alone."""


class Passed:
    """Stands for a row that is passed over."""


PASSED = Passed()


@frozen
class Delivering:
    """Collates in a worker, and hands the batch over with where the worker stands then."""

    divide: Division
    stateful: bool

    def __call__(self, rows: list[Any]) -> Delivered:
        """The batch of the rows that are not passed over; no batch where there are none."""
        info: Any = get_worker_info()
        given = [row for row in rows if row is not PASSED]
        if not given:
            return Delivered(info.id, 0, None, len(rows), Divided([], [], None))
        dataset = info.dataset.dataset  # the user's, in the wrapper of an OrderedLoader or a StreamLoader
        divided = self.divide(given, getattr(info.dataset, "last_key", None))
        state = capture(dataset, {"data": dataset.state_dict()}) if self.stateful else None
        return Delivered(info.id, len(given), state, len(rows) - len(given), divided)


@frozen
class StateLoading:
    """Called in each worker when it starts: puts its data set where the worker of that number stood."""

    states: Sequence[Any]

    def __call__(self, worker: int) -> None:
        """Load the worker's state, where there is one."""
        info: Any = get_worker_info()
        load_state(info.dataset.dataset, self.states[worker], "data")


def load_state(data: Any, states: dict[str, Any] | None, name: str) -> None:
    """Put data where they gave the state of this name, unless there is none or they keep none."""
    if states is not None and name in states and is_stateful(data):
        data.load_state_dict(states[name])
