"""Real processes that communicate through torch.distributed on this machine."""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

ROOT = Path(__file__).resolve().parents[2]

QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_DISABLE_XET": "1",
    "DS_ACCELERATOR": "cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
}
"""The variables of processes that train together on a machine without GPUs."""

PATIENCE = 180
"""Seconds after which a stuck process is killed."""


def free_port() -> int:
    """Return a local port without a listener."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
    return port


def in_processes(size: int, function: Callable[[int], Result]) -> list[Result | BaseException]:
    """Return what the function returns or raises in each of `size` forked processes of one gloo group, by rank.

    A process that dies yields a ChildProcessError.
    """
    port, readers = free_port(), []
    children = []
    for rank in range(size):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run(rank, size, port, function, writer)
        os.close(writer)
        children.append(child)
        readers.append(reader)
    return [_answer(child, reader) for child, reader in zip(children, readers, strict=True)]


def _run(rank: int, size: int, port: int, function: Callable[[int], Any], writer: int) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(PATIENCE)
    try:
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=size)
        try:
            said: Any = function(rank)
        except Exception as error:
            error.add_note(traceback.format_exc())
            said = error
        with os.fdopen(writer, "wb") as stream:
            ForkingPickler(stream).dump(said)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # threads of torch may abort a normal exit of the interpreter


def _answer(child: int, reader: int) -> Any:
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    with suppress(ChildProcessError):
        os.waitpid(child, 0)
    return ForkingPickler.loads(data) if data else ChildProcessError(f"process {child} died without a word")
