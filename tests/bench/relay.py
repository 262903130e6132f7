"""Several training loops in the threads of one process, one of which runs at a time."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from threading import Condition, Thread

from torch import nn

Loop = Callable[[nn.Module], None]


class Relay:
    """Decides which of `names` runs. `order` yields them turn by turn, without an end."""

    def __init__(self, names: Iterable[str], order: Iterator[str]) -> None:
        self._here = set(names)
        self._order = order
        self._now = next(order)
        self._changed = Condition()

    def await_turn(self, name: str) -> None:
        """Block until it is the turn of `name`."""
        with self._changed:
            self._changed.wait_for(lambda: self._now == name)

    def pass_on(self, name: str) -> None:
        """Let the next one run, and block until it is the turn of `name` again."""
        self._next()
        self.await_turn(name)

    def leave(self, name: str) -> None:
        """Let the next one run, and remove `name`."""
        self._here.discard(name)
        if self._here:
            self._next()

    def _next(self) -> None:
        with self._changed:
            self._now = next(each for each in self._order if each in self._here)
            self._changed.notify_all()


def steps_in_turn(
    loops: Mapping[str, Loop], make_model: Callable[[], nn.Module], order: Iterator[str], steps: int
) -> dict[str, list[list[float]]]:
    """Return the seconds between forward passes of each loop, in turns of `turn` steps.

    order: infinite; finished loops are skipped. A loop's first turn starts with its first forward pass. A failing loop
    ends the process. Each loop has its own environment variables.
    """
    before = dict(os.environ)
    relay, found = Relay(loops, order), {name: list[list[float]]() for name in loops}

    def run(name: str) -> None:
        begun: list[float] = []

        def before_forward(*_: object) -> None:
            begun.append(time.perf_counter())
            if len(begun) > steps:
                found[name].append([later - earlier for earlier, later in pairwise(begun)])
                own = dict(os.environ)
                relay.pass_on(name)
                _put_in_force(own)
                begun[:] = [time.perf_counter()]

        relay.await_turn(name)
        _put_in_force(before)
        try:
            model = make_model()
            model.register_forward_pre_hook(before_forward)
            loops[name](model)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        relay.leave(name)

    threads = [Thread(target=run, args=(name,)) for name in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _put_in_force(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
