"""Behaviour of the torch adapters beyond the contracts of their ports."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BatchEncoding

from hexloop.adapters.batches.torch.collate import collate_columns, default_data_collator
from hexloop.adapters.batches.torch.external import ExternalBatches
from hexloop.adapters.batches.torch.structure import row_count, shallow_copy, transfer_to
from hexloop.adapters.losses.torch import BLOCK, TorchLosses
from hexloop.adapters.precision.autocast import Bf16Precision, Fp16Precision
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.adapters.trainable.torch.serialization import DTYPES, read_tensor, tensor_part
from hexloop.domain.json_documents import json_part
from hexloop.ports.batches import Padding
from hexloop.ports.learner import Optimizer

# Losses


def added(losses: TorchLosses, values: list[float]) -> TorchLosses:
    for value in values:
        losses.add(torch.tensor(value))
    return losses


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_losses_do_not_change_the_mean(bad: float) -> None:
    """The mean of the others is unchanged; without the filter the sum is not finite."""
    assert added(TorchLosses(), [1.0, bad, 3.0]).drain() == 6.0
    assert not math.isfinite(added(TorchLosses(filter_nan=False), [1.0, bad, 3.0]).drain())


def test_losses_that_are_all_bad_have_no_sum() -> None:
    """There is no mean to replace them."""
    assert math.isnan(added(TorchLosses(), [math.nan] * 3).drain())


def test_exporting_losses_does_not_change_rounding() -> None:
    """The sum is bitwise equal whether or not the losses were exported in between, for any block size."""
    values = [0.1 * number for number in range(3 * BLOCK)]
    plain, exported = TorchLosses(), TorchLosses()
    for value in values:
        for losses in (plain, exported):
            losses.add(torch.tensor(value))
        parts = list(exported.export())
        exported = TorchLosses()
        exported.load(parts)

    assert plain.drain() == exported.drain()


def test_adding_a_loss_does_not_synchronize() -> None:
    """The tensors are kept until a block is full, without synchronization."""
    losses = TorchLosses("meta")
    for _ in range(2 * BLOCK):
        losses.add(torch.zeros((), device="meta"))
        losses.add_component("part", torch.zeros((), device="meta"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_components_are_restored(ranks: int) -> None:
    """The sums of several former ranks are added, and rounding is the same as without an export."""
    plain, every = TorchLosses(), []
    for rank in range(ranks):
        one = TorchLosses()
        for number in range(BLOCK + rank):
            for losses in (plain, one):
                losses.add(torch.tensor(1.0))
                losses.add_component("part", torch.tensor(0.1 * number))
            one.add_component(f"of rank {rank}", torch.tensor(2.0))
        every += list(one.export())
    restored = TorchLosses()
    restored.load(every)
    assert restored.drain() == plain.drain() == sum(BLOCK + rank for rank in range(ranks))
    found = restored.drain_components()
    assert found.pop("part") == pytest.approx(plain.drain_components()["part"], rel=0 if ranks == 1 else 1e-6)
    assert found == {f"of rank {rank}": 2.0 * (BLOCK + rank) for rank in range(ranks)}
    assert restored.drain_components() == {}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "components: .* is not a dictionary"),
        ({str(number): {} for number in range(300)}, "of at most 256 entries"),
        ({"part": {"sum": 1.0}}, "components"),
        (
            {"part": {"sum": 1.0, "finite": 2, "added": 1, "waiting": [], "dtype": "float32"}},
            "is more than the 1 losses",
        ),
    ],
)
def test_damaged_components_change_nothing(value: Any, problem: str) -> None:
    """They are refused, and the losses stay as they were."""
    losses = added(TorchLosses(), [1.0, 2.0])
    losses.add_component("part", torch.tensor(5.0))
    with pytest.raises(ValueError, match=problem):
        losses.load([*TorchLosses().export(), json_part("components", value)])
    assert losses.drain() == 3.0
    assert losses.drain_components() == {"part": 5.0}


# Precision


@pytest.mark.parametrize(("precision", "dtype"), [(Bf16Precision, torch.bfloat16), (Fp16Precision, torch.float16)])
def test_products_use_the_precision_and_autocast_ends(precision: Any, dtype: torch.dtype) -> None:
    """Inside the wrapped forward a product has the precision; afterwards, also after an error, autocast is off."""
    adapter, layer = precision("cpu"), nn.Linear(2, 2)
    assert adapter.wrap(layer)(torch.ones(1, 2)).dtype is dtype
    assert layer(torch.ones(1, 2)).dtype is torch.float32
    with pytest.raises(RuntimeError):
        adapter.wrap(layer)(torch.ones(1, 3))

    assert not torch.is_autocast_enabled("cpu")


def test_an_overflow_skips_the_update_and_halves_the_scale() -> None:
    """The weights stay, `step` reports it, and the next update uses half the scale."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = cast(Optimizer, torch.optim.SGD([parameter], lr=0.1))
    precision = Fp16Precision("cpu", initial_scale=8.0)
    taken = []
    for factor in (1.0, math.inf, 1.0):
        parameter.grad = None
        loss: Any = precision.scale((parameter * factor).sum())
        loss.backward()
        precision.unscale(optimizer)
        before = parameter.item()
        taken.append(precision.step(optimizer))
        assert (parameter.item() != before) is taken[-1]

    assert taken == [True, False, True]
    assert precision.scale(torch.ones(())).item() == 4.0


# State


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_every_tensor_is_restored_bitwise(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """For every type and shape, including empty and non-contiguous tensors, in new memory."""
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    for each in (tensor, tensor.T if tensor.ndim == 2 else tensor):
        found = read_tensor(tensor_part("x", each))
        assert found.dtype is dtype
        assert found.shape == each.shape
        if each.numel():
            assert torch.equal(found.reshape(-1).view(torch.uint8), each.contiguous().reshape(-1).view(torch.uint8))
        assert found.data_ptr() != each.data_ptr() or not each.numel()


class Tied(nn.Module):
    """Two names of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight


def test_a_tied_weight_is_exported_once_and_loads_both_names() -> None:
    """The module's own tensor is written to, not replaced."""
    source, target = Tied(), Tied()
    kept = target.first.weight
    parts = list(ModelState(source).export())
    ModelState(target).load(parts)

    assert [part.name for part in parts] == ["first.weight"]
    assert target.first.weight is target.second.weight is kept
    assert torch.equal(target.second.weight, source.first.weight)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop", "Adam", "NAdam", "RAdam", "Adadelta", "LBFGS"])
def test_any_optimizer_resumes_from_its_export(name: str) -> None:
    """Its moments and options, at any depth, are restored so that the next steps are equal."""
    torch.manual_seed(0)
    start = nn.Linear(3, 2).state_dict()

    def make() -> tuple[nn.Module, Any]:
        model = nn.Linear(3, 2)
        model.load_state_dict(start)
        return model, getattr(torch.optim, name)(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: Any, number: int) -> None:
        x = torch.full((1, 3), float(number))

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(x) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)

    one, optimizer = make()
    for number in range(3):
        step(one, optimizer, number)
    other, restored = make()
    other.load_state_dict(one.state_dict())
    OptimizerState(other, restored).load(list(OptimizerState(one, optimizer).export()))
    for number in range(3, 6):
        step(one, optimizer, number)
        step(other, restored, number)

    assert all(torch.equal(left, right) for left, right in zip(one.parameters(), other.parameters(), strict=True))


def test_an_optimizer_of_other_groups_is_refused() -> None:
    """The error names both sides. Two groups of the same parameters as the saved one are not others."""
    model: Any = nn.Linear(3, 2)
    saved = OptimizerState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    split = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    fewer = torch.optim.SGD([{"params": [model.weight]}], lr=0.1)

    OptimizerState(model, split).load(list(saved.export()))
    with pytest.raises(ValueError, match="parameter groups"):
        OptimizerState(model, fewer).load(list(saved.export()))


# Batches


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Entries(MutableMapping[str, Any]):
    """A mapping whose type can be constructed from another mapping, without a copy method."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        self.entries = dict(entries)

    def __getitem__(self, name: str) -> Any:
        return self.entries[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.entries[name] = value

    def __delitem__(self, name: str) -> None:
        del self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Nameless(Entries):
    """A mapping with another constructor."""

    def __init__(self) -> None:
        super().__init__({"x": torch.zeros(1)})


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict, BatchEncoding, Padding, Entries])
def test_a_copied_batch_can_be_emptied(kind: type[Any]) -> None:
    """The copy has the same type; the original keeps its entries, and no tensor is copied."""
    batch = kind({"x": torch.zeros(1)})
    found = shallow_copy(batch)
    assert type(found) is kind
    assert found.pop("x") is batch["x"]
    assert len(found) == 0


def test_other_types_are_not_copied() -> None:
    """Tensors and tuples are not copied; a list is."""
    for batch in (Nameless(), torch.zeros(1), (torch.zeros(1),)):
        assert shallow_copy(batch) is batch
    batches = [torch.zeros(1)]
    assert shallow_copy(batches).pop() is batches[0]


def test_a_transfer_moves_tensors_at_any_depth() -> None:
    """In mappings, lists, tuples and named tuples; everything else is unchanged."""
    batch = {"a": [torch.ones(1), "text"], "b": Pair(torch.ones(1), torch.ones(1)), "c": (torch.ones(1), 3)}
    moved = transfer_to("meta")(batch)

    assert moved["a"][0].device.type == moved["b"].left.device.type == moved["c"][0].device.type == "meta"
    assert moved["a"][1] == "text"
    assert moved["c"][1] == 3
    assert type(moved["b"]) is Pair


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ({"x": torch.zeros(3, 2)}, 3),
        ([torch.zeros(()), torch.zeros(5)], 5),
        ({"nested": {"x": (torch.zeros(2),)}}, 2),
        ([{"x": torch.zeros(5)}, {"x": torch.zeros(5)}, {"x": torch.zeros(5)}], 3),
        ([{"prompt": "one"}, {"prompt": "two"}], 2),
        (["one", "two", "three"], 3),
        ({"names": ["x", "y"], "x": torch.zeros(4)}, 4),
        ({"prompt": ["one", "two"]}, 2),
        ({}, 0),
        ([], 0),
        ("text", 0),
    ],
)
def test_rows_are_counted_by_the_first_tensor_or_the_samples_of_a_list(batch: Any, rows: int) -> None:
    """At any depth; without tensors by the first list of strings."""
    assert row_count(batch) == rows


def test_samples_are_stacked_by_their_types() -> None:
    """Integer labels become int64, others and lists under "label" float32; arrays, lists and numbers become tensors;
    strings are dropped.
    """
    rows = [{"label": 1, "x": np.ones(2), "y": [1, 2], "z": 0.5, "text": "a", "none": None}] * 2
    batch = default_data_collator(rows)

    assert {name: (values.dtype, tuple(values.shape)) for name, values in batch.items()} == {
        "labels": (torch.int64, (2,)),
        "x": (torch.float64, (2, 2)),
        "y": (torch.int64, (2, 2)),
        "z": (torch.float32, (2,)),
    }
    assert default_data_collator([{"label": 0.5}])["labels"].dtype is torch.float32
    assert default_data_collator([{"label": np.array([0, 1])}])["labels"].dtype is torch.float32
    assert default_data_collator([{"label_ids": [1, 2]}])["labels"].tolist() == [[1, 2]]


def test_unused_columns_are_removed_before_collation() -> None:
    """Only if there are columns besides the model's."""
    seen: list[Any] = []
    collate_columns(seen.append, frozenset({"x"}), [{"x": 1, "y": 2}])

    assert seen == [[{"x": 1}]]


def test_a_users_loader_receives_the_epoch() -> None:
    """`set_epoch` of the loader is called if it has one."""

    class Loader(list[dict[str, Tensor]]):
        epochs: tuple[int, ...] = ()

        def set_epoch(self, epoch: int) -> None:
            self.epochs += (epoch,)

    loader = Loader([{"x": torch.zeros(2)}])
    batches = ExternalBatches(loader, transfer_to("cpu"))
    for epoch in range(3):
        assert len(list(batches.epoch(epoch, 0))) == 1

    assert loader.epochs == (0, 1, 2)
