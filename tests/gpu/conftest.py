"""Tests in this folder need a GPU that torch drives through CUDA or ROCm; without one they are skipped.

`make test-gpu` fails without a GPU.
"""

from __future__ import annotations

import os

import pytest
import torch

REQUIRED = "HEXLOOP_GPU"
"""The environment variable with which `make test-gpu` requires a GPU."""


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip every test of the folder if torch finds no GPU, or fail if one is required."""
    if torch.cuda.is_available():
        return
    if os.environ.get(REQUIRED) == "required":
        pytest.fail("torch finds no GPU on this machine")
    pytest.skip("needs a GPU")
