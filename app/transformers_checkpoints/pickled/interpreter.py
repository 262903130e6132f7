"""An interpreter of the few pickle opcodes that files of tensors, numbers, strings and containers need.

The opcodes are those of https://docs.python.org/3/library/pickletools.html, of protocol 2 and later.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, BinaryIO

from hexloop.app.transformers_checkpoints.pickled.descriptions import (
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


class Interpreter:
    """Interprets one pickle. persistent: returns the storage that a persistent id describes."""

    def __init__(self, data: BinaryIO, most: int, persistent: Callable[[Any], StoredBytes]) -> None:
        self._data, self._most, self._persistent = data, most, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Return the value. Raises RefusedError if the pickle is damaged, too long, or more than data."""
        try:
            for _ in range(self._most):
                opcode = self._take(1)[0]
                if opcode == ord("."):
                    return self._pop()
                action = _ACTIONS.get(opcode)
                if action is None:
                    refuse(f"its pickle has the opcode {opcode:#x}, which is not read")
                action(self)
        except (IndexError, struct.error, UnicodeDecodeError, TypeError, KeyError) as error:
            refuse(f"its pickle is damaged ({type(error).__name__})")
        refuse(f"its pickle has more than {self._most} opcodes; document_values raises this limit")

    def _take(self, size: int) -> bytes:
        found = self._data.read(size) if 0 <= size <= _LARGEST else refuse("its pickle is damaged")
        return found if len(found) == size else refuse("its pickle ends early")

    def _number(self, kind: str) -> int:
        (number,) = struct.unpack(kind, self._take(struct.calcsize(kind)))
        return int(number)

    def _pop(self) -> Any:
        value = self._stack.pop()
        return value if value is not _MARK else refuse("its pickle is damaged")

    def _pop_mark(self) -> list[Any]:
        for position in range(len(self._stack) - 1, -1, -1):
            if self._stack[position] is _MARK:
                items = self._stack[position + 1 :]
                del self._stack[position:]
                return items
        refuse("its pickle is damaged")

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _text(self, kind: str) -> None:
        self._push(self._take(self._number(kind)).decode("utf-8"))

    def _raw(self, kind: str) -> None:
        self._push(self._take(self._number(kind)))

    def _old_text(self, kind: str) -> None:
        self._push(self._take(self._number(kind)).decode("latin1"))

    def _whole(self, kind: str) -> None:
        self._push(self._number(kind))

    def _long(self, kind: str) -> None:
        size = self._number(kind)
        if not 0 <= size <= MOST_DIGITS_BYTES:
            refuse(f"it holds an integer of {size} bytes")
        self._push(int.from_bytes(self._take(size), "little", signed=True))

    def _float(self) -> None:
        self._push(struct.unpack(">d", self._take(8))[0])

    def _tuple(self, length: int | None = None) -> None:
        if length is None:
            self._push(tuple(self._pop_mark()))
        else:
            items = [self._pop() for _ in range(length)][::-1]
            self._push(tuple(items))

    def _append(self, several: bool) -> None:
        items = self._pop_mark() if several else [self._pop()]
        target = self._stack[-1]
        if not isinstance(target, list):
            refuse("its pickle appends to something other than a list")
        target.extend(items)

    def _set(self, several: bool) -> None:
        items = self._pop_mark() if several else [self._pop(), self._pop()][::-1]
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            refuse("its pickle sets items of something other than a dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            put(target, key, value)

    def _global(self) -> None:
        module, name = (self._line() for _ in range(2))
        self._push(known_name(module, name))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        self._push(known_name(module, name))

    def _line(self) -> str:
        line = self._data.readline(300)
        return line[:-1].decode("utf-8") if line.endswith(b"\n") else refuse("its pickle is damaged")

    def _reduce(self) -> None:
        arguments, called = self._pop(), self._pop()
        if not isinstance(arguments, tuple) or not isinstance(called, Name):
            refuse("its pickle calls something other than the types of tensors and arrays")
        function = CALLED.get((called.module, called.name))
        if function is None:
            refuse(f"it calls {called.module}.{called.name}")
        self._push(function(*arguments))

    def _build(self) -> None:
        state = self._pop()
        build(self._stack[-1], state)

    def _persistent_id(self) -> None:
        self._push(self._persistent(self._pop()))

    def _store(self, kind: str | None) -> None:
        self._memo[len(self._memo) if kind is None else self._number(kind)] = self._stack[-1]

    def _get(self, kind: str) -> None:
        self._push(self._memo[self._number(kind)])


_LARGEST = 1 << 31


def _actions() -> dict[int, Callable[[Interpreter], object]]:
    of = Interpreter
    plain: dict[str, Callable[[Interpreter], object]] = {
        "(": lambda each: of._push(each, _MARK), "N": lambda each: of._push(each, None),
        "}": lambda each: of._push(each, {}), "]": lambda each: of._push(each, []),
        ")": lambda each: of._push(each, ()), "t": of._tuple, "G": of._float, "c": of._global, "R": of._reduce,
        "b": of._build, "Q": of._persistent_id, "0": of._pop,
        "a": lambda each: of._append(each, False), "e": lambda each: of._append(each, True),
        "s": lambda each: of._set(each, False), "u": lambda each: of._set(each, True),
        "X": lambda each: of._text(each, "<I"), "U": lambda each: of._old_text(each, "<B"),
        "T": lambda each: of._old_text(each, "<i"), "B": lambda each: of._raw(each, "<I"),
        "C": lambda each: of._raw(each, "<B"), "J": lambda each: of._whole(each, "<i"),
        "K": lambda each: of._whole(each, "<B"), "M": lambda each: of._whole(each, "<H"),
        "q": lambda each: of._store(each, "<B"), "r": lambda each: of._store(each, "<I"),
        "h": lambda each: of._get(each, "<B"), "j": lambda each: of._get(each, "<I"),
    }  # fmt: skip
    further: dict[int, Callable[[Interpreter], object]] = {
        0x80: lambda each: of._take(each, 1),  # protocol
        0x85: lambda each: of._tuple(each, 1), 0x86: lambda each: of._tuple(each, 2),
        0x87: lambda each: of._tuple(each, 3), 0x88: lambda each: of._push(each, True),
        0x89: lambda each: of._push(each, False), 0x8A: lambda each: of._long(each, "<B"),
        0x8B: lambda each: of._long(each, "<i"), 0x8C: lambda each: of._text(each, "<B"),
        0x8D: lambda each: of._text(each, "<Q"), 0x8E: lambda each: of._raw(each, "<Q"),
        0x93: of._stack_global, 0x94: lambda each: of._store(each, None),
        0x95: lambda each: of._take(each, 8),  # the length of a frame
        0x96: lambda each: of._raw(each, "<Q"),
    }  # fmt: skip
    return {**{ord(opcode): action for opcode, action in plain.items()}, **further}


_ACTIONS = _actions()
