"""Contracts of the torch adapters on a device of XLA."""

from __future__ import annotations

import pytest
import torch

from hexloop.adapters.device.torch.xla import XlaDevice
from hexloop.app.testing.contracts.devices import DeviceContract
from hexloop.ports.device import Device
from tests.contracts import test_torch as on_cpu

pytestmark = pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True:UserWarning")

DEVICE = "xla:0"


class TestXlaDevice(DeviceContract):
    @pytest.fixture
    def device(self) -> Device:
        return XlaDevice()

    def draw(self, device: Device) -> float:
        number = torch.rand((), device=device.name)
        device.flush()
        return float(number) + float(torch.rand(()))

    def out_of_memory(self, device: Device) -> BaseException:
        return RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 2147483648 bytes.")


class TestTorchTrainable(on_cpu.TestTorchTrainable):
    device_name = DEVICE


class TestStandardLearner(on_cpu.TestStandardLearnerOnTorch):
    device_name = DEVICE


class TestPlainPrecision(on_cpu.TestPlainPrecisionOnTorch):
    device_name = DEVICE


class TestBf16Precision(on_cpu.TestBf16Precision):
    device_name = DEVICE


class TestSingleProcess(on_cpu.TestSingleProcessOnTorch):
    device_name = DEVICE


class TestTorchLosses(on_cpu.TestTorchLosses):
    device_name = DEVICE


class TestTorchEvaluator(on_cpu.TestTorchEvaluator):
    device_name = DEVICE
