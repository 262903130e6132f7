"""The global switches of torch that the arguments ask for."""

from __future__ import annotations

import os
from functools import partial

import torch

from hexloop.app.arguments import TrainingArguments
from hexloop.app.training.live import GlobalSwitches

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}
"""What cuBLAS and FlashAttention read before they give the same bits each time."""


def switches_for(args: TrainingArguments) -> GlobalSwitches:
    """TF32 products and deterministic kernels, where they are asked for; everything else is left as it is."""
    switches = GlobalSwitches()
    if args.tf32 is not None:
        switches.wanted["matmul precision"] = (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
            "high" if args.tf32 else "highest",
        )
    if args.full_determinism:
        switches.wanted["deterministic algorithms"] = (
            torch.are_deterministic_algorithms_enabled,
            torch.use_deterministic_algorithms,
            True,
        )
        switches.wanted["cudnn benchmark"] = (
            lambda: torch.backends.cudnn.benchmark,
            lambda value: setattr(torch.backends.cudnn, "benchmark", value),
            False,
        )
        switches.wanted["cudnn deterministic"] = (
            lambda: torch.backends.cudnn.deterministic,
            lambda value: setattr(torch.backends.cudnn, "deterministic", value),
            True,
        )
        for name, value in VARIABLES.items():
            switches.wanted[name] = (partial(os.environ.get, name), partial(_set_variable, name), value)
    return switches


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
