"""When DeepSpeed sums gradients, and where ZeRO-3 keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hexloop.adapters.engines.deepspeed.configuration import with_gradient_sum, with_gradients_in_place


def zero(stage: int, **further: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **further}}


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_gradients_are_summed(stage: int) -> None:
    """Gradients are summed in stages and formats that allow it, unless the user configured the reduction."""
    config = {**zero(stage), "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    where = {"reduce_scatter": False} if stage else {}
    assert with_gradient_sum(config, nn.Linear(2, 2)) == {
        **config,
        **zero(stage, **where),
        "gradient_allreduce_op": "sum",
    }
    assert "gradient_allreduce_op" not in config


@pytest.mark.parametrize("chosen", [{"reduce_scatter": True}, {"use_multi_rank_bucket_allreduce": False}])
def test_configured_reduction_is_kept(chosen: dict[str, bool]) -> None:
    """A reduction that the user configured is kept."""
    config = zero(2, **chosen)
    assert with_gradient_sum(config, nn.Linear(2, 2)) == {**config, "gradient_allreduce_op": "sum"}


@pytest.mark.parametrize(
    "config",
    [
        zero(3),
        zero(2, zenflow={}),
        {**zero(2), "compile": {"deepcompile": True}},
        {**zero(2), "gradient_allreduce_op": "sum"},
        {**zero(0), "gradient_predivide_factor": 2.0},
        {**zero(0), "prescale_gradients": True},
        {**zero(2), "fp16": {"enabled": True}},
        {**zero(2), "torch_autocast": {"enabled": True, "dtype": "float16"}},
    ],
)
def test_gradients_are_averaged_if_a_sum_is_not_possible(config: dict[str, Any]) -> None:
    """Gradients are averaged if DeepSpeed rejects a sum, half precision underflows, or the user sets a scale."""
    assert with_gradient_sum(config, nn.Linear(2, 2)) is None


def test_gradients_of_experts_are_averaged() -> None:
    """Gradients of experts are averaged, because only some processes compute each expert."""
    model = nn.Linear(2, 2)
    model.bias.allreduce = False  # type: ignore[attr-defined]
    assert with_gradient_sum(zero(2), model) is None


def test_zero_3_reduces_without_a_contiguous_buffer_on_the_cpu() -> None:
    """On the CPU, contiguous gradients are turned off in a copy of the user's mapping."""
    config = {**zero(3, reduce_bucket_size=1000), "gradient_clipping": 1.0}
    inner = {"stage": 3, "reduce_bucket_size": 1000, "contiguous_gradients": False}
    assert with_gradients_in_place(config, "cpu") == {"zero_optimization": inner, "gradient_clipping": 1.0}
    assert config == {**zero(3, reduce_bucket_size=1000), "gradient_clipping": 1.0}


@pytest.mark.parametrize(
    ("config", "device"),
    [
        (zero(3), "cuda"),
        (zero(2), "cpu"),
        ({}, "cpu"),
        (zero(3, contiguous_gradients=True), "cpu"),
        (zero(3, reduce_scatter=False), "cpu"),
        (zero(3, zenflow={}), "cpu"),
    ],
)
def test_contiguous_buffer_is_kept_elsewhere(config: dict[str, Any], device: str) -> None:
    """DeepSpeed's buffer is kept on GPUs, in other stages, and if the user configured it."""
    assert with_gradients_in_place(config, device) == config
