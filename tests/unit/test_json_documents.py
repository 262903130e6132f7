"""Strict parsing of JSON from files."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain import json_documents
from hexloop.domain.json_documents import MOST_ALIKE, finite_json, keyed, read_bytes, read_json
from hexloop.domain.limits import reading_limits

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
        (b"[" * 101 + b"]" * 101, "nested in more than 100 levels; document_depth raises"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested in more than 100 levels"),
        (b"[" * 100_000, "nested in more than 100 levels"),
        (b"[1" + b"0" * 1000 + b"]", "number of more than 1000 digits"),
        (b"[" + b"[]," * 3_000_000 + b"1]", "more than 2125000 values"),
        (b"[" + b'"",' * 5_000_000 + b"1]", "more than 2875000 values"),
        (b'{"name": "\\ud800"}', r"the text '\\ud800', which is not Unicode"),
        (b'{"a": [{"\\uDC00x": 1}]}', r"the text '\\udc00x', which is not Unicode"),
        (b'{"' + b"k" * 200 + b'": 1, "' + b"k" * 200 + b'": 2}', f"the key '{'k' * 80}' twice"),
        (b'{"a"', "Expecting"),
        (b'["a\0"]' + b" " * 2000, "null byte"),
        (b'["' + b'\\"' * 1_000_000, "Unterminated"),
        (b'["' + b"\\" * 1_000_001, "Unterminated"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_invalid_json_is_refused(text: bytes, words: str) -> None:
    """Repeated keys, NaN and infinity, excessive nesting and other invalid JSON raise ValueError."""
    with pytest.raises(ValueError, match=words):
        read_json(text)


@given(st.integers(1, 9), VALUES)
def test_pieces_of_a_document_are_joined(size: int, value: Any) -> None:
    """Strings and escaped characters may lie across the ends of pieces."""
    text = json.dumps([value, 'a\\"[[', {'"\\': "\\\\\\"}]).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_documents, "_PIECE", size)
        outside = json_documents._outside_of_strings(text)
    assert outside == re.sub(rb'"(?:[^"\\]|\\.)*"', b"", text)


def test_many_strings_take_little_memory() -> None:
    """The check of a document with many strings takes less than a few times its size."""
    tracemalloc.start()
    with pytest.raises(ValueError, match="values"):
        read_json(b'["' + b'",[\\"' * 1_500_000)
    assert tracemalloc.get_traced_memory()[1] < 60_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    "value", [["[[[" * 200, "{" * 200, "]\\"], "9" * 2000, "\U0001f600", ['a"b', "\\"], 10**400, ["", {"": [[]]}]]
)
def test_text_and_large_integers_do_not_count_as_structure(value: Any) -> None:
    """Brackets, commas and digits in a text, and escaped characters, are within the limits."""
    assert read_json(json.dumps(value).encode()) == value


def test_limits_can_be_raised() -> None:
    """A document beyond the default limits is read within raised ones, and refused within lowered ones."""
    deep = b"[" * 150 + b"]" * 150
    with reading_limits(document_depth=200):
        read_json(deep)
    with pytest.raises(ValueError, match="100 levels"):
        read_json(deep)
    with reading_limits(document_bytes=4), pytest.raises(ValueError, match="longer than 4 bytes; document_bytes"):
        read_json(b"[1, 2]")


def test_a_raised_depth_is_still_bounded() -> None:
    """By what Python's own parser can take, with the same kind of error."""
    with reading_limits(document_depth=1_000_000), pytest.raises(ValueError, match="nested too deeply"):
        read_json(b"[" * 200_000 + b"]" * 200_000)


def test_the_duplicate_of_many_keys_is_found() -> None:
    """An object with a duplicate among many keys is read in time proportional to its size."""
    text = json.dumps({str(number): number for number in range(300_000)})
    with pytest.raises(ValueError, match="'299999' twice"):
        read_json(text[:-1].encode() + b', "299999": 1}')


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


PRIME = 2**61 - 1
"""The hash of a whole number is its remainder by this."""


class Comparing(int):
    """A number that counts how often it is compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        Comparing.compared += 1
        return int(self) == other


@pytest.mark.parametrize("make", [lambda n: Comparing(n * PRIME), lambda n: (Comparing(n * PRIME), 1)])
def test_keys_with_equal_hashes_are_refused(make: Any) -> None:
    """Before they are compared; a few may occur, and any number of others."""
    Comparing.compared = 0
    pairs = [(make(number), number) for number in range(1, MOST_ALIKE + 2)]
    with pytest.raises(ValueError, match="keys with the same hash"):
        keyed(pairs)
    with pytest.raises(ValueError, match="keys with the same hash"):
        keyed([(str(number), 0) for number in range(10_000)] + pairs * 100)
    assert Comparing.compared == 0
    few = pairs[:MOST_ALIKE]
    assert keyed([*few, (-1, 5)]) == {**dict(few), -1: 5}


@given(
    st.lists(
        st.tuples(st.integers() | st.floats(allow_nan=False) | st.text() | st.booleans() | st.none(), st.integers())
    )
)
def test_other_keys_make_the_dictionary(pairs: list[tuple[Any, int]]) -> None:
    """The same as that of the pairs."""
    try:
        assert keyed(pairs) == dict(pairs)
    except ValueError:
        assert len(pairs) > MOST_ALIKE


def test_marked_objects_are_replaced_as_they_are_read() -> None:
    """Those with a single key, the inner ones first; others are as they were."""

    def marked(value: dict[str, Any]) -> Any:
        return value["$sum"] if set(value) != {"$sum"} else sum(value["$sum"])

    text = b'[{"$sum": [1, {"$sum": [2, 3]}]}, {"$sum": 1, "b": 2}, {}, [1]]'
    assert read_json(text, marked=marked) == [6, {"$sum": 1, "b": 2}, {}, [1]]
    with pytest.raises(ValueError, match="twice"):
        read_json(b'{"a": 1, "a": 2}', marked=marked)
