"""Tests in this folder need a GPU that torch drives through CUDA or ROCm; without one they are skipped.

`make test-gpu` fails without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

REQUIRED = "HEXLOOP_GPU"
"""The environment variable with which `make test-gpu` requires a GPU."""


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Compute in full fp32 unless a test chooses otherwise: what transformers sets, it leaves set."""
    products: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    before = cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision
    torch.set_float32_matmul_precision("highest")
    products.fp32_precision = "ieee"
    yield
    cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = before


@pytest.fixture(scope="session", autouse=True)
def gpu() -> None:
    """Skip every test of the folder if torch finds no GPU, or fail if one is required."""
    if torch.cuda.is_available():
        return
    if os.environ.get(REQUIRED) == "required":
        pytest.fail("torch finds no GPU on this machine")
    pytest.skip("needs a GPU")
