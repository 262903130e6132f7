"""State kept by user data is restored exactly from a checkpoint, or refused when it is saved."""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexloop.adapters.batches.torch.data_state import (
    decode_state,
    encode_state,
    is_stateful,
    state_from_parts,
    state_parts,
)
from hexloop.app.testing.contracts.state import kept
from hexloop.domain.errors import DataError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=9)
KEYS = st.text(max_size=5) | st.integers() | st.tuples(st.integers(), st.text(max_size=2))
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.dictionaries(st.sampled_from(["tuple", "dict", "tensor", "float"]), inner, max_size=2)
    ),
    max_leaves=12,
)


def export_and_load(state: Any) -> Any:
    """Export to parts and load them again, with their JSON written and read as in a checkpoint."""
    captured = encode_state(None, state)
    json.dumps(captured.document, allow_nan=False)
    found = state_from_parts("state", kept(state_parts("state", captured)))
    assert found is not None
    return decode_state(found)


@settings(deadline=None)
@given(VALUES)
def test_plain_values_are_restored(state: Any) -> None:
    """Strings, numbers of any size, NaN, bytes, lists, tuples and dictionaries with any keys are restored."""
    assert repr(export_and_load(state)) == repr(state)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6).reshape(2, 3),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.zeros(0, 3),
        torch.ones(3, 4).T,
        torch.Generator().get_state(),
        np.arange(3, dtype=np.uint32),
        np.array(2.5),
        np.arange(6).reshape(2, 3)[:, ::2],
    ],
    ids=repr,
)
def test_tensors_and_arrays_are_restored(value: Any) -> None:
    """Nested tensors and arrays are restored with dtype, shape and values, independent of the captured ones."""
    back = export_and_load({"deep": [value, (value,)]})["deep"][1][0]

    assert type(back) is type(value)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert (back == value).all()


def test_a_capture_is_a_copy() -> None:
    """Later changes to the data do not reach a captured state."""
    tensor, listed = torch.zeros(2), [1]
    captured = encode_state(None, {"tensor": tensor, "list": listed})
    tensor += 1
    listed.append(2)

    assert decode_state(captured)["list"] == [1]
    assert decode_state(captured)["tensor"].tolist() == [0, 0]


def test_random_generator_states_are_restored() -> None:
    """States of Python, numpy and torch generators can be loaded again and continue with the same numbers."""
    python, numpy, own = random.Random(1), np.random.default_rng(1), torch.Generator().manual_seed(1)
    back = export_and_load([python.getstate(), numpy.bit_generator.state, own.get_state()])
    drawn = python.random(), numpy.random(), torch.rand(1, generator=own)
    python.setstate(back[0])
    numpy.bit_generator.state = back[1]
    own.set_state(back[2])

    assert (python.random(), numpy.random(), torch.rand(1, generator=own)) == drawn


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (random.Random(1), "Random"),
        ({1, 2}, "set"),
        (np.array(["a"]), "ndarray"),
        (torch.zeros(1, dtype=torch.complex64), "Tensor"),
        (lambda: 1, "function"),
    ],
)
def test_values_that_a_checkpoint_cannot_hold_are_refused(value: Any, named: str) -> None:
    """The error says which data set, which value, where in its state, why, and how to fix it."""

    class Rows:
        pass

    with pytest.raises(
        DataError, match=rf"The state_dict of Rows contains a {named} at a\.1, .*; let state_dict return"
    ):
        encode_state(Rows(), {"a": [0, value]})


def test_inconsistent_parts_are_refused() -> None:
    """A missing, an additional or a truncated part is refused."""
    parts = kept(state_parts("state", encode_state(None, {"a": torch.zeros(2), "b": torch.ones(3)})))
    document, *tensors = parts

    for unfit in ([document, tensors[0]], tensors, [*parts, *kept(state_parts("other", encode_state(None, 1)))]):
        with pytest.raises(ValueError, match="state of the data"):
            state_from_parts("state", unfit)
    assert state_from_parts("state", []) is None


def test_an_ordered_dictionary_becomes_a_dictionary() -> None:
    """An OrderedDict is restored as a plain dictionary in the same order."""
    assert list(export_and_load(OrderedDict(b=1, a=2))) == ["b", "a"]


def test_the_state_of_a_shuffled_datasets_stream_is_not_used() -> None:
    """Its state leaves out the rows in its shuffle buffer, so rows are counted and skipped instead."""
    from datasets import Dataset

    stream = Dataset.from_dict({"a": list(range(8))}).to_iterable_dataset(num_shards=2)

    assert is_stateful(stream)
    assert is_stateful(stream.map(lambda row: row))
    assert not is_stateful(stream.shuffle(seed=1, buffer_size=3))
    assert not is_stateful(stream.shuffle(seed=1, buffer_size=3).map(lambda row: row).take(5))
