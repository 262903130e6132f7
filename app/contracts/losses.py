"""What keeps the losses between logs."""

from __future__ import annotations

from typing import Generic, TypeVar

import pytest

from hexloop.app.contracts.parts import contents, kept
from hexloop.ports.losses import Losses

Loss = TypeVar("Loss")


class LossesContract(Generic[Loss]):
    """The suite of the Losses port."""

    def make(self) -> Losses[Loss]:
        """A new adapter under test, to which nothing was added."""
        raise NotImplementedError

    def loss(self, value: float) -> Loss:
        """A loss handle of this value, which is small and whole, so that sums are exact."""
        raise NotImplementedError

    @pytest.fixture
    def losses(self) -> Losses[Loss]:
        """The adapter under test."""
        return self.make()

    @pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 200])
    def test_it_adds_up(self, losses: Losses[Loss], count: int) -> None:
        """The sum is that of all losses added, however many; of none it is zero."""
        for value in range(count):
            losses.add(self.loss(float(value)))

        assert losses.drain() == count * (count - 1) / 2

    def test_a_drain_starts_again_from_zero(self, losses: Losses[Loss]) -> None:
        """What one drain gave, the next does not give again."""
        losses.add(self.loss(3.0))
        assert losses.drain() == 3
        assert losses.drain() == 0
        losses.add(self.loss(4.0))
        assert losses.drain() == 4

    @pytest.mark.parametrize("added", [0, 1, 70])
    def test_a_sum_can_be_carried_on(self, losses: Losses[Loss], added: int) -> None:
        """Another object that loads the export goes on from the same sum, and exports the same."""
        losses.add(self.loss(99.0))
        losses.drain()
        for value in range(added):
            losses.add(self.loss(float(value)))
        exported = kept(losses.export())

        other = self.make()
        other.add(self.loss(1000.0))
        other.load(exported)

        assert contents(other.export()) == contents(exported)
        for each in (losses, other):
            each.add(self.loss(5.0))
        assert losses.drain() == other.drain() == added * (added - 1) / 2 + 5

    def test_an_export_changes_nothing(self, losses: Losses[Loss]) -> None:
        """After an export the sum is what it was."""
        losses.add(self.loss(3.0))
        kept(losses.export())
        losses.add(self.loss(4.0))

        assert losses.drain() == 7
