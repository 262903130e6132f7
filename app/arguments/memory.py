"""Trading time for memory, and compilation for speed."""

from __future__ import annotations

from typing import Any

from hexloop.app.arguments.checks import at_least
from hexloop.app.arguments.declare import argument, argument_group
from hexloop.app.arguments.group import Arguments
from hexloop.app.environment import lower_variable


@argument_group
class Memory(Arguments):
    """Memory and compilation."""

    activation_checkpointing: bool | None = argument(
        default=None,
        twin="gradient_checkpointing",
        help="keep only some activations in the forward pass and compute the rest again in the backward pass",
    )
    activation_checkpointing_kwargs: dict[str, Any] | str | None = argument(
        default=None,
        twin="gradient_checkpointing_kwargs",
        help='settings of activation checkpointing, such as {"use_reentrant": false}',
    )
    gradient_checkpointing: bool | None = argument(
        default=None, twin="activation_checkpointing", help="another name of activation_checkpointing"
    )
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = argument(
        default=None, twin="activation_checkpointing_kwargs", help="another name of activation_checkpointing_kwargs"
    )
    use_cache: bool = argument(
        default=False, help="let a model that caches keys and values for generation do so in training"
    )
    torch_empty_cache_steps: int | None = argument(
        default=None,
        checks=(at_least(1),),
        help="optimizer steps after which the device's allocator gives back what it caches; never if not given",
    )
    skip_memory_metrics: bool = argument(default=True, help="leave figures of memory out of the metrics")
    torch_compile: bool = argument(default=False, help="compile the model with torch.compile")
    torch_compile_backend: str | None = argument(
        default=None, help="what torch.compile compiles with; inductor if not given; to give it turns compilation on"
    )
    torch_compile_mode: str | None = argument(
        default=None, help="what torch.compile aims at, such as max-autotune; to give it turns compilation on"
    )

    def _settle(self) -> None:
        super()._settle()
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
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = "inductor"
