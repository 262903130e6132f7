"""The environment variables that DeepSpeed reads."""

from __future__ import annotations

import pytest
import torch

from hexloop.adapters.engines.deepspeed.launcher import local_rank_for


@pytest.mark.parametrize(
    ("device", "environment", "number"),
    [
        ("cuda:0", {"SLURM_LOCALID": "3"}, "0"),
        ("cuda:3", {"SLURM_LOCALID": "3"}, "3"),
        ("cuda", {}, "3"),
        ("cpu", {"SLURM_LOCALID": "3"}, "3"),
        ("cuda:0", {"OMPI_COMM_WORLD_LOCAL_RANK": "3"}, "3"),
    ],
)
def test_local_rank_is_the_device_index(device: str, environment: dict[str, str], number: str) -> None:
    """LOCAL_RANK is the device index, except under Open MPI, where DeepSpeed requires the local rank."""
    assert local_rank_for(torch.device(device), 3, environment) == number
