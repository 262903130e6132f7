"""The number formats that training and evaluation compute in."""

from __future__ import annotations

from hexloop.app.arguments.declare import argument, argument_group, rule
from hexloop.app.arguments.group import Arguments
from hexloop.app.environment import lower_variable
from hexloop.domain.wording import RefusalError


@argument_group
class Precision(Arguments):
    """Precision."""

    bf16: bool = argument(default=False, help="compute in bfloat16 where that is safe, with weights kept in float32")
    fp16: bool = argument(
        default=False,
        help="compute in float16 where that is safe, with weights kept in float32 and the loss scaled; prefer bf16 "
        "where the device has it",
    )
    bf16_full_eval: bool = argument(default=False, help="evaluate with weights and all computation in bfloat16")
    fp16_full_eval: bool = argument(default=False, help="evaluate with weights and all computation in float16")
    tf32: bool | None = argument(
        default=None,
        help="let products of float32 matrices round to TensorFloat-32, which Ampere and later GPUs have; if not "
        "given, left as the process has it",
    )

    @property
    def mixed_precision(self) -> str:
        """`fp16`, `bf16`, or `no` for computing in the format of the weights; else what the environment says."""
        given = "fp16" if self.fp16 else "bf16" if self.bf16 else None
        return given or lower_variable("ACCELERATE_MIXED_PRECISION", "no")

    @rule("fp16", "bf16")
    def _one_format_for_training(self) -> None:
        if self.fp16 and self.bf16:
            raise RefusalError("a run trains in one number format", "set only one of them")

    @rule("fp16_full_eval", "bf16_full_eval")
    def _one_format_for_evaluation(self) -> None:
        if self.fp16_full_eval and self.bf16_full_eval:
            raise RefusalError("a run evaluates in one number format", "set only one of them")
