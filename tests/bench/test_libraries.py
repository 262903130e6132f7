"""The benchmarked loops do the same work; their times are not tested."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tests.bench.libraries import LIBRARIES, silence
from tests.bench.workloads import BATCH, WORKLOADS

NEEDS = {
    "Lightning Fabric": "lightning",
    "Lightning Trainer": "lightning",
    "transformers": "transformers",
    "hexloop run": "transformers",
}
STEPS = 5


@pytest.mark.one_in(4)
@pytest.mark.filterwarnings("ignore")  # warnings of the other libraries
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_takes_the_same_steps(library: str, workload: str) -> None:
    """Every loop makes the given number of fused AdamW updates, with rates that decay to zero, clipped to 1."""
    if library in NEEDS:
        pytest.importorskip(NEEDS[library])
    seen: list[tuple[Any, ...]] = []

    def note(optimizer: Any, _args: Any, _keywords: Any) -> None:
        options = optimizer.param_groups[0]
        gradients = [each.grad for group in optimizer.param_groups for each in group["params"]]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        seen.append((type(optimizer).__name__, options["fused"], float(options["lr"]), norm))

    model, dataset = WORKLOADS[workload].model(), WORKLOADS[workload].dataset(STEPS * BATCH)
    with register_optimizer_step_post_hook(note), silence():
        LIBRARIES[library](model, dataset, STEPS)
    assert len(seen) == STEPS
    assert {(name.removesuffix("Optimizer"), fused) for name, fused, *_ in seen} <= {("AdamW", True)}
    assert [rate for *_, rate, _ in seen] == pytest.approx([1e-3 * (1 - step / STEPS) for step in range(STEPS)])
    assert max(norm for *_, norm in seen) <= 1.0 + 1e-4
