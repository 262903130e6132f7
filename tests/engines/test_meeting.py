"""A failed rendezvous is reported within the timeout, with the address and what to check."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engines.several.training import CONTEXT, PATIENCE, Sentences, Training, ended, fresh, padded

TIMEOUT = 4


def refusal(address: str, port: int, rank: int, world_size: int = 2) -> str:
    """Return the error of a process that waits for its peers."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_look, args=(address, port, rank, world_size, writer))
    process.start()
    writer.close()
    try:
        assert reader.poll(PATIENCE), "it looks for ever"
        message: str = reader.recv()
    finally:
        process.join(PATIENCE)
        process.kill()
    return message


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
        writer.send("it connected to another process")
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


def test_a_missing_rank_0_is_reported(port: int) -> None:
    """The error names its address and port."""
    assert refusal("127.0.0.1", port, rank=1).startswith(
        f"CollectiveError: Rendezvous failed: rank 1 of 2 did not meet the others at 127.0.0.1:{port} within "
        f"{TIMEOUT} s ("
    )


@pytest.mark.matrix
@pytest.mark.parametrize(("address", "rank"), [("127.0.0.1", 0), ("nowhere.invalid", 1)])
def test_missing_peers_are_reported(address: str, rank: int, port: int) -> None:
    """The first process reports them, too; an unresolvable host name is reported as well."""
    message = refusal(address, port, rank)
    assert message.startswith(
        f"CollectiveError: Rendezvous failed: rank {rank} of 2 did not meet the others at {address}:{port} within"
    )
    assert message.endswith(
        "Check that all processes were started, that this address can be reached from here, and that no other program "
        "uses the port."
    )


@pytest.mark.matrix
def test_a_port_in_use_is_reported() -> None:
    """The first process cannot listen on it."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        message = refusal("127.0.0.1", other.getsockname()[1], rank=0)
    assert message.startswith("CollectiveError: Rendezvous failed: rank 0 of 2 did not meet the others at 127.0.0.1:")
    assert "EADDRINUSE" in message


@pytest.mark.matrix
def test_more_processes_than_samples_are_refused(tmp_path: Path) -> None:
    """Every rank refuses before the first step."""
    for message in ended(Training(4, rows=3, batch=1, size=4), fresh(tmp_path / "run")):
        assert message == (
            "ConfigurationError: The run has 4 processes, too many ranks for the data, which have 3 samples; "
            "start at most 3, or add samples."
        )
