"""What DeepSpeed is told about the process that it runs in."""

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
def test_the_number_that_says_the_device_is_the_device_s(device: str, environment: dict[str, str], number: str) -> None:
    """Also where each process sees one GPU alone; under Open MPI it is the process's, on which DeepSpeed insists."""
    assert local_rank_for(torch.device(device), 3, environment) == number
