"""JSON from outside is taken at its word and no further."""

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
    """What JSON can say comes back as it was."""
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
def test_what_json_does_not_say_is_refused(text: bytes, words: str) -> None:
    """Repeated keys, numbers that are none, endless nesting and what is not JSON raise ValueError."""
    with pytest.raises(ValueError, match=words):
        read_json(text)


def test_numbers_that_json_lacks_are_written_as_strings() -> None:
    """NaN and infinity become their names, however deeply they are nested; everything else stays."""
    value = {"a": [math.nan, 1.5], 2: (math.inf, -math.inf), "text": "nan"}
    assert finite_json(value) == {"a": ["NaN", 1.5], "2": ["Infinity", "-Infinity"], "text": "nan"}


@given(st.lists(st.binary(max_size=9)), st.integers(0, 40))
def test_a_document_is_read_no_further_than_it_may_be_long(chunks: list[bytes], longest: int) -> None:
    """What is longer is refused with the chunk that makes it so; nothing after that is asked for."""
    whole, asked = b"".join(chunks), list[int]()

    def handed_out() -> Iterator[bytes]:
        for chunk in chunks:
            assert sum(asked) <= longest
            asked.append(len(chunk))
            yield chunk

    if len(whole) <= longest:
        assert read_bytes(handed_out(), longest) == whole
    else:
        with pytest.raises(ValueError, match=f"longer than {longest} bytes"):
            read_bytes(handed_out(), longest)
