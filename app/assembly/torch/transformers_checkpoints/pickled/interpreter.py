"""An interpreter of the few pickle opcodes that files of tensors, numbers, strings and containers need.

The opcodes are those of https://docs.python.org/3/library/pickletools.html, of protocol 2 and later, and that module
reads their arguments. Why this is not `pickle.Unpickler`: docs/decisions/0030-an-interpreter-of-pickles.md.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from hexloop.app.assembly.torch.transformers_checkpoints.pickled.descriptions import (
    CALLED,
    MOST_DIGITS_BYTES,
    Name,
    StoredBytes,
    build,
    known_name,
    put,
    refuse,
)

_MARK = object()

_LARGEST = 1 << 31
"""Bytes of an argument."""


class Interpreter:
    """Interprets one pickle. persistent: returns the storage that a persistent id describes."""

    def __init__(self, data: BinaryIO, most: int, persistent: Callable[[Any], StoredBytes]) -> None:
        self._data, self._most, self._persistent = data, most, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value. Raises RefusedPickleError if the pickle is damaged, too long, or more than data."""
        try:
            for _ in range(self._most):
                code = self.read(1)
                if code == b".":
                    return self._pop(1)[0]
                if code not in _OPCODES:
                    refuse(f"its pickle has the opcode {code[0]:#x}, which is not read")
                argument, action = _OPCODES[code]
                action(self, argument(self) if argument else None)
        except (IndexError, ValueError, TypeError, KeyError) as error:
            refuse(f"its pickle is damaged ({type(error).__name__})")
        refuse(f"its pickle has more than {self._most} opcodes; document_values raises this limit")

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        found = self._data.read(size) if 0 <= size <= _LARGEST else refuse("its pickle is damaged")
        return found if len(found) == size else refuse("its pickle ends early")

    def _names(self) -> list[str]:
        lines = [self._data.readline(300) for _ in range(2)]
        if not all(line.endswith(b"\n") for line in lines):
            refuse("its pickle is damaged")
        return [line[:-1].decode("utf-8") for line in lines]

    def _long(self) -> int:
        (size,) = struct.unpack("<i", self.read(4))
        if not 0 <= size <= MOST_DIGITS_BYTES:
            refuse(f"it holds an integer of {size} bytes")
        return int.from_bytes(self.read(size), "little", signed=True)

    def _push(self, value: Any) -> None:
        if isinstance(value, str):
            value.encode()  # pickle and pickletools let through what is not Unicode
        self._stack.append(value)

    def _pop(self, count: int | None = None) -> list[Any]:
        """Remove and return the last items of the stack: `count` of them, or all after the last mark."""
        start = len(self._stack) - (count or 0)
        while count is None and self._stack[start - 1] is not _MARK:  # IndexError without a mark
            start -= 1
        items = self._stack[start:]
        if len(items) < (count or 0) or any(each is _MARK for each in items):
            refuse("its pickle is damaged")
        del self._stack[start if count else start - 1 :]
        return items

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list):
            refuse("its pickle appends to something other than a list")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            refuse("its pickle sets items of something other than a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            put(target, key, value)

    def _call(self, called: Any, arguments: Any) -> Any:
        if not isinstance(arguments, tuple) or not isinstance(called, Name):
            refuse("its pickle calls something other than the types of tensors and arrays")
        function = CALLED.get((called.module, called.name)) or refuse(f"it calls {called.module}.{called.name}")
        return function(*arguments)

    def _build(self, state: Any) -> None:
        build(self._stack[-1], state)

    def _store(self, place: int | None) -> None:
        self._memo[len(self._memo) if place is None else place] = self._stack[-1]


_ACTIONS: dict[str, Callable[[Interpreter, Any], object]] = {
    **dict.fromkeys(("PROTO", "FRAME"), lambda each, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"), Interpreter._push),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"), Interpreter._push),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), Interpreter._push),
    "BYTEARRAY8": lambda each, data: each._push(bytes(data)),
    "NONE": lambda each, _: each._push(None),
    "NEWTRUE": lambda each, _: each._push(True),
    "NEWFALSE": lambda each, _: each._push(False),
    "EMPTY_LIST": lambda each, _: each._push([]),
    "EMPTY_DICT": lambda each, _: each._push({}),
    "EMPTY_TUPLE": lambda each, _: each._push(()),
    "MARK": lambda each, _: each._push(_MARK),
    "POP": lambda each, _: each._pop(1),
    "TUPLE": lambda each, _: each._push(tuple(each._pop())),
    "TUPLE1": lambda each, _: each._push(tuple(each._pop(1))),
    "TUPLE2": lambda each, _: each._push(tuple(each._pop(2))),
    "TUPLE3": lambda each, _: each._push(tuple(each._pop(3))),
    "APPEND": lambda each, _: each._append(each._pop(1)),
    "APPENDS": lambda each, _: each._append(each._pop()),
    "SETITEM": lambda each, _: each._set(each._pop(2)),
    "SETITEMS": lambda each, _: each._set(each._pop()),
    "GLOBAL": lambda each, names: each._push(known_name(*names)),
    "STACK_GLOBAL": lambda each, _: each._push(known_name(*each._pop(2))),
    "REDUCE": lambda each, _: each._push(each._call(*each._pop(2))),
    "BUILD": lambda each, _: each._build(*each._pop(1)),
    "BINPERSID": lambda each, _: each._push(each._persistent(*each._pop(1))),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), Interpreter._store),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda each, place: each._push(each._memo[place])),
}
"""What is done with the argument of each opcode that is read."""

_READERS: dict[str, Callable[[Any], Any]] = {"GLOBAL": Interpreter._names, "LONG4": Interpreter._long}
"""What reads the arguments that `pickletools` reads without a bound."""

_OPCODES = {
    each.code.encode("latin1"): (
        _READERS.get(each.name, each.arg.reader if each.arg else None),
        _ACTIONS[each.name],
    )
    for each in pickletools.opcodes
    if each.name in _ACTIONS
}
