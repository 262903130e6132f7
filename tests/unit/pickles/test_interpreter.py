"""The interpreter of pickles reads data as pickle does, and refuses everything else without failing."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import math
import pickle  # noqa: TID251 - what is compared with
import struct
import sys
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.assembly.torch.transformers_checkpoints.pickled.descriptions import RefusedPickleError
from hexloop.app.assembly.torch.transformers_checkpoints.pickled.interpreter import Interpreter
from hexloop.app.assembly.torch.transformers_checkpoints.pickled.program import encoded, read_file

LIMITS = {"document_bytes": 1 << 20, "document_values": 10_000, "document_depth": 100}

KEYS = st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.text() | st.tuples(st.integers(), st.text())
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner)
        | st.dictionaries(st.text(), inner).map(collections.OrderedDict)
    ),
    max_leaves=20,
)  # fmt: skip
PROTOCOLS = st.integers(2, 5)


def no_storage(key: Any) -> NoReturn:
    raise RefusedPickleError("no storage")


def interpreted(data: bytes) -> Any:
    return Interpreter(io.BytesIO(data), LIMITS["document_values"], no_storage).run()


def is_same(one: Any, other: Any) -> bool:
    """Compare with types, in which an OrderedDict is a dictionary and NaN equals NaN."""
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return type(other) is dict and all(is_same(*pair) for items in pairs for pair in zip(*items, strict=True))
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return isinstance(other, float) and math.isnan(other)
    return type(one) is type(other) and one == other


@given(VALUES, PROTOCOLS)
def test_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    """Numbers, strings, bytes and containers of every protocol that torch writes."""
    assert is_same(value, interpreted(pickle.dumps(value, protocol)))


@given(VALUES, PROTOCOLS, st.data())
def test_a_damaged_pickle_is_read_or_refused(value: Any, protocol: int, data: st.DataObject) -> None:
    """Whatever bytes are changed, removed or added, no other error is raised, and what is read can be written."""
    spoiled = bytearray(pickle.dumps(value, protocol))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(spoiled)))
        spoiled[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(RefusedPickleError):
        json.dumps(encoded(interpreted(bytes(spoiled)), len(spoiled), LIMITS))


@given(st.binary(max_size=300), st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02"]))
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    """An archive, an older file, or neither."""
    with pytest.raises(RefusedPickleError):
        read_file(io.BytesIO(start + data), LIMITS)


class Command:
    """An object whose pickle runs a command."""

    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, ("true",)


def shared(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value, value]
    return value


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def tower(levels: int) -> bytes:
    """A dictionary whose key is a tuple of twice a tuple of twice a tuple, so that its hash takes 2**levels steps."""
    return b"\x80\x02})q\x000" + b"h\x00h\x00\x86q\x000" * levels + b"h\x00Ns."


def equal_hashes(count: int) -> bytes:
    """A dictionary whose keys have one hash, so that setting them takes count**2 steps."""
    keys = ((number * sys.hash_info.modulus).to_bytes(16, "little") for number in range(count))
    return b"\x80\x02}(" + b"".join(b"\x8a\x10" + key + b"N" for key in keys) + b"u."


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tower(60), "a dictionary has a key that is not"),
        (equal_hashes(200), "a tuple or a number of more than 64 bits as a key"),
        (b"\x80\x02(t(.", "its pickle is damaged"),
        (b"\x80\x02NNt.", "its pickle is damaged"),
        (pickle.dumps("\ud800", 2), "its pickle is damaged"),
        (pickle.dumps(Command(), 2), "it names posix.system|it names nt.system"),
        (b"\x80\x02cbuiltins\neval\n(X\x01\x00\x00\x001tR.", "it names builtins.eval"),
        (b"\x80\x02cbuiltins\nbytearray\nJ\x00\x00\x00\x60\x85R.", "bytes are made of something else"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x08\x00\x00\x00punycode\x86R.", "encoded as 'punycode'"),
        (b"\x80\x02c__builtin__\nset\n)R.", "it names __builtin__.set"),
        (b"cos\nsystem\n.", "it names os.system"),
        (b"I1\n.", "the opcode 0x49"),
        (b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b"1.", "an integer of 1073741824 bytes"),
        (b"\x80\x02\x8b" + struct.pack("<i", -5) + b"1.", "an integer of -5 bytes"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"a.", "its pickle is damaged"),
        (pickle.dumps(shared(40), 2), "it holds more than 10000 values"),
        (pickle.dumps(recursive(), 2), "nested in more than 100 levels"),
        (b"\x80\x02]" + b"]" * 20_000 + b".", "more than 10000 opcodes"),
        (b"\x80\x02](" + b"a" * 50, "its pickle is damaged"),
        (b"\x80\x02}]K\x01s.", "a dictionary has a key that is not"),
        (b"\x80\x02cnumpy\nndarray\n.", "a type, a storage or a function by itself"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "it calls numpy.ndarray"),
        (b"\x80\x02", "its pickle ends early"),
    ],
)
def test_anything_else_is_refused(data: bytes, reason: str) -> None:
    """Code, amplification, endless structures and damaged pickles, each with its reason."""
    with pytest.raises(RefusedPickleError, match=reason):
        encoded(interpreted(data), len(data), LIMITS)
