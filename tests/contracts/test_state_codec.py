"""Run state and other documents are written as JSON without loss."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.contents import documents
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import SCHEMA_VERSION, RunState

floats = st.floats(allow_nan=False)
folder_names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0")).filter(
    lambda name: name not in (".", "..")
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers() | st.just("$items"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_a_document_is_restored(value: Any) -> None:
    """Values beyond JSON, such as infinity and keys that are not strings, are restored; the file is valid JSON."""
    data = documents.to_bytes(value)
    json.loads(data, parse_constant=pytest.fail)
    assert documents.read([data]) == value


@given(st.floats())
def test_a_float_is_restored_bitwise(value: float) -> None:
    """Every float is restored, including the sign of zero; any NaN is restored as a NaN."""
    again = documents.read([documents.to_bytes([value])])[0]
    assert struct.pack("<d", again) == struct.pack("<d", math.nan if math.isnan(value) else value)


@pytest.mark.parametrize(
    "value", [{"$number": "inf"}, {"$items": []}, {"$items": [["a", 1]], "b": 2}, {1: "a", "1": "b"}]
)
def test_a_dictionary_like_a_marker_is_restored(value: Any) -> None:
    """A dictionary with the keys that hexloop uses as markers is restored unchanged."""
    assert documents.read([documents.to_bytes(value)]) == value


def test_library_numbers_become_plain() -> None:
    """Numpy numbers and tuples are restored as Python numbers and lists."""
    value = {"a": np.float32(0.5), "b": (np.int64(3), np.float64(math.inf))}
    assert documents.read([documents.to_bytes(value)]) == {"a": 0.5, "b": [3, math.inf]}


def test_unsupported_values_are_refused_with_their_path() -> None:
    """The error gives the path and the type of the value."""
    with pytest.raises(CheckpointError, match=r"\['callbacks'\]\['mine'\]\[1\] is a builtins.object"):
        documents.to_bytes({"callbacks": {"mine": [1, object()]}})


states = st.builds(
    RunState,
    run=st.text(),
    step=st.integers(0, 2**53),
    operations=st.floats(allow_nan=False),
    loss_total=st.floats(allow_nan=False),
    learning_rate=st.none() | floats,
    best_metric=st.none() | floats,
    best_step=st.none() | st.integers(0, 2**53),
    best_checkpoint=st.none() | folder_names,
    pass_complete=st.booleans(),
    due=st.lists(st.sampled_from(["log", "evaluate", "save"])),
    history=st.lists(st.dictionaries(st.text(), floats | st.integers(), max_size=3), max_size=3),
    callbacks=st.dictionaries(st.text(), values, max_size=3),
)


def state_from(data: bytes) -> RunState:
    return documents.state_of(documents.migrated("run_state", documents.read([data]), "run_state"))


@given(states)
def test_a_state_is_restored(state: RunState) -> None:
    """Every field of a run's state survives JSON."""
    assert state_from(documents.encode_state(state)) == state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "schema version"),
        ({"unknown": 1}, "unknown"),
        ({"step": None}, "is invalid"),
        ({"history": 5}, "is invalid"),
    ],
)
def test_an_incompatible_state_is_refused(changes: dict[str, Any], message: str) -> None:
    """A newer schema, unknown or missing fields and values of the wrong type are refused with the reason."""
    document = json.loads(documents.encode_state(RunState())) | changes
    with pytest.raises(CheckpointError, match=message):
        state_from(json.dumps(document).encode())
    del document["seed"]
    with pytest.raises(CheckpointError):
        state_from(json.dumps(document).encode())
