"""Arguments about the device, precision, memory, compilation, processes and sharding."""

from __future__ import annotations

import re
from enum import Enum
from typing import Any

from hexloop.app.arguments.choices import BackendText, FSDPOption, ShardingText
from hexloop.app.arguments.conversion import at_least, each_one_of, mapping_or_file, one_of, whole_number
from hexloop.app.arguments.data import DataArguments
from hexloop.app.arguments.declaration import ArgumentGroup, argument, argument_group, rule
from hexloop.app.environment import lower_variable
from hexloop.domain.wording import RefusalError


@argument_group
class HardwareArguments(DataArguments):
    """Hardware."""

    use_cpu: bool = argument(default=False, help="train on the CPU even if an accelerator is present")

    def _derive(self) -> None:
        super()._derive()
        if self.use_cpu:
            self.dataloader_pin_memory = False


REMOVED_BACKENDS = {
    **dict.fromkeys(("nvfuser", "aot_nvfuser", "aot_ts_nvfuser", "nnc", "ofi", "ansor"), "inductor"),
    "aot_cudagraphs": "cudagraphs",
    **dict.fromkeys(("fx2trt", "fx2trt-fp16"), "tensorrt"),
}
"""Backends of torch.compile that torch has removed, and what replaces each."""


def _present_backend(value: str) -> None:
    if value in REMOVED_BACKENDS:
        raise RefusalError("torch has removed this backend of torch.compile", f"choose {REMOVED_BACKENDS[value]!r}")


@argument_group
class PrecisionArguments(ArgumentGroup):
    """Precision."""

    bf16: bool = argument(
        default=False, help="train in mixed precision with bfloat16; weights and sensitive operations stay in float32"
    )
    fp16: bool = argument(
        default=False, help="as bf16, but with float16 and loss scaling; prefer bf16 if the device has it"
    )
    bf16_full_eval: bool = argument(default=False, help="evaluate with weights and all computation in bfloat16")
    fp16_full_eval: bool = argument(default=False, help="evaluate with weights and all computation in float16")
    tf32: bool | None = argument(
        default=None,
        help="use TensorFloat-32 in float32 products and convolutions, on Ampere and later GPUs; unchanged if unset, "
        "but on with torch_compile",
    )

    @property
    def mixed_precision(self) -> str:
        """`fp16`, `bf16`, `fp8`, or `no` for the dtype of the weights; if unset, ACCELERATE_MIXED_PRECISION."""
        in_8_bits = getattr(self, "fp8", None) is not None
        given = "fp8" if in_8_bits else "fp16" if self.fp16 else "bf16" if self.bf16 else None
        return given or lower_variable("ACCELERATE_MIXED_PRECISION", "no")

    @rule("fp16", "bf16")
    def _one_training_precision(self) -> None:
        if self.fp16 and self.bf16:
            raise RefusalError("a run trains in one precision", "set only one of them")

    @rule("fp16_full_eval", "bf16_full_eval")
    def _one_evaluation_precision(self) -> None:
        if self.fp16_full_eval and self.bf16_full_eval:
            raise RefusalError("a run evaluates in one precision", "set only one of them")


@argument_group
class MemoryArguments(ArgumentGroup):
    """Memory and compilation."""

    activation_checkpointing: bool | None = argument(
        default=None, twin="gradient_checkpointing", help="recompute activations in the backward pass to save memory"
    )
    activation_checkpointing_kwargs: dict[str, Any] | str | None = argument(
        default=None,
        twin="gradient_checkpointing_kwargs",
        help='options of activation checkpointing, such as {"use_reentrant": false}',
    )
    gradient_checkpointing: bool | None = argument(
        default=None, twin="activation_checkpointing", help="alias of activation_checkpointing"
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = argument(
        default=None, twin="activation_checkpointing_kwargs", help="alias of activation_checkpointing_kwargs"
    )
    use_cache: bool = argument(default=False, help="let the model cache keys and values in training, as in generation")
    torch_empty_cache_steps: int | None = argument(
        default=None,
        prepare=whole_number,
        check=at_least(1),
        help="optimizer steps between releases of cached device memory; never if unset",
    )
    skip_memory_metrics: bool = argument(default=True, help="leave memory usage out of the metrics")
    torch_compile: bool = argument(default=False, help="compile the model with torch.compile")
    torch_compile_backend: str | None = argument(
        default=None,
        check=_present_backend,
        help="backend of torch.compile, usually inductor if unset; setting it turns compilation on",
    )
    torch_compile_mode: str | None = argument(
        default=None, help="mode of torch.compile, such as max-autotune; setting it turns compilation on"
    )

    def _derive(self) -> None:
        super()._derive()
        if self.activation_checkpointing is None:
            self.activation_checkpointing = bool(self.gradient_checkpointing)
        if self.activation_checkpointing_kwargs is None:
            self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs
        self.gradient_checkpointing = self.activation_checkpointing
        self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs
        if self.torch_compile_backend is not None or self.torch_compile_mode is not None:
            self.torch_compile = True
        if not self.torch_compile and (backend := lower_variable("ACCELERATE_DYNAMO_BACKEND", "no")) != "no":
            mode = lower_variable("ACCELERATE_DYNAMO_MODE", "default")
            self.torch_compile, self.torch_compile_backend = True, backend
            self.torch_compile_mode = None if mode == "default" else mode


@argument_group
class KernelArguments(ArgumentGroup):
    """Kernels."""

    use_liger_kernel: bool = argument(
        default=False, help="replace layers of a transformers model by liger-kernel's, which take less memory"
    )
    liger_kernel_config: dict[str, bool] | None = argument(
        default=None, help='which layers to replace, such as {"rope": true}; liger-kernel\'s default if unset'
    )


BACKENDS = ("nccl", "gloo", "mpi", "ccl", "xccl", "hccl", "cncl", "mccl")
"""The backends of torch.distributed that transformers knows."""


@argument_group
class ProcessArguments(ArgumentGroup):
    """Several processes."""

    local_rank: int = argument(
        default=-1, check=at_least(-1), help="rank on this machine as old launchers pass it; read local_process_index"
    )
    ddp_backend: BackendText | None = argument(
        default=None,
        check=one_of(*BACKENDS),
        help=f"backend of torch.distributed: {', '.join(BACKENDS)}; if unset, the one that fits the device",
    )
    ddp_timeout: int = argument(default=1800, check=at_least(1), help="seconds to wait for other processes")
    ddp_find_unused_parameters: bool | None = argument(
        default=None, help="search in every step for parameters that do not contribute to the loss"
    )
    ddp_bucket_cap_mb: int | None = argument(
        default=None, check=at_least(1), help="size in MiB of the gradient buckets that processes exchange"
    )
    ddp_broadcast_buffers: bool | None = argument(
        default=None, help="copy the first process's buffers to all processes before each forward pass"
    )
    ddp_static_graph: bool | None = argument(
        default=None, help="assume that every step uses the same parameters in the same order"
    )


_FSDP_ALIASES = {"true": "full_shard", "false": None, "": None}
_OF_TWO_WORDS = re.compile(r"\b(full|no|hybrid)[ -](shard)\b|\b(shard)[ -](grad)[ -](op)\b|\b(auto)[ -](wrap)\b")


def _fsdp_options(value: Any) -> Any:
    """Convert a truth value or a list to options separated by spaces; False and an empty list to None.

    Options are also found as documentation writes them, such as "full shard".
    """
    if isinstance(value, bool):
        return "full_shard" if value else None
    if isinstance(value, list | tuple):
        value = " ".join(str(each.value if isinstance(each, Enum) else each) for each in value)
    if not isinstance(value, str):
        return value
    value = _OF_TWO_WORDS.sub(lambda found: "_".join(filter(None, found.groups())), value)
    return _FSDP_ALIASES.get(value.strip().lower(), value)


def _known_fsdp_options(value: str) -> None:
    each_one_of(*FSDPOption)(value.split())


def _parallelism_config(value: object) -> None:
    if type(value).__name__ != "ParallelismConfig":
        raise RefusalError("it takes a ParallelismConfig of the package accelerate", "give one, or leave it out")


@argument_group
class ShardingArguments(ArgumentGroup):
    """Models spread over devices."""

    fsdp: ShardingText | None = argument(
        default=None,
        prepare=_fsdp_options,
        check=_known_fsdp_options,
        bare="true",
        help="shard the model over the processes with torch's FSDP: true, or options of earlier releases such as "
        "'full_shard auto_wrap'",
    )
    fsdp_config: dict[str, Any] | str | None = argument(
        default=None, prepare=mapping_or_file, help="options of FSDP: a mapping, or the path of a JSON file"
    )
    deepspeed: dict[str, Any] | str | None = argument(
        default=None, prepare=mapping_or_file, help="configuration that turns DeepSpeed on: a mapping, or a JSON file"
    )
    parallelism_config: Any = argument(
        default=None, check=_parallelism_config, help="accelerate's ParallelismConfig for multi-dimensional meshes"
    )
