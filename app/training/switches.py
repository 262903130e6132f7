"""The global switches of torch that the arguments ask for."""

from __future__ import annotations

import torch

from hexloop.app.arguments import TrainingArguments
from hexloop.app.training.live import GlobalSwitches


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
    return switches
