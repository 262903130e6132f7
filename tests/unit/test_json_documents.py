"""Strict parsing of JSON from files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.json_documents import finite_json, read_bytes, read_json

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_every_json_document_is_read(value: Any) -> None:
    """All JSON values are read back unchanged."""
    assert read_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"[" * 100_000 + b"]" * 100_000, "deeply"),
        (b'{"a"', "Expecting"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_invalid_json_is_refused(text: bytes, words: str) -> None:
    """Repeated keys, NaN and infinity, excessive nesting and other invalid JSON raise ValueError."""
    with pytest.raises(ValueError, match=words):
        read_json(text)


def test_nan_and_infinity_are_written_as_strings() -> None:
    """NaN and infinity become their names at any depth; everything else is unchanged."""
    value = {"a": [math.nan, 1.5], 2: (math.inf, -math.inf), "text": "nan"}
    assert finite_json(value) == {"a": ["NaN", 1.5], "2": ["Infinity", "-Infinity"], "text": "nan"}


@given(st.lists(st.binary(max_size=9)), st.integers(0, 40))
def test_a_document_is_read_up_to_its_maximum_length(chunks: list[bytes], longest: int) -> None:
    """A longer document is refused at the chunk that exceeds the maximum, and nothing more is read."""
    whole, sizes = b"".join(chunks), list[int]()

    def handed_out() -> Iterator[bytes]:
        for chunk in chunks:
            assert sum(sizes) <= longest
            sizes.append(len(chunk))
            yield chunk

    if len(whole) <= longest:
        assert read_bytes(handed_out(), longest) == whole
    else:
        with pytest.raises(ValueError, match=f"longer than {longest} bytes"):
            read_bytes(handed_out(), longest)
