"""When DeepSpeed's engine is told to add gradients up, and to leave them where they lie."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from hexloop.adapters.engines.deepspeed.configuration import with_gradient_sum, with_gradients_in_place


def zero(stage: int, **further: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **further}}


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_processes_that_have_shares_add_them_up(stage: int) -> None:
    """Under the stages that can, in a format of full range, where nobody chose anything else."""
    config = {**zero(stage), "bf16": {"enabled": True}, "fp16": {"enabled": False}}
    where = {"reduce_scatter": False} if stage else {}
    assert with_gradient_sum(config, nn.Linear(2, 2)) == {
        **config,
        **zero(stage, **where),
        "gradient_allreduce_op": "sum",
    }
    assert "gradient_allreduce_op" not in config


@pytest.mark.parametrize("chosen", [{"reduce_scatter": True}, {"use_multi_rank_bucket_allreduce": False}])
def test_a_way_of_reducing_that_is_chosen_stays(chosen: dict[str, bool]) -> None:
    """How gradients travel is the user's to say."""
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
def test_a_mean_is_taken_where_a_sum_is_refused_or_too_small_or_not_theirs_to_choose(config: dict[str, Any]) -> None:
    """DeepSpeed would not begin, a gradient would be 0 in half precision, or the user's own scale would change."""
    assert with_gradient_sum(config, nn.Linear(2, 2)) is None


def test_a_mean_is_taken_of_experts() -> None:
    """Each is met by some of the processes alone, so that the sum over these is another number."""
    model = nn.Linear(2, 2)
    model.bias.allreduce = False  # type: ignore[attr-defined]
    assert with_gradient_sum(zero(2), model) is None


def test_zero_3_takes_gradients_from_where_they_lie_in_a_processors_memory() -> None:
    """The rest of the section stays, and the user's own mapping is not written to."""
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
def test_elsewhere_gradients_go_through_the_buffer_of_deepspeed(config: dict[str, Any], device: str) -> None:
    """Where it keeps memory in one piece, where it is what is reduced, or where somebody chose it."""
    assert with_gradients_in_place(config, device) == config
