"""What a device does."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from hexloop.app.contracts.parts import contents, kept
from hexloop.ports.device import Device


class DeviceContract:
    """The suite of the Device port."""

    @pytest.fixture
    def device(self) -> Device:
        """The adapter under test."""
        raise NotImplementedError

    def draw(self, device: Device) -> float:
        """The next number of the framework's own random stream on the device."""
        raise NotImplementedError

    def out_of_memory(self, device: Device) -> BaseException:
        """An error that says that the device had no room."""
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def keep_random_streams(self, device: Device) -> Iterator[None]:
        """The process's random streams are afterwards where they were."""
        before = kept(device.export())
        yield
        device.load(before)

    def draws(self, device: Device) -> list[float]:
        """Numbers of every stream."""
        return [number for _ in range(3) for number in (random.random(), random.gauss(0, 1), self.draw(device))]

    def test_it_says_what_it_is(self, device: Device) -> None:
        """It has a name, which begins with its kind, and computes in one precision or more."""
        assert device.name
        assert device.capabilities.kind
        assert device.capabilities.precisions

    def test_memory_figures_hold_together(self, device: Device) -> None:
        """What is used is at most the peak, and that at most all that there is, where it is known."""
        device.release_memory()
        memory = device.memory()

        assert 0 <= memory.used <= memory.peak
        assert memory.total == 0 or memory.peak <= memory.total

    def test_a_peak_can_be_forgotten(self, device: Device) -> None:
        """Afterwards the peak is no higher than before, and no lower than what is used."""
        before = device.memory()
        device.forget_peak_memory()
        after = device.memory()

        assert after.used <= after.peak <= max(before.peak, after.used)

    def test_it_knows_its_own_error(self, device: Device) -> None:
        """Having no room is told from every other error."""
        assert device.is_out_of_memory(self.out_of_memory(device))
        for error in (RuntimeError("something else"), ValueError(), KeyboardInterrupt()):
            assert not device.is_out_of_memory(error)

    def test_a_seed_starts_every_stream(self, device: Device) -> None:
        """The same seed gives the same numbers again, and another seed others."""
        device.seed(1)
        first = self.draws(device)
        device.seed(2)
        second = self.draws(device)
        device.seed(1)

        assert self.draws(device) == first
        assert all(one != other for one, other in zip(first, second, strict=True))

    @pytest.mark.parametrize("drawn", range(4))
    def test_streams_can_be_put_back_anywhere(self, device: Device, drawn: int) -> None:
        """After an export is loaded every stream goes on from where it stood, however often it is loaded."""
        device.seed(5)
        for _ in range(drawn):
            # One number of a pair of gaussians leaves the other one waiting, which is state as well.
            random.gauss(0, 1)
            self.draw(device)
        exported = kept(device.export())
        following = self.draws(device)

        for _ in range(2):
            device.seed(6)
            device.load(exported)
            assert contents(device.export()) == contents(exported)
            assert self.draws(device) == following
