"""What engines read: the training arguments, and the variables that launchers set."""

from __future__ import annotations

import os
from typing import Any, Protocol

from hexloop.domain.wording import variable_truth


class EngineArguments(Protocol):
    """The arguments that engines read. `TrainingArguments` has and documents them; any object will do in tests."""

    accelerator_config: Any
    activation_checkpointing: bool | None
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    bf16_full_eval: bool
    ddp_broadcast_buffers: bool | None
    ddp_bucket_cap_mb: int | None
    ddp_find_unused_parameters: bool | None
    ddp_static_graph: bool | None
    deepspeed: Any
    fp16_full_eval: bool
    fsdp: Any
    fsdp_config: Any
    gradient_accumulation_steps: int
    label_names: list[str] | None
    learning_rate: float
    max_grad_norm: float
    tf32: bool | None
    weight_decay: float

    @property
    def loss_weighting(self) -> str | None:
        """How accumulated losses are weighted: exact or reference; None before it is derived."""

    @property
    def reproduce(self) -> str | None:
        """What the run is bit-identical to: transformers, or None."""

    @property
    def device(self) -> Any:
        """The device of this process, as torch.device."""

    @property
    def local_process_index(self) -> int:
        """The number of this process on its machine."""

    @property
    def mixed_precision(self) -> str:
        """The number format of mixed precision: no, bf16, fp16 or fp8."""

    @property
    def n_gpu(self) -> int:
        """How many GPUs this process computes on."""

    @property
    def distributed_environment(self) -> Any:
        """Where this process is in the run; `local_world_size`: processes on its machine, 0 if unknown."""

    @property
    def process_index(self) -> int:
        """The rank of this process."""

    @property
    def steps_in_backward(self) -> bool:
        """Whether each parameter is updated as soon as its gradient is complete."""

    @property
    def train_batch_size(self) -> int:
        """Samples in a micro-batch of this process."""

    @property
    def world_size(self) -> int:
        """How many processes there are."""

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the warm-up, in optimizer steps, of a run of `num_training_steps`."""


def is_on(name: str) -> bool:
    """Return the truth value of a variable, False if it is unset. Raises ConfigurationError for any other text."""
    return variable_truth(name, os.environ.get(name, ""))


def lower_variable(name: str, default: str) -> str:
    """Return the value of a variable in lower case, or `default` if it is unset or empty."""
    return os.environ.get(name, "").strip().lower() or default
