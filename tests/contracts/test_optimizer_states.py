"""Optimizer states of every layout are restored bitwise from checkpoint files."""

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
from hexloop.adapters.trainable.torch.any_precision import AnyPrecisionAdamW
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.adapters.trainable.torch.serialization import StateDecoder
from hexloop.domain.errors import CheckpointError
from hexloop.domain.json_documents import json_part, json_value
from hexloop.domain.state import RunState
from hexloop.ports.state import Part
from tests.contracts.optimizers import (
    EightBitMomentum,
    KeepingAnObject,
    KeepingInGroups,
    LowRank,
    ManyKinds,
    WithModule,
)

Make = Callable[[nn.Module], Optimizer]


def model(dtype: torch.dtype = torch.float32, by_columns: bool = True) -> nn.Module:
    """Map (batch, 6) to (batch, 2); one matrix is stored column-major."""
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
    "weights of 16 bits, compensated": lambda of: AnyPrecisionAdamW(groups(of), use_kahan_summation=True),
    "weights of 16 bits, rounded": lambda of: AnyPrecisionAdamW(groups(of), rounding="stochastic"),
    "8 bits": lambda of: EightBitMomentum(of.parameters()),
    "low rank": lambda of: LowRank(of.parameters()),
    "state dicts within, and state of the whole": lambda of: WithModule(of.parameters()),
    "everything at once": lambda of: ManyKinds(of.parameters()),
}


def advance(of: nn.Module, optimizer: Optimizer, steps: int = 1) -> None:
    """Take some steps on reproducible noise."""
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
    """Return whether two values have the same types and are equal bitwise."""
    if isinstance(one, nn.Module):
        return type(one) is type(other) and same(one.state_dict(), other.state_dict())
    if isinstance(one, Tensor):
        same_kind = isinstance(other, Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return same_kind and same_bits(one, other)
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
def test_the_state_is_restored_bitwise(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    """A new optimizer that loads the saved state has the same state dict and makes the same updates."""
    if dtype == torch.bfloat16 and name in ("LBFGS", "low rank", "state dicts within, and state of the whole"):
        pytest.skip("the optimizer itself does not support bfloat16")
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
def test_state_in_parameter_groups_is_restored(dtype: torch.dtype) -> None:
    """Values that changed in training are loaded for the new parameters; functions and options are the new
    optimizer's.
    """
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
    """It is not silently left out."""
    ours = model()
    optimizer = KeepingAnObject(ours.parameters())
    state = OptimizerState(ours, optimizer)
    advance(ours, optimizer)
    with pytest.raises(CheckpointError, match=r"is a .*Generator, and checkpoints contain no pickled"):
        list(state.export())


def test_state_of_a_tensor_that_is_not_a_parameter_is_refused() -> None:
    """A checkpoint has no name for such a tensor."""
    ours = model()
    optimizer = KeepingInGroups(ours.parameters())
    state = OptimizerState(ours, optimizer)
    optimizer.param_groups[0]["moments"] = {torch.ones(3): {"mean": torch.ones(3)}}
    with pytest.raises(CheckpointError, match="not a parameter of the model"):
        list(state.export())


def test_moments_keep_their_dtype(tmp_path: Path) -> None:
    """float32 moments of bfloat16 weights are restored as float32, which torch itself would cast."""
    ours, again = model(torch.bfloat16), model(torch.bfloat16)
    optimizer, new = (torch.optim.AdamW(each.parameters()) for each in (ours, again))
    advance(ours, optimizer)
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-4
    through_files(tmp_path, (ours, optimizer), (again, new))
    assert same(optimizer.state_dict(), new.state_dict())


def test_shared_tensors_are_written_once_and_stay_shared(tmp_path: Path) -> None:
    """The map that all parameters of an 8-bit optimizer share is one tensor, in the file and after loading."""
    ours, again = model(), model()
    optimizer, new = EightBitMomentum(ours.parameters()), EightBitMomentum(again.parameters())
    advance(ours, optimizer)
    exported = list(OptimizerState(ours, optimizer).export())
    through_files(tmp_path, (ours, optimizer), (again, new))

    assert [part.name for part in exported if part.shape == (256,)] == ["0.weight.qmap1"]
    assert len({id(state["qmap1"]) for state in new.state.values()}) == 1


def test_moments_have_the_memory_layout_of_their_parameters(tmp_path: Path) -> None:
    """A column-major matrix has column-major moments again, as fused kernels require."""
    ours, again = model(), model()
    optimizer, new = (torch.optim.AdamW(each.parameters()) for each in (ours, again))
    advance(ours, optimizer)
    through_files(tmp_path, (ours, optimizer), (again, new))
    parameter = again.get_parameter("0.weight")
    assert new.state[parameter]["exp_avg"].stride() == parameter.stride() == (1, 3)


class Handle:
    """A value that a checkpoint cannot hold."""

    __slots__ = ("number",)


@pytest.mark.parametrize("value", [Handle(), {1, 2}, lambda: None, object()], ids=lambda value: type(value).__name__)
def test_unsupported_state_is_refused_by_name(value: object) -> None:
    """The error names the optimizer, the location in its state, the value found and the supported types."""
    ours = model()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    optimizer.state[ours.get_parameter("1.bias")]["handle"] = value
    with pytest.raises(
        CheckpointError, match=rf"SGD cannot be saved: its 1\.bias\.handle is a .*{type(value).__name__}.*no pickled"
    ):
        list(OptimizerState(ours, optimizer).export())


def test_an_unknown_class_is_never_instantiated(tmp_path: Path) -> None:
    """A checkpoint that names a class that the optimizer does not use is refused before anything has changed."""
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


def with_outside(value: float) -> tuple[nn.Module, nn.Parameter, torch.optim.Optimizer]:
    """Return a model, and an optimizer that also updates a parameter that is not the model's, such as a loss's."""
    ours, outside = model(), nn.Parameter(torch.full((7,), value))
    groups: list[dict[str, Any]] = [{"params": [outside], "lr": 0.5}, {"params": list(ours.parameters())}]
    return ours, outside, torch.optim.AdamW(groups, lr=0.1)


def test_a_parameter_outside_of_the_model_is_saved_with_the_optimizer() -> None:
    """Nothing else of a checkpoint would contain its value."""
    ours, outside, optimizer = with_outside(1.0)
    outside.grad = torch.arange(7.0)
    optimizer.step()
    other, again, new = with_outside(2.0)
    OptimizerState(other, new).load(OptimizerState(ours, optimizer).export())
    assert torch.equal(again, outside)
    assert not torch.equal(again, torch.ones(7))
    assert torch.equal(new.state[again]["exp_avg"], optimizer.state[outside]["exp_avg"])


def test_a_parameter_outside_of_the_model_of_another_shape_is_refused() -> None:
    ours, _, optimizer = with_outside(1.0)
    again, other = model(), nn.Parameter(torch.ones(5))
    groups: list[dict[str, Any]] = [{"params": [other], "lr": 0.5}, {"params": list(again.parameters())}]
    new = torch.optim.AdamW(groups, lr=0.1)
    with pytest.raises(ValueError, match=r"saved outside\.0.*tensor of shape \(5,\); resume with the same loss"):
        OptimizerState(again, new).load(OptimizerState(ours, optimizer).export())
    assert torch.equal(other, torch.ones(5))


def saved_groups(made: OptimizerState) -> tuple[list[Part], dict[str, Any]]:
    """Return the tensors of a saved optimizer, and its document."""
    *tensors, document = made.export()
    return tensors, json_value(document)


def test_the_values_of_equal_groups_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each of many groups."""
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(60)]
    whole = nn.ParameterList(parameters)
    optimizer = torch.optim.SGD(
        [{"params": [each], "lr": 0.1 + (number == 7)} for number, each in enumerate(parameters)]
    )
    state = OptimizerState(whole, optimizer)
    parts, made = list(state.export()), list[object]()
    construct = torch.optim.SGD.__init__

    def constructed(own: torch.optim.SGD, *given: Any, **options: Any) -> None:
        made.append(own)
        construct(own, *given, **options)

    monkeypatch.setattr(torch.optim.SGD, "__init__", constructed)
    state.load(parts)
    assert len(made) == 2


@pytest.mark.parametrize("what", ["groups", "state"])
def test_far_too_many_entries_are_refused_before_each_is_checked(what: str) -> None:
    """By their number, in a short message; nothing is described."""
    whole = model()
    state = OptimizerState(whole, torch.optim.AdamW(whole.parameters()))
    tensors, document = saved_groups(state)
    entries = {f"x{number}": {} for number in range(1000)} if what == "state" else [{"params": 5}] * 1000
    document[what] = entries
    with pytest.raises(ValueError, match=r"^The saved optimizer has 1000 param.*and this one has \d; resume") as raised:
        state.load([*tensors, json_part("param_groups", document)])
    assert len(str(raised.value)) < 200


def test_the_groups_of_another_model_are_shown_shortened() -> None:
    """A message does not list the names of all parameters."""
    whole = model()
    state = OptimizerState(whole, torch.optim.AdamW(whole.parameters()))
    tensors, document = saved_groups(state)
    document["groups"][0]["params"] += [f"a.name.of.a.parameter.{number}" for number in range(10_000)]
    with pytest.raises(ValueError, match="has the parameter groups") as raised:
        state.load([*tensors, json_part("param_groups", document)])
    assert len(str(raised.value)) < 400


def test_keys_with_equal_hashes_are_refused() -> None:
    """In the values of groups, as anywhere else."""
    with pytest.raises(ValueError, match="same hash"):
        StateDecoder({}).decode({"__pairs__": [[number * (2**61 - 1), 0] for number in range(1, 100)]})
