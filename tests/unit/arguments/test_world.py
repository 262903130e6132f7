"""How the tensors of a run's processes travel."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop import TrainingArguments
from hexloop.app.environment import Surroundings
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
    """What processes of such a device use."""
    arguments = TrainingArguments("out", report_to=[], **given)
    arguments.surroundings = Surroundings(world_size=2, device=device)
    return backend_for(arguments)


@pytest.mark.parametrize(("device", "given", "way"), WAYS)
def test_tensors_travel_as_fits_the_device_and_the_engine(device: str, given: dict[str, Any], way: str) -> None:
    """Under FSDP a backend that is for a GPU's tensors alone has gloo beside it for the host's, named or not."""
    assert backend_on(device, given) == way


def test_the_launcher_s_fsdp_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it does where the variable of accelerate turns FSDP on."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert backend_on("cuda:0", {}) == "cpu:gloo,cuda:nccl"
