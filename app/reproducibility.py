"""The random generators and the deterministic kernels of a process, for whoever sets them without a Trainer."""

from __future__ import annotations

import os

SYNCHRONOUS = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8",
    "ASCEND_LAUNCH_BLOCKING": "1",
    "HCCL_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}
"""What the environment has to say before CUDA, or its like, starts, so that its kernels are deterministic."""


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the generators of python, numpy and torch, on every device.

    deterministic: also let torch use deterministic kernels only; an operation that has none raises RuntimeError then.
    """
    import torch

    from hexloop.adapters.device.torch.base import CpuDevice

    CpuDevice().seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed every generator, and let torch use deterministic kernels only, for the rest of the process.

    warn_only: whether an operation that has no such kernel warns instead of raising RuntimeError. Call it before the
    first use of a device: CUDA reads its environment when it starts. (The argument `full_determinism` does this for
    the length of a run.)
    """
    import torch

    set_seed(seed)
    os.environ.update(SYNCHRONOUS)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
