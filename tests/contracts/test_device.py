"""Contract of the Device port, run on the simulated device."""

from __future__ import annotations

import pytest

from hexloop.adapters.device.simulated import SimulatedDevice, SimulatedOutOfMemoryError
from hexloop.app.testing.contracts.devices import DeviceContract
from hexloop.ports.device import Device


class TestSimulatedDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        device = SimulatedDevice(total=1000)
        device.allocate(10)
        return device

    def draw(self, device: Device) -> float:
        assert isinstance(device, SimulatedDevice)
        return device.draw()

    def out_of_memory(self, device: Device) -> BaseException:
        assert isinstance(device, SimulatedDevice)
        with pytest.raises(SimulatedOutOfMemoryError) as raised:
            device.allocate(991)
        return raised.value
