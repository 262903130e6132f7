"""The processes of a search: their messages, their ends, and what happens when one dies or the search ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.command_line.search.workers import CHANNEL, Channel, Worker, WorkerPool

PROGRAM = f"""
import json, os, socket, sys, time
connection = socket.socket(fileno=int(os.environ["{CHANNEL}"].partition(":")[0]))
lines = connection.makefile("r")
for line in lines:
    trial = json.loads(line)
    print("trial", trial["number"], flush=True)
    if trial["act"] == "die":
        os._exit(7)
    if trial["act"] == "sleep":
        time.sleep(600)
    answer = {{"kind": "ended", "number": trial["number"], "own": os.environ["OWN"]}}
    connection.sendall(json.dumps(answer).encode() + b"\\n")
"""


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[WorkerPool]:
    """Two workers."""
    made = WorkerPool([sys.executable, "-c", PROGRAM], [{"OWN": "a"}, {"OWN": "b"}], str(tmp_path / "workers.log"))
    yield made
    made.close()


def one_of(pool: WorkerPool) -> Worker:
    worker = pool.idle()
    assert worker is not None
    return worker


def wait_for(pool: WorkerPool, count: int) -> list[tuple[Worker, Any]]:
    """Return the next messages."""
    found: list[tuple[Worker, Any]] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += pool.messages(1.0)
    assert len(found) == count
    return found


def test_trials_are_divided_over_workers(pool: WorkerPool, tmp_path: Path) -> None:
    """Each has one at a time, and an environment of its own; a worker that is idle gets the next one."""
    for number in (0, 1):
        pool.give(one_of(pool), number, act="answer")
    assert pool.idle() is None
    found = wait_for(pool, 2)
    assert sorted((message["number"], message["own"]) for _, message in found) == [(0, "a"), (1, "b")]
    worker = found[0][0]
    worker.trial = None
    assert pool.idle() is worker
    assert [each.trial for each in pool.busy()] == [found[1][0].trial]
    assert sorted((tmp_path / "workers.log").read_text().split("\n")) == ["", "trial 0", "trial 1"]


def test_a_worker_that_dies_is_replaced(pool: WorkerPool) -> None:
    """Its end is reported once, with how it ended."""
    worker = one_of(pool)
    pool.give(worker, 0, act="die")
    ((ended, message),) = wait_for(pool, 1)
    assert (ended, message, ended.trial) == (worker, None, 0)
    assert ended.ending == "its process exited with code 7"
    again = one_of(pool)
    assert again.process.pid != worker.process.pid
    pool.give(again, 1, act="sleep")
    again.process.send_signal(signal.SIGKILL)
    ((ended, _),) = wait_for(pool, 1)
    assert ended.ending == "its process was killed by SIGKILL, as happens when memory runs out"


def test_closing_leaves_no_process(pool: WorkerPool) -> None:
    """Neither one that trains, nor one that waits."""
    first, second = one_of(pool), None
    pool.give(first, 0, act="sleep")
    second = one_of(pool)
    pool.close()
    assert first.process.poll() == -signal.SIGKILL
    assert second.process.poll() == 0


MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.one_of(st.none(), st.text(), st.floats())), max_size=5)


@given(MESSAGES, st.integers(1, 20))
def test_messages_arrive_as_they_were_sent(messages: list[dict[str, Any]], size: int) -> None:
    """In whatever pieces the system delivers them; NaN as a text."""
    one, other = socket.socketpair()
    with one, other:
        sent = "".join(f"{json.dumps({'kind': 'x', 'of': str(each)})}\n" for each in messages).encode()
        channel = Channel(other)
        found = list[Any]()
        for start in range(0, len(sent), size):
            one.sendall(sent[start : start + size])
            assert channel.read()
            found += channel.waiting()
        one.close()
        assert not channel.read()
    assert [each["of"] for each in found] == [str(each) for each in messages]


def test_the_end_of_a_channel() -> None:
    """Is None; a message that never ends is refused."""
    one, other = socket.socketpair()
    with one, other:
        Channel(one).send(kind="continues", value=float("nan"))
        one.close()
        channel = Channel(other)
        assert channel.receive() == {"kind": "continues", "value": "NaN"}
        assert channel.receive() is None
    assert os.environ.get(CHANNEL) is None
