"""Processes that cannot meet say where they tried to, and what to look at, within the time-out."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engines.several.training import CONTEXT, PATIENCE, Sentences, Training, ended, fresh, padded

TIMEOUT = 4


def told(address: str, port: int, rank: int, world_size: int = 2) -> str:
    """The error of a process that looks for others."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_look, args=(address, port, rank, world_size, writer))
    process.start()
    writer.close()
    try:
        assert reader.poll(PATIENCE), "it looks for ever"
        said: str = reader.recv()
    finally:
        process.join(PATIENCE)
        process.kill()
    return said


def _look(address: str, port: int, rank: int, world_size: int, writer: Any) -> None:
    from hexloop import Trainer, TrainingArguments
    from tests.engines.several.training import Reader

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR=address, MASTER_PORT=str(port)
    )
    began = time.monotonic()
    try:
        arguments = TrainingArguments("nowhere", use_cpu=True, report_to=[], ddp_timeout=TIMEOUT, save_strategy="no")
        Trainer(Reader(), arguments, padded, Sentences(8)).train()
        writer.send("it met somebody")
    except BaseException as error:
        slow = "" if time.monotonic() - began < 5 * TIMEOUT else "late: "
        writer.send(f"{slow}{type(error).__name__}: {error}")
    finally:
        writer.close()
        os._exit(0)


@pytest.fixture
def port() -> int:
    """Return a free port."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def test_a_missing_first_process_is_reported(port: int) -> None:
    """By its address and port."""
    assert told("127.0.0.1", port, rank=1).startswith(
        f"CollectiveError: Rendezvous failed: rank 1 of 2 did not meet the others at 127.0.0.1:{port} within "
        f"{TIMEOUT} s ("
    )


@pytest.mark.matrix
@pytest.mark.parametrize(("address", "rank"), [("127.0.0.1", 0), ("nowhere.invalid", 1)])
def test_missing_peers_are_reported(address: str, rank: int, port: int) -> None:
    """Also by the first process; and a name that means nothing."""
    said = told(address, port, rank)
    assert said.startswith(
        f"CollectiveError: Rendezvous failed: rank {rank} of 2 did not meet the others at {address}:{port} within"
    )
    assert said.endswith(
        "Check that all processes were started, that this address can be reached from here, and that no other program "
        "uses the port."
    )


@pytest.mark.matrix
def test_a_port_in_use_is_reported() -> None:
    """The first process cannot listen there."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        said = told("127.0.0.1", other.getsockname()[1], rank=0)
    assert said.startswith("CollectiveError: Rendezvous failed: rank 0 of 2 did not meet the others at 127.0.0.1:")
    assert "EADDRINUSE" in said


@pytest.mark.matrix
def test_more_processes_than_samples_are_refused(tmp_path: Path) -> None:
    """On every rank, before the first step."""
    for said in ended(Training(4, rows=3, batch=1, size=4), fresh(tmp_path / "run")):
        assert said == (
            "ConfigurationError: The run has 4 processes, too many ranks for the data, which have 3 samples; "
            "start at most 3, or add samples."
        )
