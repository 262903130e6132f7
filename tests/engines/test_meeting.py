"""The meeting of the processes at the start: what earlier starts left does not matter, and missing ranks are named."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hexloop.adapters.collectives.torch.meeting import Attempt, Bound, Meeting
from hexloop.adapters.collectives.torch.world import MeetingPlace, Timeouts, start_world
from hexloop.domain.errors import CollectiveError
from tests.engines.processes import CONTEXT, free_port
from tests.engines.several.training import PATIENCE, Sentences, Training, ended, fresh, padded

TIMEOUT = 4

ADVICE = (
    "Check that all processes were started, that this address can be reached from all of them, and that no other "
    "program uses the port; a longer rendezvous_timeout gives slow ranks more time. "
    "For help, see docs/troubleshooting.md#hangs-and-timeouts."
)


def refusals(address: str, port: int, ranks: tuple[int, ...], world_size: int = 2, agent: bool = False) -> list[str]:
    """Return the errors of processes that wait for the rest of the world. agent: whether a launcher has the store."""
    started = []
    for rank in ranks:
        reader, writer = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_look, args=(address, port, rank, world_size, agent, writer))
        process.start()
        writer.close()
        started.append((process, reader))
    try:
        return [_message(reader) for _, reader in started]
    finally:
        for process, _ in started:
            process.join(PATIENCE)
            process.kill()


def _message(reader: Any) -> str:
    assert reader.poll(PATIENCE), "it looks for ever"
    message: str = reader.recv()
    return message


def _look(address: str, port: int, rank: int, world_size: int, agent: bool, writer: Any) -> None:
    from hexloop import Trainer, TrainingArguments
    from tests.engines.several.training import Reader

    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR=address, MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE=str(agent),
    )  # fmt: skip
    began = time.monotonic()
    try:
        arguments = TrainingArguments(
            "nowhere", use_cpu=True, report_to=[], rendezvous_timeout=TIMEOUT, save_strategy="no"
        )
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
    return free_port()


@pytest.mark.matrix
def test_a_missing_rank_0_is_named(port: int) -> None:
    """The error names the address and port, too."""
    (message,) = refusals("127.0.0.1", port, ranks=(1,))
    assert message.startswith(
        f"CollectiveError: Rank 0 of 2 did not join within {TIMEOUT} s (rendezvous_timeout). Rank 1 waited at "
        f"127.0.0.1:{port}, where nothing answers ("
    )
    assert message.endswith(ADVICE)


@pytest.mark.matrix
def test_missing_peers_are_named_by_all_that_joined(port: int) -> None:
    """Rank 0, which has the store, stays until the others know which ranks are missing."""
    for rank, message in zip((0, 2), refusals("127.0.0.1", port, ranks=(0, 2), world_size=4), strict=True):
        assert message == (
            f"CollectiveError: Ranks 1 and 3 of 4 did not join within {TIMEOUT} s (rendezvous_timeout). Rank {rank} "
            f"waited at 127.0.0.1:{port}. {ADVICE}"
        )


@pytest.mark.matrix
def test_missing_ranks_are_named_in_a_launchers_store(store: Any) -> None:
    """Also if rank 0 is one of them, and an earlier start in the same store was complete."""
    assert len(set(together(store, 4))) == 1
    for message in refusals("127.0.0.1", store.port, ranks=(1, 2), world_size=4, agent=True):
        assert message.startswith(
            f"CollectiveError: Ranks 0 and 3 of 4 did not join within {TIMEOUT} s (rendezvous_timeout). Rank "
        )


@pytest.mark.matrix
def test_an_unknown_host_is_reported(port: int) -> None:
    """A host name may become known later, so it is tried until the timeout."""
    (message,) = refusals("nowhere.invalid", port, ranks=(1,))
    assert message.startswith(
        f"CollectiveError: Rank 0 of 2 did not join within {TIMEOUT} s (rendezvous_timeout). Rank 1 waited at "
        f"nowhere.invalid:{port}, where nothing answers ("
    )


@pytest.mark.matrix
def test_a_port_in_use_is_reported() -> None:
    """The first process cannot listen on it."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        (message,) = refusals("127.0.0.1", other.getsockname()[1], ranks=(0,))
    assert message.startswith("CollectiveError: Rendezvous failed: rank 0 cannot listen at 127.0.0.1:")
    assert "EADDRINUSE" in message


def _connect(place: MeetingPlace, rank: int, writer: Any) -> None:
    """Connect three ranks, of which the last one dies after it has met the others."""
    try:
        if rank == 2:
            connection = TCPStore(place.host, place.port, is_master=False, timeout=timedelta(seconds=PATIENCE))
            Meeting(connection, Attempt(rank, 3, str(place), Bound(PATIENCE))).join()
        else:
            start_world(place, rank, 3, "gloo", Timeouts(rendezvous=TIMEOUT, operations=30 * PATIENCE))
    except CollectiveError as error:
        writer.send(str(error))
    os._exit(0)


@pytest.mark.matrix
def test_a_rank_that_dies_while_all_connect_is_named(store: Any) -> None:
    """The others end with an error long before the timeout of later operations."""
    place, started = MeetingPlace("127.0.0.1", store.port, hosted=False), []
    for rank in range(3):
        reader, writer = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_connect, args=(place, rank, writer))
        process.start()
        writer.close()
        started.append((process, reader))
    for rank, (_, reader) in enumerate(started[:2]):
        assert _message(reader).startswith(
            f"Rank {rank} met all 3 ranks, but rank 2 ended or hung before they were connected. Look at the first "
        )
    for process, _ in started:
        process.join(PATIENCE)


# The meeting itself, in threads with connections of their own


@pytest.fixture
def store() -> Iterator[Any]:
    """Return a store as a launcher has one, which outlives the processes."""
    made = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))
    yield made
    del made


def meeting(store: Any, rank: int, world_size: int, seconds: float = PATIENCE) -> Meeting:
    """Return the meeting as a rank sees it."""
    connection = TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=PATIENCE))
    return Meeting(connection, Attempt(rank, world_size, "a store", Bound(seconds)))


def together(store: Any, world_size: int) -> list[str]:
    """Return the name that each rank is told, after all have met."""
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(lambda rank: meeting(store, rank, world_size).join(), reversed(range(world_size))))


def test_every_start_has_a_name_of_its_own(store: Any) -> None:
    """All ranks of a start get the same name, and those of the next one, in the same store, another."""
    names = [set(together(store, 3)) for _ in range(3)]
    assert [len(each) for each in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3


def test_a_rank_that_was_killed_while_it_waited_does_not_count(store: Any) -> None:
    """Rank 0 or another: the ranks of the next start meet each other, and not the dead one."""
    for dead in (0, 1, 2):
        with pytest.raises(CollectiveError):
            meeting(store, dead, 3, seconds=0.5).join()
        assert len(set(together(store, 3))) == 1


def test_a_restarted_rank_takes_the_place_of_the_dead_one(store: Any) -> None:
    """Rank 0 still waits in the same start, as on another machine, whose processes stay.

    It does not take the dead process, which had appeared, for the one that is being started.
    """
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(meeting(store, 0, 3).join)
        wait_for(store, "name")
        name = store.get("hexloop/meeting/name").decode()
        with pytest.raises(CollectiveError):
            meeting(store, 1, 3, seconds=0.5).join()
        assert store.check([f"hexloop/meeting/{name}/here/1"])
        others = [pool.submit(meeting(store, 2, 3).join)]
        wait_for(store, f"{name}/confirmed/{store.get(f'hexloop/meeting/{name}/here/2').decode()}")
        assert not first.done()
        others.append(pool.submit(meeting(store, 1, 3).join))
        assert {each.result() for each in (first, *others)} == {name}


@pytest.mark.matrix
def test_a_rank_that_appeared_and_ended_is_named(store: Any) -> None:
    """If nothing takes its place, all others say which one it is."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meeting(store, 0, 3, seconds=4).join)
        wait_for(store, "name")
        with pytest.raises(CollectiveError):
            meeting(store, 1, 3, seconds=0.5).join()
        second = pool.submit(meeting(store, 2, 3, seconds=20).join)
        for each in (first, second):
            with pytest.raises(CollectiveError, match=r"^Rank 1 of 3 did not join"):
                each.result()


def wait_for(store: Any, key: str) -> None:
    """Wait until a key of the meeting is in the store."""
    store.wait([f"hexloop/meeting/{key}"], timedelta(seconds=PATIENCE))


def test_lost_ranks_are_found_after_the_meeting(store: Any) -> None:
    """A rank that ends between the meeting and the connection is named by the others."""
    with ThreadPoolExecutor(3) as pool:
        meetings = [meeting(store, rank, 3) for rank in range(3)]
        list(pool.map(Meeting.join, meetings))
        assert list(pool.map(Meeting.find_lost, meetings[:2])) == [[2], [2]]


@pytest.mark.matrix
def test_more_processes_than_samples_are_refused(tmp_path: Path) -> None:
    """Every rank refuses before the first step."""
    for message in ended(Training(4, rows=3, batch=1, size=4), fresh(tmp_path / "run")):
        assert message == (
            "ConfigurationError: The run has 4 processes, too many ranks for the data, which have 3 samples; "
            "start at most 3, or add samples."
        )
