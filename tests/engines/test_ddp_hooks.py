"""DDP communication hooks replace the reduction of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook

from hexloop.adapters.engines.ddp.engine import Ddp, DdpOptions
from tests.engines.processes import in_processes

Hook = Callable[[Any, Any], Any]


def gradient(rank: int, hook: Hook) -> tuple[list[float], int]:
    """Return the gradient of a window of two micro-batches, and the number of calls of the hook."""
    asked: list[int] = []

    def counted(state, bucket):  # type: ignore[no-untyped-def]  # torch takes its own types alone, or none
        asked.append(bucket.index())
        return hook(None, bucket)

    options = DdpOptions(find_unused_parameters=False, hook=(None, counted))
    parallelism = Ddp(torch.device("cpu"), 2, options)
    wrapped, _ = parallelism.prepare(nn.Linear(2, 1, bias=False), lambda model: model)
    asked.clear()
    for last_of_window in (False, True):
        parallelism.synchronise(last_of_window)
        parallelism.backward(wrapped(torch.full((1, 2), (rank + 1) / 7)).sum())
    (parameter,) = wrapped.parameters()
    assert parameter.grad is not None
    found: list[float] = parameter.grad[0].tolist()
    return found, len(asked)


@pytest.mark.parametrize(("hook", "error"), [(allreduce_hook, 1e-6), (fp16_compress_hook, 1e-3)])
def test_a_communication_hook_reduces_the_gradients(hook: Hook, error: float) -> None:
    """The hook is called once per window, for the only bucket; its result is the gradient, in its precision."""
    exact = torch.full((2,), 6 / 7)  # 1/7 and 2/7, two micro-batches
    for result in in_processes(2, lambda rank: gradient(rank, hook)):
        assert not isinstance(result, BaseException), result
        gradients, asked = result
        found = torch.tensor(gradients)
        assert asked == 1
        torch.testing.assert_close(found, exact, rtol=error, atol=0.0)
        rounded = not torch.allclose(found, exact, rtol=1e-6, atol=0.0)
        assert rounded == (hook is fp16_compress_hook)
