"""Flags of torch and of the environment that training sets: TF32, deterministic kernels, seeds."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

import torch

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import cpu_device
from hexloop.app.assembly.random_state import Flag
from hexloop.ports.device import Device

log = logging.getLogger("hexloop")

# Flags of torch and the environment

VARIABLES = {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "FLASH_ATTENTION_DETERMINISTIC": "1"}
"""Environment variables that make cuBLAS and FlashAttention deterministic."""


def flags_for(args: TrainingArguments, device: Device) -> list[Flag]:
    """Return the flags for TF32, deterministic kernels and shapes to compile, if the arguments require them."""
    flags: list[Flag] = []
    if args.torch_compile and args.compile_buckets is not None:
        flags += _compiled_shapes(args.compile_buckets)
    if (tf32 := _tf32(args, device)) is not None:
        flags.append((_products, _set_products, ("high", "tf32") if tf32 else ("highest", "ieee")))
        flags.append((_cudnn_formats, _set_cudnn_formats, ("tf32", "tf32") if tf32 else ("ieee", "ieee")))
    if args.full_determinism:
        flags.append((torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True))
        for name, value in (("benchmark", False), ("deterministic", True)):
            cudnn = torch.backends.cudnn
            flags.append((partial(getattr, cudnn, name), partial(setattr, cudnn, name), value))
        for variable, wanted in VARIABLES.items():
            flags.append((partial(os.environ.get, variable), partial(_set_variable, variable), wanted))
    return flags


EVALUATED = 8
"""How many data sets that are evaluated in a run are expected to have shapes of their own."""


def _compiled_shapes(buckets: int) -> list[Flag]:
    """Return the flags that raise the limits of torch.compile, beyond which it stops compiling, by the planned shapes.

    Training and each evaluation are compiled by themselves, and an evaluation has a smaller last batch.
    """
    from torch._dynamo import config

    shapes = (buckets + 1) * (1 + EVALUATED)
    return [
        (partial(getattr, config, name), partial(setattr, config, name), getattr(config, name) + shapes)
        for name in ("recompile_limit", "accumulated_recompile_limit")
    ]


def _tf32(args: TrainingArguments, device: Device) -> bool | None:
    """Return whether to use TF32, None to leave torch's flags as they are.

    As in transformers, compiled models use it unless the arguments say otherwise, or train in fp16.
    """
    if args.tf32 is not None or not args.torch_compile or args.fp16 or "tf32" not in device.capabilities.precisions:
        return args.tf32
    log.info("TF32 is on, because torch_compile=True; set tf32=False to compute in full fp32.")
    return True


def computes_in_tf32() -> bool:
    """Return whether torch now computes fp32 products in TF32, on a device that has it."""
    return _products()[1] == "tf32"


def _products() -> tuple[str, str]:
    """Return how torch computes fp32 products: its precision of that name, and the format, "tf32", "ieee" or "none".

    torch does not tell the precision if a script has set the format only.
    """
    form = torch.backends.cuda.matmul.fp32_precision
    try:
        return torch.get_float32_matmul_precision(), form
    except RuntimeError:
        return "high" if form == "tf32" else "highest", form


def _set_products(wanted: tuple[str, str]) -> None:
    torch.set_float32_matmul_precision(wanted[0])
    if torch.backends.cuda.matmul.fp32_precision != wanted[1]:
        torch.backends.cuda.matmul.fp32_precision = wanted[1]


def _cudnn_formats() -> tuple[str, str]:
    """Return the formats in which cuDNN computes convolutions and recurrent layers in fp32, "tf32" or "ieee"."""
    cudnn: Any = torch.backends.cudnn
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def _set_cudnn_formats(formats: tuple[str, str]) -> None:
    """Set both through `allow_tf32`, unless they differ, so that scripts can still read that flag."""
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = formats[0] == "tf32"
    if formats != _cudnn_formats():
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = formats


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def environment() -> dict[str, str]:
    """Return facts of torch on which the last bits of a result may depend."""
    return {
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


# Without a Trainer

SYNCHRONOUS = VARIABLES | dict.fromkeys(("CUDA_LAUNCH_BLOCKING", "ASCEND_LAUNCH_BLOCKING", "HCCL_DETERMINISTIC"), "1")
"""Environment variables that make kernels deterministic if they are set before CUDA, or its like, starts."""


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the random generators of Python, numpy and torch, on every device.

    Args:
        seed: the same number for all generators.
        deterministic: also restrict torch to deterministic kernels; operations that have none raise RuntimeError.
    """
    cpu_device().seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed every random generator, and restrict torch to deterministic kernels, for the rest of the process.

    Call it before the first use of a device, because CUDA reads its environment when it starts. (The argument
    `full_determinism` does this for the length of a run.)

    Args:
        seed: the same number for all generators.
        warn_only: operations without such a kernel warn instead of raising RuntimeError.
    """
    set_seed(seed)
    os.environ.update(SYNCHRONOUS)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
