"""The files that the reference library pickles: the only place where hexloop reads or writes any.

Reading takes tensors, numbers, texts and containers. A file that asks for anything else is refused; nothing that it
names is imported or called.
"""

from __future__ import annotations

import os
import stat
import warnings
from math import prod
from typing import Any

import numpy as np
import torch
from attrs import define, field

from hexloop.domain.errors import CheckpointError

_NUMBERS = {kind + size for kind, sizes in {"u": "1248", "i": "1248", "f": "248"}.items() for size in sizes} | {"b1"}


@define
class _Type:
    """What a pickled numpy type says."""

    code: str
    order: str = "<"

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype[Any]:
        """The type. Raises ValueError unless it is one of plain numbers."""
        if self.code not in _NUMBERS or self.order not in "<>|=":
            raise ValueError(f"an array of {self.code!r}")
        return np.dtype(("=" if self.order in "|=" else self.order) + self.code)


@define
class _Array:
    """What a pickled numpy array says."""

    state: tuple[Any, ...] = field(default=(), init=False)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array. Raises ValueError where it is not one of plain numbers."""
        _, shape, kind, by_columns, data = self.state
        dtype = kind.numpy()
        if not isinstance(data, bytes) or len(data) != prod(shape) * dtype.itemsize:
            raise ValueError(f"an array of shape {shape}")
        return np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C").copy()


def _array(*_: object) -> _Array:
    return _Array()


def _scalar(kind: _Type, data: bytes) -> Any:
    return np.frombuffer(data, kind.numpy(), count=1)[0].item()


_STAND_INS: list[Any] = [
    (_Type, "numpy.dtype"),
    (_Array, "numpy.ndarray"),
    *((_array, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    *((_scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
]
"""What stands for numpy's names in a file: it takes down what is said, and calls nothing of numpy's."""


def read_pickled(folder: str, name: str) -> Any:
    """What the file `name` in `folder` holds; numpy arrays among it are plain ones of numbers.

    Raises CheckpointError where it is no regular file, is damaged, or holds anything but data.
    """
    path = os.path.join(folder, name)
    refuse_irregular(path)
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # what this program allows elsewhere is not allowed here
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_STAND_INS):
            warnings.simplefilter("ignore")  # torch's remarks on the file's age
            found = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - tensors only, by name
            return _plain(found)
    except Exception as error:  # whatever a file may make of torch's reader
        said = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} was not read: it is damaged, or holds something else than tensors, numbers and texts, and hexloop "
            f"loads nothing that may run code ({said}). Take that out of it with the library that wrote it."
        ) from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)


def write_pickled(folder: str, name: str, value: Any) -> None:
    """Write a file as the reference library reads it; `value` holds tensors, arrays, numbers, texts and containers."""
    torch.save(value, os.path.join(folder, name))  # noqa: TID251 - the format of another library, asked for by name


def refuse_irregular(path: str) -> None:
    """Raise CheckpointError where there is anything but a file at `path`, or a link that leads out of its folder."""
    try:
        inside = os.path.dirname(os.path.realpath(path)) == os.path.realpath(os.path.dirname(path))
        regular = inside and stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not regular:
        raise CheckpointError(
            f"{path} is not read: it is no regular file, or a link that leads out of its folder; put the file itself "
            "there."
        )


def _plain(value: Any) -> Any:
    """`value` with arrays in place of what was said of them."""
    if isinstance(value, _Array):
        return value.numpy()
    if isinstance(value, _Type):
        raise ValueError("a numpy type by itself")
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(inner) for inner in value)
    return value
