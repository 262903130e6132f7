"""Selecting the backend for collectives."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop import TrainingArguments
from hexloop.app.environment import DistributedEnvironment
from hexloop.app.joining import backend_for

WAYS: list[tuple[str, dict[str, Any], str]] = [
    ("cpu", {}, "gloo"),
    ("cuda:0", {}, "nccl"),
    ("xpu:0", {}, "xccl"),
    ("cuda:0", {"ddp_backend": "gloo"}, "gloo"),
    ("cpu", {"fsdp": True}, "gloo"),
    ("cuda:1", {"fsdp": True}, "cpu:gloo,cuda:nccl"),
    ("xpu:0", {"fsdp": "full_shard offload"}, "cpu:gloo,xpu:xccl"),
    ("cuda:0", {"fsdp": True, "ddp_backend": "nccl"}, "cpu:gloo,cuda:nccl"),
    ("cuda:0", {"fsdp": True, "ddp_backend": "gloo"}, "gloo"),
    ("cpu", {"fsdp": True, "ddp_backend": "mpi"}, "mpi"),
]


def backend_on(device: str, given: dict[str, Any]) -> str:
    """Return the backend for such a device."""
    arguments = TrainingArguments("out", report_to=[], **given)
    arguments.distributed_environment = DistributedEnvironment(world_size=2, device=device)
    return backend_for(arguments)


@pytest.mark.parametrize(("device", "given", "way"), WAYS)
def test_backend_fits_the_device_and_the_engine(device: str, given: dict[str, Any], way: str) -> None:
    """Under FSDP, a backend for GPU tensors is combined with gloo for CPU tensors."""
    assert backend_on(device, given) == way


def test_fsdp_of_the_launcher_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds if accelerate's variable turns FSDP on."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert backend_on("cuda:0", {}) == "cpu:gloo,cuda:nccl"
