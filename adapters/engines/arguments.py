"""The training arguments that engines read; `TrainingArguments` has them all."""

from __future__ import annotations

from typing import Any, Protocol


class EngineArguments(Protocol):
    """Any object with these attributes. `TrainingArguments` documents them."""

    accelerator_config: Any
    activation_checkpointing: bool
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
    loss_weighting: str
    max_grad_norm: float
    mixed_precision: str
    tf32: bool | None
    weight_decay: float

    @property
    def device(self) -> Any:
        """The device of this process, as torch.device."""
        ...

    @property
    def local_process_index(self) -> int:
        """The number of this process on its machine."""
        ...

    @property
    def n_gpu(self) -> int:
        """How many GPUs this process computes on."""
        ...

    @property
    def train_batch_size(self) -> int:
        """Samples in a micro-batch of this process."""
        ...

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        ...

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Return the warm-up, in optimizer steps, of a run of `num_training_steps`."""
        ...
