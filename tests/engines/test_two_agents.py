"""A run under two agents of torchrun, as on two machines, one of whose ranks is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hexloop.adapters.journal import read
from tests.engines.killed_ranks import SCRIPT
from tests.engines.processes import free_port

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are found where Linux lists them"),
]

STEPS, WIDTH = "24", "100"


@contextmanager
def agents(folder: Path, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start agents with four ranks in all, which find each other at a port, and kill what is left at the end."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count)]
    command += ["--nproc-per-node", str(4 // count), "--max-restarts", "3", "--rdzv-backend", "c10d"]
    command += [
        "--rdzv-endpoint",
        f"127.0.0.1:{free_port()}",
        "--rdzv-id",
        "two",
        str(SCRIPT),
        str(folder),
        STEPS,
        WIDTH,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    started = []
    try:
        for number in range(count):
            with (folder / f"output-{number}.txt").open("wb") as output:
                started.append(
                    subprocess.Popen(
                        command, stdout=output, stderr=output, env=environment, start_new_session=True, cwd=folder
                    )
                )
        yield started
    finally:
        for each in started:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def end(folder: Path, started: list[subprocess.Popen[bytes]]) -> object:
    """Wait for the agents, and return the result of the run."""
    for number, each in enumerate(started):
        assert each.wait(180) == 0, (folder / f"output-{number}.txt").read_text()[-4000:]
    return json.loads((folder / "end.json").read_text())


def worker_of(agent: int) -> tuple[int, int]:
    """Return the process of a rank of an agent, and the rank."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, KeyError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == agent:
                lines = (stat.parent / "environ").read_bytes().split(b"\0")
                variables = dict(line.split(b"=", 1) for line in lines if b"=" in line)
                return int(stat.parent.name), int(variables[b"RANK"])
    raise AssertionError(f"the agent {agent} has no worker")


def published(folder: Path) -> int:
    journal = folder / "run" / ".hexloop/journal.jsonl"
    notes = read(journal) if journal.exists() else []
    return sum(note["kind"] == "save" and note["phase"] == "published" for note in notes)


def wait_for_saves(folder: Path, count: int) -> None:
    until = time.monotonic() + 120
    while published(folder) < count:
        assert time.monotonic() < until, (folder / "output-0.txt").read_text()[-4000:]
        time.sleep(0.01)


@pytest.mark.parametrize("agent", [0, 1], ids=["of the agent with the store", "of the other agent"])
def test_a_run_of_two_agents_survives_a_killed_rank(agent: int, tmp_path: Path) -> None:
    """Both agents restart their ranks, at different times and with different counts; the result is bitwise the same."""
    with agents(tmp_path / "whole", 1) as started:
        whole = end(tmp_path / "whole", started)

    with agents(tmp_path / "killed", 2) as started:
        wait_for_saves(tmp_path / "killed", 2)
        process, rank = worker_of(started[agent].pid)
        os.kill(process, signal.SIGKILL)
        wait_for_saves(tmp_path / "killed", 3)
        assert end(tmp_path / "killed", started) == whole, f"rank {rank} was killed"

    waits = [float(line) for line in (tmp_path / "killed/waits.txt").read_text().splitlines()]
    assert len(waits) == 8, "the four ranks started twice"
