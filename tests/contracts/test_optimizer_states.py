"""Whatever an optimizer keeps goes through the files of a checkpoint and comes back bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import RunState
from tests.contracts.optimizers import EightBitMomentum, KeepingAnObject, KeepingInGroups, LowRank, Odd, WithModule

Make = Callable[[nn.Module], Optimizer]


def model(dtype: torch.dtype = torch.float32, by_columns: bool = True) -> nn.Module:
    """(batch, 6) -> (batch, 2); one matrix is stored by columns."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        made = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 2)).to(dtype)
    if by_columns:
        weight = made.get_parameter("0.weight")
        weight.data = weight.data.T.contiguous().T
    return made


def groups(of: nn.Module) -> list[dict[str, Any]]:
    first, second = of.children()
    return [{"params": list(first.parameters())}, {"params": list(second.parameters()), "lr": 0.03}]


OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda of: torch.optim.AdamW(groups(of), betas=(0.8, 0.95), amsgrad=True),
    "AdamW, fused, with a rate that is a tensor": lambda of: torch.optim.AdamW(
        of.parameters(), lr=torch.tensor(0.01), fused=True
    ),
    "Adafactor": lambda of: torch.optim.Adafactor(of.parameters()),
    "LBFGS": lambda of: torch.optim.LBFGS(of.parameters(), lr=0.1, max_iter=3),
    "ASGD": lambda of: torch.optim.ASGD(of.parameters()),
    "Rprop": lambda of: torch.optim.Rprop(of.parameters()),
    "NAdam": lambda of: torch.optim.NAdam(of.parameters()),
    "SGD, whose momentum is not there yet": lambda of: torch.optim.SGD(of.parameters(), lr=0.1, momentum=0.5),
    "8 bits": lambda of: EightBitMomentum(of.parameters()),
    "low rank": lambda of: LowRank(of.parameters()),
    "state dicts within, and state of the whole": lambda of: WithModule(of.parameters()),
    "everything at once": lambda of: Odd(of.parameters()),
}


def advance(of: nn.Module, optimizer: Optimizer, steps: int = 1) -> None:
    """Some steps on noise that is the same each time."""
    source = torch.Generator().manual_seed(9)
    for _ in range(steps):
        rows = torch.randn(4, 6, generator=source).to(next(of.parameters()).dtype)

        def loss(rows: Tensor = rows) -> Any:
            optimizer.zero_grad()
            value = of(rows).square().mean()
            value.backward()
            return value

        loss()
        optimizer.step(loss if isinstance(optimizer, torch.optim.LBFGS) else None)


def same(one: Any, other: Any) -> bool:
    """Whether two values are of the same types and equal, bit for bit."""
    if isinstance(one, nn.Module):
        return type(one) is type(other) and same(one.state_dict(), other.state_dict())
    if isinstance(one, Tensor):
        alike = isinstance(other, Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return alike and same_bits(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dict__"):
        return type(one) is type(other) and same(vars(one), vars(other))
    return type(one) is type(other) and repr(one) == repr(other)


def same_bits(one: Tensor, other: Tensor) -> bool:
    if not one.numel():
        return True
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8), other.contiguous().reshape(-1).view(torch.uint8))


def through_files(folder: Path, saved: tuple[nn.Module, Optimizer], loaded: tuple[nn.Module, Optimizer]) -> None:
    def contents(pair: tuple[nn.Module, Optimizer]) -> CheckpointContents:
        return CheckpointContents({"model": ModelState(pair[0]), "optimizer": OptimizerState(*pair)})

    storage = LocalStorage(folder)
    for file in contents(saved).files(RunState()):
        storage.write(file.path, file.chunks)
    contents(loaded).restore([path.name for path in folder.iterdir()], storage.read)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """Saved after some steps and loaded into a new optimizer, the state dict is the same, and so is what follows."""
    if dtype == torch.bfloat16 and name in ("LBFGS", "low rank", "state dicts within, and state of the whole"):
        pytest.skip("its own computations do not work in bfloat16")
    ours, again = (model(dtype, by_columns=name != "LBFGS") for _ in range(2))
    optimizer, new = OPTIMIZERS[name](ours), OPTIMIZERS[name](again)
    advance(ours, optimizer, 3)
    through_files(tmp_path, (ours, optimizer), (again, new))

    assert same(optimizer.state_dict(), new.state_dict())
    advance(ours, optimizer, 2)
    advance(again, new, 2)
    assert same(optimizer.state_dict(), new.state_dict())
    assert same(dict(ours.state_dict()), dict(again.state_dict()))


def signal() -> float:
    return 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_state_in_groups_comes_back(dtype: torch.dtype) -> None:
    """What changed over the steps is loaded, for the new parameters; functions and options are the new optimizer's."""
    ours, again = model(dtype), model(dtype)
    optimizer = KeepingInGroups(groups(ours), signals=[signal])
    new = KeepingInGroups(groups(again), signals=[signal])
    state, other = OptimizerState(ours, optimizer), OptimizerState(again, new)
    advance(ours, optimizer, 3)
    for group in new.param_groups:
        group["eps"] = 1e-4
    other.load(list(state.export()))
    ModelState(again).load(list(ModelState(ours).export()))

    for saved, group in zip(optimizer.param_groups, new.param_groups, strict=True):
        assert (group["k"], group["train_mode"], group["d"], group["lr"]) == (3, True, saved["d"], saved["lr"])
        assert group["eps"] == 1e-4
        assert group["signals"] == [signal]
        assert torch.equal(group["norm"], saved["norm"])
        assert list(group["moments"]) == group["params"]
        assert same(list(group["moments"].values()), list(saved["moments"].values()))
        group["eps"] = saved["eps"]
    advance(ours, optimizer, 2)
    advance(again, new, 2)
    assert same(dict(ours.state_dict()), dict(again.state_dict()))


def test_an_object_in_a_group_is_refused() -> None:
    """It is not left out without notice."""
    ours = model()
    optimizer = KeepingAnObject(ours.parameters())
    state = OptimizerState(ours, optimizer)
    advance(ours, optimizer)
    with pytest.raises(CheckpointError, match=r"is a .*Generator, and checkpoints contain no pickled"):
        list(state.export())


def test_state_of_a_tensor_that_is_no_parameter_is_refused() -> None:
    """A checkpoint could not say whose it is."""
    ours = model()
    optimizer = KeepingInGroups(ours.parameters())
    state = OptimizerState(ours, optimizer)
    optimizer.param_groups[0]["moments"] = {torch.ones(3): {"mean": torch.ones(3)}}
    with pytest.raises(CheckpointError, match="not a parameter of the model"):
        list(state.export())


def test_moments_of_another_type_than_their_weights_keep_it(tmp_path: Path) -> None:
    """Moments in float32 of weights in bfloat16 come back in float32, which torch by itself would cast."""
    ours, again = model(torch.bfloat16), model(torch.bfloat16)
    optimizer, new = (torch.optim.AdamW(each.parameters()) for each in (ours, again))
    advance(ours, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-4
    through_files(tmp_path, (ours, optimizer), (again, new))
    assert same(optimizer.state_dict(), new.state_dict())


def test_what_several_share_is_written_once_and_shared_again(tmp_path: Path) -> None:
    """The map of an 8-bit optimizer, which every parameter's state names, is one tensor, in the file and afterwards."""
    ours, again = model(), model()
    optimizer, new = EightBitMomentum(ours.parameters()), EightBitMomentum(again.parameters())
    advance(ours, optimizer)
    exported = list(OptimizerState(ours, optimizer).export())
    through_files(tmp_path, (ours, optimizer), (again, new))

    assert [part.name for part in exported if part.shape == (256,)] == ["0.weight.qmap1"]
    assert len({id(state["qmap1"]) for state in new.state.values()}) == 1


def test_moments_lie_in_memory_as_their_parameters_do(tmp_path: Path) -> None:
    """A matrix stored by columns has its moments by columns again, as fused kernels want it."""
    ours, again = model(), model()
    optimizer, new = (torch.optim.AdamW(each.parameters()) for each in (ours, again))
    advance(ours, optimizer)
    through_files(tmp_path, (ours, optimizer), (again, new))
    parameter = again.get_parameter("0.weight")
    assert new.state[parameter]["exp_avg"].stride() == parameter.stride() == (1, 3)


class Handle:
    """What no checkpoint can hold."""

    __slots__ = ("number",)


@pytest.mark.parametrize("value", [Handle(), {1, 2}, lambda: None, object()], ids=lambda value: type(value).__name__)
def test_what_cannot_be_kept_is_refused_by_name(value: object) -> None:
    """The error says which optimizer, where in its state, what is there and what would do."""
    ours = model()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    optimizer.state[ours.get_parameter("1.bias")]["handle"] = value
    with pytest.raises(
        CheckpointError, match=rf"SGD cannot be saved: its 1\.bias\.handle is a .*{type(value).__name__}.*no pickled"
    ):
        list(OptimizerState(ours, optimizer).export())


def test_a_class_that_the_optimizer_does_not_know_is_never_made(tmp_path: Path) -> None:
    """A checkpoint that names any other class is refused before anything has changed."""
    ours, again = model(), model()
    optimizer, new = LowRank(ours.parameters()), LowRank(again.parameters())
    advance(ours, optimizer)
    parts = list(OptimizerState(ours, optimizer).export())
    data = bytes(parts[-1].read()).replace(b"tests.contracts.optimizers.Projector", b"subprocess.Popen")
    from attrs import evolve

    before = deepcopy(new.state_dict())
    with pytest.raises(
        ValueError, match=r"contains a subprocess\.Popen, which is not a class of this optimizer's package"
    ):
        OptimizerState(again, new).load([*parts[:-1], evolve(parts[-1], read=lambda: memoryview(data))])
    assert same(before, new.state_dict())


def test_a_parameter_that_is_none_of_the_models_is_refused() -> None:
    """Its own value would be in no checkpoint."""
    ours = model()
    optimizer = torch.optim.SGD([*ours.parameters(), nn.Parameter(torch.ones(7))], lr=0.1)
    with pytest.raises(CheckpointError, match=r"shape \(7,\) that is not a parameter of the model"):
        list(OptimizerState(ours, optimizer).export())
