"""What a source of requests to stop does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hexloop.ports.interrupts import Interrupts


class InterruptsContract:
    """The suite of the Interrupts port."""

    @pytest.fixture
    def interrupts(self) -> Interrupts:
        """The adapter under test."""
        raise NotImplementedError

    @pytest.fixture
    def provoke(self, interrupts: Interrupts) -> Callable[[], None]:
        """Asks for a stop in the way that the adapter listens to; harmless where nobody listens."""
        raise NotImplementedError

    def test_whoever_starts_is_asked(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """A request reaches the listener, with a reason."""
        asked: list[str] = []
        interrupts.start(asked.append)

        provoke()

        interrupts.stop()
        assert len(asked) == 1
        assert asked[0]

    def test_after_a_stop_nobody_is_asked(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """A request after the end of listening reaches nobody."""
        asked: list[str] = []
        interrupts.start(asked.append)
        interrupts.stop()

        provoke()

        assert asked == []

    def test_listening_can_begin_again(self, interrupts: Interrupts, provoke: Callable[[], None]) -> None:
        """After a stop another listener may start, and only that one is asked."""
        first: list[str] = []
        second: list[str] = []
        interrupts.start(first.append)
        interrupts.stop()
        interrupts.start(second.append)

        provoke()

        interrupts.stop()
        assert (len(first), len(second)) == (0, 1)

    def test_an_idle_source_may_be_stopped(self, interrupts: Interrupts) -> None:
        """To stop twice, or before any start, does nothing."""
        interrupts.stop()
        interrupts.start(lambda reason: None)
        interrupts.stop()
        interrupts.stop()
