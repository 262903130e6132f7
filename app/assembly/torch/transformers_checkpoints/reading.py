"""Reading the pickled files of transformers' checkpoints: in another process, which describes what they hold.

Nothing changes in this process, and no code of a file runs in either. A file is opened once: the other process reads
the very file from which the tensors are then read.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from attrs import define, field

import hexloop
from hexloop.domain.errors import CheckpointError
from hexloop.domain.holes import are_too_many, bytes_on_disk
from hexloop.domain.limits import limits

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from hexloop.app.assembly.torch.transformers_checkpoints.pickled.program import main; main()"
)


@contextmanager
def pickled_files(folder: str, names: Sequence[str]) -> Iterator[PickledFiles]:
    """Open files of a folder and have them read; they are open until the block ends.

    Raises CheckpointError if one is not a regular file in the folder, or if they cannot be read in another process.
    """
    with ExitStack() as stack:
        files = {name: stack.enter_context(open_regular(os.path.join(folder, name))) for name in names}
        yield PickledFiles(folder, files, _described(folder, files) if files else {})


def open_regular(path: str) -> BinaryIO:
    """Open a regular file, following no link out of its folder. Raises CheckpointError for anything else."""
    wrong = (
        f"{path} is not read: it is not a regular file, or is a link that leads out of its folder; put the file "
        "itself there."
    )
    try:
        if os.path.dirname(os.path.realpath(path)) != os.path.realpath(os.path.dirname(path)):
            raise CheckpointError(wrong)
        opened = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise CheckpointError(wrong)
    if are_too_many(size := os.fstat(opened).st_size, on_disk := bytes_on_disk(opened)):
        os.close(opened)
        raise CheckpointError(
            f"{path} is not read: of its {size} bytes, {on_disk} are on the disk, and the others are holes; if you "
            "trust it, copy it without holes (cp --sparse=never), or raise the limit hole_bytes."
        )
    return os.fdopen(opened, "rb", buffering=0)


@define(eq=False)
class PickledFiles:
    """Pickled files of a folder, each described by another process."""

    _folder: str
    _files: dict[str, BinaryIO]
    _described: dict[str, Any]
    _storages: dict[tuple[str, int, int], torch.Tensor] = field(factory=dict, init=False)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def read(self, name: str) -> Any:
        """Return the contents of a file: tensors, numpy arrays of numbers, numbers, strings and containers.

        Raises CheckpointError if it is damaged, or holds anything but data.
        """
        kind, value = self._described[name]
        if kind != "value":
            raise CheckpointError(_refusal(os.path.join(self._folder, name), value))
        return self._decoded(name, value)

    def _decoded(self, name: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        kind, held = value
        if kind == "dict":
            return {self._decoded(name, key): self._decoded(name, inner) for key, inner in held}
        if kind in ("list", "tuple"):
            items = [self._decoded(name, inner) for inner in held]
            return items if kind == "list" else tuple(items)
        if kind == "tensor":
            return self._tensor(name, held)
        if kind in ("array", "scalar"):
            array = _array(held)
            return array if kind == "array" else array.item()
        if kind == "dtype":
            return getattr(torch, held)
        return float(held) if kind == "number" else base64.b64decode(held)

    def _tensor(self, name: str, held: dict[str, Any]) -> torch.Tensor:
        """Return a tensor. Tensors of one storage share memory, as they did when they were saved."""
        storage = self._storage(name, held["start"], held["size"])
        typed = (
            storage.view(getattr(torch, held["dtype"]))
            if held["size"]
            else storage.new_empty(0, dtype=getattr(torch, held["dtype"]))
        )
        return typed.as_strided(held["shape"], held["strides"], held["offset"])

    def _storage(self, name: str, start: int, size: int) -> torch.Tensor:
        key = (name, start, size)
        if key not in self._storages:
            bytes_read = torch.empty(size, dtype=torch.uint8)
            left = memoryview(bytes_read.numpy().data)
            while left:
                count = os.preadv(self._files[name].fileno(), [left], start + size - len(left))
                if count == 0:
                    raise CheckpointError(
                        _refusal(os.path.join(self._folder, name), "it was changed while it was read")
                    )
                left = left[count:]
            self._storages[key] = bytes_read
        return self._storages[key]


def _array(held: dict[str, Any]) -> np.ndarray[Any, Any]:
    order = "=" if held["order"] in "|=" else held["order"]
    flat = np.frombuffer(base64.b64decode(held["data"]), np.dtype(order + held["code"]))
    return flat.reshape(held["shape"], order="F" if held["by_columns"] else "C").copy()


def _refusal(path: str, reason: str) -> str:
    return (
        f"{path} was not read: {reason}. hexloop reads only tensors, numbers, strings and containers of these from "
        "such a file, and loads nothing that may run code; remove anything else with the library that wrote it."
    )


def _described(folder: str, files: dict[str, BinaryIO]) -> dict[str, Any]:
    """Return for each file what the other process found. Raises CheckpointError if it does not finish."""
    if not sys.executable or getattr(sys, "frozen", False):
        raise CheckpointError(
            f"{folder} cannot be imported: pickled files are read by another Python process, and sys.executable is "
            f"{sys.executable!r}, which is not a Python interpreter. Import it with the command line of hexloop."
        )
    passes = os.name == "posix"
    bounds = limits()
    request = {
        "files": [[name, file.fileno() if passes else os.path.join(folder, name)] for name, file in files.items()],
        "limits": {key: getattr(bounds, key) for key in ("document_bytes", "document_values", "document_depth")},
        "memory": bounds.import_memory_bytes,
        "seconds": bounds.import_seconds,
    }
    try:
        finished = subprocess.run(
            [sys.executable, "-I", "-c", _PROGRAM, str(Path(hexloop.__path__[0]).parent)],
            input=json.dumps(request) + "\n",
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=bounds.import_seconds,
            pass_fds=[file.fileno() for file in files.values()] if passes else (),
            env={key: value for key, value in os.environ.items() if key in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")},
        )
    except subprocess.TimeoutExpired as error:
        names = ", ".join(files)
        raise CheckpointError(
            f"{folder} was not read: its pickled files ({names}) took more than {bounds.import_seconds} seconds; the "
            "limit import_seconds raises this."
        ) from error
    found = {name: (kind, value) for name, kind, value in map(json.loads, finished.stdout.splitlines())}
    missing = [name for name in files if name not in found]
    if missing:
        said = finished.stderr.strip().rpartition("\n")[2]
        raise CheckpointError(
            _refusal(
                os.path.join(folder, missing[0]),
                f"the process that reads it ended with exit code {finished.returncode} ({said[:200]}); it may use "
                f"{bounds.import_memory_bytes} bytes of memory, which the limit import_memory_bytes raises",
            )
        )
    return found
