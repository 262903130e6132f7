"""The documents of a run in one file: read as they were written, in any layout, and only those that are asked for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.contents import documents
from hexloop.adapters.contents.run_documents import OPTIMIZER, RunDocuments, documents_file
from hexloop.domain.errors import CheckpointError
from hexloop.domain.limits import reading_limits

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["optimizer", "random", "callbacks", "my_state", "rank-00001"])


def file_of(values: dict[str, dict[str, Any]]) -> bytes:
    """The file with these documents, as hexloop writes it."""
    encoded = {name: documents.encode(name, each) for name, each in values.items()}
    return b"".join(bytes(chunk) for chunk in documents_file(encoded).chunks)


def reader(data: bytes) -> RunDocuments:
    """Reads a checkpoint with this file alone."""
    return RunDocuments(["run_state.json"], lambda path, start=0, /: iter([memoryview(data)[start:]]))


@given(st.dictionaries(NAMES, st.dictionaries(st.text(min_size=1, max_size=4), JSON_VALUES, max_size=3)))
def test_documents_are_read_as_they_were_written(values: dict[str, dict[str, Any]]) -> None:
    """With a line for each, on a single line, and indented."""
    written = file_of(values)
    for data in (written, json.dumps(json.loads(written)).encode(), json.dumps(json.loads(written), indent=2).encode()):
        expected = {name: {"schema_version": 1, **each} for name, each in values.items()}
        assert repr(dict(reader(data).stored())) == repr(expected)


def test_a_document_is_parsed_when_it_is_asked_for() -> None:
    """A file of many megabytes is not worked through for a few lines about the run."""
    data = file_of({"run_setup": {"a": 1}, "random": {"b": 2}}).replace(b'"b": 2', b'"b": }')
    assert reader(data).read("run_setup") == {"a": 1}
    with pytest.raises(CheckpointError, match=r"random in run_state\.json is not a JSON document"):
        reader(data).read("random")


def test_a_file_that_ends_early_is_refused() -> None:
    """Wherever it ends."""
    data = file_of({"random": {"b": 2}, "callbacks": {"c": 3}})
    for end in range(len(data) - 1):
        with pytest.raises(CheckpointError):
            reader(data[:end]).read("callbacks")


def test_a_document_that_is_there_twice_is_refused() -> None:
    """Otherwise two readers might take different ones."""
    data = file_of({"random": {"b": 2}})
    for more in (b'"random": {}', b'"schema_version": {}'):
        twice = data.replace(b"}}\n", b"},\n" + more + b"}\n")
        with pytest.raises(CheckpointError, match="twice"):
            reader(twice).read("random")


@pytest.mark.parametrize("layout", ["lines", "one line"])
def test_an_optimizer_has_few_values_in_many_bytes(layout: str) -> None:
    """Groups by the ten thousand are refused before they are parsed; a long history of the run is not."""
    group = {"lr": 0.1, "name": "x" * 200}
    data = file_of({"random": {"history": [group] * 300}, OPTIMIZER: {"groups": [group] * 300}})
    if layout == "one line":
        data = json.dumps(json.loads(data)).encode()
    with reading_limits(document_values=400):
        with pytest.raises(CheckpointError, match="more than 400 values; document_values raises this limit"):
            reader(data).read(OPTIMIZER)
        if layout == "lines":
            assert len(reader(data).read("random")["history"]) == 300
