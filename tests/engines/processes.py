"""Real processes that communicate through torch.distributed on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TypeVar

from tests.warm_python import warm_python

Result = TypeVar("Result")

ROOT = Path(__file__).resolve().parents[2]

QUIET = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_DISABLE_XET": "1",
    "DS_ACCELERATOR": "cpu",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
}
"""The variables of processes that train together on a machine without GPUs."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.engines.preloaded"])

PATIENCE = 180
"""Seconds after which a stuck process is killed."""


def free_port() -> int:
    """Return a local port without a listener."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
    return port


def run_ranks(size: int, *words: str, folder: Path, seconds: float = 240, variables: dict[str, str]) -> None:
    """Run `python WORDS` in so many processes of one group, and assert that each ends with success.

    A process alone gets no variables of a group. folder: gets a file of each process's output. seconds: the time limit.
    variables: those of all processes beside this one's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    command, processes = [warm_python(), *words], []
    logs = [folder / f"rank-{rank}.log" for rank in range(size)]
    for rank, log in enumerate(logs):
        own = {**group, "RANK": rank, "LOCAL_RANK": rank} if size > 1 else {}
        environment = {**os.environ, **variables, **{name: str(value) for name, value in own.items()}}
        with log.open("w") as output:
            processes.append(
                subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            )
    try:
        codes = [process.wait(seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = "\n".join(f"rank {rank}: {log.read_text()[-6000:]}" for rank, log in enumerate(logs) if codes[rank])
    assert codes == [0] * size, said


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
