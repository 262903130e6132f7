"""The files of transformers' checkpoints: how they are recognised, and reading and writing the pickled ones.

This is the only module that reads or writes pickled files. Reading accepts tensors, numbers, strings and containers
only: a file that requires anything else is refused, and nothing that it names is imported or called.
"""

from __future__ import annotations

import os
import shlex
import stat
import warnings
from math import prod
from typing import Any

import numpy as np
import torch
from attrs import define, field

from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.errors import CheckpointError

WEIGHTS, WEIGHTS_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OPTIMIZER, SCHEDULER, SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
RANDOM, RANDOM_OF_FIRST = "rng_state.pth", "rng_state_0.pth"
STATE, ARGUMENTS = "trainer_state.json", "training_args.bin"

SIGNS = (WEIGHTS, WEIGHTS_INDEX, OPTIMIZER, SCHEDULER, RANDOM, RANDOM_OF_FIRST, ARGUMENTS)
"""Files that only transformers' checkpoints contain; each has some of them."""


def refuse_transformers_checkpoint(folder: str) -> None:
    """Raise CheckpointError, with the command to import it, if `folder` contains a checkpoint of transformers."""
    held = [name for name in SIGNS if os.path.lexists(os.path.join(folder, name))]
    if not held or os.path.lexists(os.path.join(folder, MANIFEST)):
        return
    raise CheckpointError(
        f"You chose to resume from {folder}, but that is a checkpoint of another library: it has {', '.join(held)} "
        f"and no {MANIFEST}. Such files may run code when they are loaded, so hexloop reads them only on request; "
        f"run `hexloop checkpoints import {shlex.quote(folder)} --to OUTPUT_DIR`, and resume from the folder that it "
        "prints."
    )


_NUMBERS = {kind + size for kind, sizes in {"u": "1248", "i": "1248", "f": "248"}.items() for size in sizes} | {"b1"}


@define
class _Type:
    """The description of a pickled numpy dtype."""

    code: str
    order: str = "<"

    def __init__(self, code: str, *_: object) -> None:
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype[Any]:
        """Return the dtype. Raises ValueError unless it is a plain number type."""
        if self.code not in _NUMBERS or self.order not in "<>|=":
            raise ValueError(f"an array of {self.code!r}")
        return np.dtype(("=" if self.order in "|=" else self.order) + self.code)


@define
class _Array:
    """The description of a pickled numpy array."""

    state: tuple[Any, ...] = field(default=(), init=False)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the array. Raises ValueError unless it contains plain numbers."""
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
"""Replacements for numpy's names in a file: they record the arguments and call nothing of numpy."""


def read_pickled(folder: str, name: str) -> Any:
    """Return the contents of the file `name` in `folder`, in which numpy arrays contain plain numbers only.

    Raises CheckpointError if it is not a regular file, is damaged, or contains anything but data.
    """
    path = os.path.join(folder, name)
    refuse_irregular(path)
    allowed = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # classes that the program allows elsewhere are not allowed here
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(_STAND_INS):
            warnings.simplefilter("ignore")  # torch warns about old formats
            found = torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - tensors only, on explicit request
            return _plain(found)
    except Exception as error:  # a malicious file may make torch raise anything
        said = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} was not read: it is damaged, or contains something other than tensors, numbers and strings, and "
            f"hexloop loads nothing that may run code ({said}). Remove that from it with the library that wrote it."
        ) from error
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(allowed)


def write_pickled(folder: str, name: str, value: Any) -> None:
    """Write `value`, made of tensors, arrays, numbers, strings and containers, as transformers reads it."""
    torch.save(value, os.path.join(folder, name))  # noqa: TID251 - the format of transformers, on explicit request


def refuse_irregular(path: str) -> None:
    """Raise CheckpointError if `path` is not a regular file, or is a link that leads out of its folder."""
    try:
        inside = os.path.dirname(os.path.realpath(path)) == os.path.realpath(os.path.dirname(path))
        regular = inside and stat.S_ISREG(os.stat(path).st_mode)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not regular:
        raise CheckpointError(
            f"{path} is not read: it is not a regular file, or is a link that leads out of its folder; put the file "
            "itself there."
        )


def _plain(value: Any) -> Any:
    """Return `value` with arrays in place of their descriptions."""
    if isinstance(value, _Array):
        return value.numpy()
    if isinstance(value, _Type):
        raise ValueError("a numpy dtype by itself")
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(inner) for inner in value)
    return value
