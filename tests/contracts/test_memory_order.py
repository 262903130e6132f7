"""Optimizer state keeps its order in memory, and saved objects only get attributes of their own."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hexloop.adapters.trainable.torch.serialization import StateDecoder, StateEncoder, memory_order, tensor_part
from tests.contracts.optimizers import Projector

CLASSES = {f"{Projector.__module__}.{Projector.__qualname__}": Projector}


def restored(value: Any, parameter: Tensor | None = None) -> tuple[Any, Any]:
    """Return the JSON of a value, and the value that is decoded from it."""
    encoder = StateEncoder("an optimizer", CLASSES)
    encoded = encoder.encode(value, "value", parameter)
    found = {name: tensor_part(name, tensor) for name, tensor in encoder.tensors.items()}
    return encoded, StateDecoder(found, CLASSES).decode(encoded)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.data())
def test_every_order_of_dimensions_is_restored(shape: list[int], data: st.DataObject) -> None:
    """Values are equal, and so are the strides of a dense tensor, as far as they matter."""
    order = data.draw(st.sampled_from(list(permutations(range(len(shape))))))
    tensor = torch.randn(*shape).permute(order)
    dense = tensor.contiguous().permute(*order)
    encoded, found = restored(dense)
    assert torch.equal(found, dense)
    assert ("order" in encoded) is (memory_order(dense) is not None)
    for number, length in enumerate(dense.shape):
        assert length == 1 or found.stride(number) == dense.stride(number)


def test_products_round_as_before() -> None:
    """A basis of singular vectors, which is column by column in memory, projects bit-identically."""
    torch.manual_seed(0)
    basis = torch.linalg.svd(torch.randn(104, 48), full_matrices=False)[0][:, :5]
    assert not basis.is_contiguous()
    _, found = restored(basis)
    gradient = torch.randn(104, 48)
    assert torch.equal(found.t() @ gradient, basis.t() @ gradient)


def test_moments_of_the_shape_of_their_parameter_have_its_order() -> None:
    """Their documents stay as they were."""
    moment = torch.randn(3, 4).t()
    assert "order" not in restored(moment, torch.zeros(4, 3))[0]
    assert restored(moment, torch.zeros(5, 3))[0]["order"] == [1, 0]


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], "ab", [True, False], [0.0, 1.0], {}, [[0], 1]])
def test_an_order_that_does_not_exist_is_refused(order: Any) -> None:
    """Whatever a file says."""
    encoder = StateEncoder("an optimizer")
    encoded = encoder.encode(torch.randn(3, 4).t(), "value")
    found = {name: tensor_part(name, tensor) for name, tensor in encoder.tensors.items()}
    with pytest.raises(ValueError, match="order"):
        StateDecoder(found).decode({**encoded, "order": order})


@pytest.mark.parametrize("name", ["project", "__class__", "__dict__", "not a name", "back"])
def test_attributes_that_hide_methods_are_refused(name: str) -> None:
    """A projector keeps the methods of its class."""
    encoded, found = restored(Projector(3))
    assert vars(found) == vars(Projector(3))
    encoded["state"][name] = 1
    with pytest.raises(ValueError, match="would hide one of its class"):
        StateDecoder({}, CLASSES).decode(encoded)
