"""Layer-wise steps in several processes match those of one process with the same global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hexloop import ConfigurationError
from hexloop.adapters.engines.ddp.layerwise import LayerwiseDdp
from hexloop.adapters.trainable.torch.trainable import ModelLoss, TorchTrainable
from tests.engines.processes import in_processes
from tests.engines.several.training import Trained, Training, distance, fresh, run

TARGETS = {"optim_target_modules": ["layers", "out"], "optim_args": "rank=4, update_proj_gap=3"}

NAMES: dict[str, dict[str, Any]] = {
    "lomo": {"optim": "lomo", "max_grad_norm": 0.1, "learning_rate": 0.1},
    "adamw": {"optim": "adamw_torch", "optim_layerwise": True, "max_grad_norm": 0.0},
    "adalomo": {"optim": "adalomo", "max_grad_norm": 0.0},
    "galore": {"optim": "galore_adamw_layerwise", "max_grad_norm": 0.1, **TARGETS},
    "galore, adafactor": {"optim": "galore_adafactor_layerwise", "max_grad_norm": 0.0, **TARGETS},
    "apollo": {"optim": "apollo_adamw_layerwise", "max_grad_norm": 0.0, **TARGETS},
}


def same(one: Trained, other: Trained, tolerance: float = 1e-6) -> None:
    assert len(one.logged) == len(other.logged)
    for first, second in zip(one.logged, other.logged, strict=True):
        assert first.keys() == second.keys()
        for name in first.keys() - {"epoch", "total_flos"}:
            assert second[name] == pytest.approx(first[name], rel=tolerance, abs=1e-8), (name, first, second)
    assert distance(one.weights, other.weights) < tolerance


@pytest.mark.matrix
@pytest.mark.parametrize("batch", [4, 2])
@pytest.mark.parametrize("name", NAMES)
def test_two_processes_match_one(name: str, batch: int, tmp_path: Path) -> None:
    """Logs and weights, with and without accumulation; a resumed run of two processes is bit-identical."""
    given = {"adam_epsilon": 1e-6, "weight_decay": 0.1, "save_strategy": "steps", "save_steps": 4, "max_steps": 10}
    training = Training(rows=40, batch=8, arguments={**given, **NAMES[name]}, engine="Reader")
    alone = run(training, fresh(tmp_path / "1"))
    both = run(training.of(2, batch=batch), fresh(tmp_path / "2"))
    same(alone, both)
    if batch == 4:
        checkpoint = str(tmp_path / "2" / "checkpoint-4")
        resumed = run(training.of(2, batch=batch, resume=checkpoint), fresh(tmp_path / "3"))
        assert resumed.logged == both.logged
        assert distance(resumed.weights, both.weights) == 0.0


class Branching(nn.Module):
    """Each process uses another branch; one is used by none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.branches = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.out = nn.Linear(3, 1)
        self.shift = nn.Buffer(torch.zeros(3))

    def forward(self, x: Tensor, branch: int) -> dict[str, Tensor]:
        """Return the loss."""
        return {"loss": self.out(torch.tanh(self.branches[branch](x + self.shift))).square().mean()}


def steps_of(parallelism: Any, batches: list[list[dict[str, Any]]], max_norm: float) -> list[Any]:
    """Return the weights after a window of two micro-batches and two of one, of this process' own batches."""
    model, optimizer = parallelism.prepare(
        Branching(), lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    )
    trainable = TorchTrainable(model, optimizer, ModelLoss(), exact=False)
    detach = parallelism.attach(trainable, max_norm)
    for window in batches:
        for number, batch in enumerate(window):
            parallelism.synchronise(number + 1 == len(window))
            parallelism.backward(model(**batch)["loss"])
        norm = trainable.clip(max_norm)
        assert norm is not None
        trainable.optimizer.step()
        trainable.clear_gradients()
    detach()
    return [each.tolist() for each in model.parameters()]


def windows_of(rank: int) -> list[list[dict[str, Any]]]:
    draw = torch.Generator().manual_seed(rank)
    return [
        [
            {"x": torch.randn(4, 3, generator=draw), "branch": (rank + number) % 2 if length > 1 else rank}
            for number in range(length)
        ]
        for length in (2, 1, 1)
    ]


@pytest.mark.parametrize("max_norm", [0.0, 0.05])
def test_parameters_that_some_processes_do_not_use(max_norm: float) -> None:
    """They get the gradients of those that do; a parameter that none uses stays as it is."""
    outcomes = in_processes(2, lambda rank: steps_of(LayerwiseDdp(), windows_of(rank), max_norm))
    for each in outcomes:
        if isinstance(each, BaseException):
            raise each
    first, second = outcomes
    assert first == second

    model = Branching()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for windows in zip(windows_of(0), windows_of(1), strict=True):
        for batch in (each for window in windows for each in window):
            model(**batch)["loss"].backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    for (name, parameter), found in zip(model.named_parameters(), cast("list[Any]", first), strict=True):
        assert torch.allclose(parameter, torch.tensor(found), rtol=0, atol=1e-6), name
    assert cast("list[Any]", first)[4] == Branching().get_parameter("branches.2.weight").tolist()


def _starts_alike(rank: int) -> tuple[list[Any], list[float], str]:
    """Return the tensors after `prepare`, a buffer after a forward pass, and the message for a wrapped model."""
    torch.manual_seed(rank)
    model = Branching()
    with torch.no_grad():
        model.out.weight.fill_(rank + 1.0)
    model.shift.fill_(rank + 1.0)
    parallelism = LayerwiseDdp()
    parallelism.prepare(model, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    tensors = [each.tolist() for each in (*model.parameters(), *model.buffers())]
    model.shift.fill_(rank + 5.0)
    parallelism.synchronise(True)
    try:
        LayerwiseDdp().prepare(DistributedDataParallel(Branching()), lambda model: None)
        message = ""
    except ConfigurationError as error:
        message = str(error)
    dist.barrier()
    return tensors, model.shift.tolist(), message


def test_processes_start_alike() -> None:
    """Weights and buffers are those of rank 0, buffers before each forward pass; a wrapped model is refused."""
    first, second = in_processes(2, _starts_alike)
    for each in (first, second):
        if isinstance(each, BaseException):
            raise each
    assert first[0] == second[0]  # type: ignore[index]
    assert second[1] == [5.0] * 3  # type: ignore[index]
    assert "pass the module that is in it" in first[2]  # type: ignore[index]


def _peak(rank: int) -> tuple[int, int, int]:
    """Return the most bytes of gradients at a time, those of the largest parameter, and those of all."""
    model: Any = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(20)))
    parameters, peak = list(model.parameters()), 0
    parallelism = LayerwiseDdp()
    _, optimizer = parallelism.prepare(model, lambda model: torch.optim.SGD(model.parameters(), lr=0.1))
    trainable = TorchTrainable(model, optimizer, ModelLoss(), exact=False)

    def observe(_: Tensor) -> None:
        nonlocal peak
        peak = max(peak, sum(each.grad.nbytes for each in parameters if each.grad is not None))

    for each in parameters:
        each.register_post_accumulate_grad_hook(observe)
    parallelism.attach(trainable, 0.0)
    for _ in range(2):
        parallelism.synchronise(True)
        parallelism.backward(model(torch.ones(2, 64)).square().sum())
        trainable.clip(0.0)
    return peak, parameters[0].numel() * 4, sum(each.numel() * 4 for each in parameters)


def test_gradients_on_their_way_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Besides the newest, as many bytes as may be on their way."""
    from hexloop.adapters.engines.ddp import layerwise

    monkeypatch.setattr(layerwise, "IN_FLIGHT", 2 * 64 * 64 * 4)
    for outcome in in_processes(2, _peak):
        if isinstance(outcome, BaseException):
            raise outcome
        peak, largest, every = outcome
        assert largest <= peak <= 3 * largest < every / 6
