"""The processor."""

from __future__ import annotations

from hexloop.adapters.device.torch.base import TorchDevice
from hexloop.ports.device import DeviceCapabilities


class CpuDevice(TorchDevice):
    """The processor."""

    def __init__(self) -> None:
        super().__init__("cpu", DeviceCapabilities("cpu", frozenset({"fp32", "bf16", "fp16"})))
