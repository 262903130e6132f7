"""The state of a run, and other documents, as JSON that loses nothing."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.contents.checkpoint import documents
from hexloop.domain.errors import CheckpointError
from hexloop.domain.state import SCHEMA_VERSION, RunState

floats = st.floats(allow_nan=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers() | st.just("$items"), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_a_document_comes_back(value: Any) -> None:
    """Whatever JSON has or lacks, such as infinity and keys that are no texts, comes back; the file is JSON."""
    data = documents.to_bytes(value)
    json.loads(data, parse_constant=pytest.fail)
    assert documents.from_bytes(data) == value


@given(st.floats())
def test_a_number_comes_back_bit_for_bit(value: float) -> None:
    """Every float comes back, with the sign of its zero; any NaN as a NaN."""
    again = documents.from_bytes(documents.to_bytes([value]))[0]
    assert struct.pack("<d", again) == struct.pack("<d", math.nan if math.isnan(value) else value)


@pytest.mark.parametrize(
    "value", [{"$number": "inf"}, {"$items": []}, {"$items": [["a", 1]], "b": 2}, {1: "a", "1": "b"}]
)
def test_what_looks_like_a_mark_is_none(value: Any) -> None:
    """A dictionary that has the keys with which hexloop marks things comes back as it was."""
    assert documents.from_bytes(documents.to_bytes(value)) == value


def test_numbers_of_libraries_become_plain() -> None:
    """Numpy's numbers, and tuples, come back as Python's numbers and lists."""
    value = {"a": np.float32(0.5), "b": (np.int64(3), np.float64(math.inf))}
    assert documents.from_bytes(documents.to_bytes(value)) == {"a": 0.5, "b": [3, math.inf]}


def test_what_json_has_no_place_for_is_told_with_its_place() -> None:
    """Anything else is refused, saying where it stands and what it is."""
    with pytest.raises(CheckpointError, match=r"\['callbacks'\]\['mine'\]\[1\] is a builtins.object"):
        documents.to_bytes({"callbacks": {"mine": [1, object()]}})


states = st.builds(
    RunState,
    run=st.text(),
    step=st.integers(min_value=0),
    operations=st.floats(allow_nan=False),
    loss_total=st.floats(allow_nan=False),
    learning_rate=st.none() | floats,
    best_metric=st.none() | floats,
    best_step=st.none() | st.integers(min_value=0),
    best_checkpoint=st.none() | st.text(),
    pass_complete=st.booleans(),
    due=st.lists(st.sampled_from(["log", "evaluate", "save"])),
    history=st.lists(st.dictionaries(st.text(), floats | st.integers(), max_size=3), max_size=3),
    callbacks=st.dictionaries(st.text(), values, max_size=3),
)


@given(states)
def test_a_state_comes_back(state: RunState) -> None:
    """Every field of a run's state is the same after a way through JSON."""
    assert documents.state_from_bytes(documents.state_to_bytes(state)) == state


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "schema version"),
        ({"unknown": 1}, "unknown"),
        ({"step": None}, "is invalid"),
        ({"history": 5}, "is invalid"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    """A newer schema, unknown or missing fields and values of the wrong kind are refused with the reason."""
    document = json.loads(documents.state_to_bytes(RunState())) | changes
    with pytest.raises(CheckpointError, match=message):
        documents.state_from_bytes(json.dumps(document).encode())
    del document["seed"]
    with pytest.raises(CheckpointError):
        documents.state_from_bytes(json.dumps(document).encode())
