"""Messages between processes of one machine through shared memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.collectives.torch.mailbox import CAPACITY, UNREAD, Mailbox, PostedMessage, shared_mailbox
from hexloop.ports.collectives import Json

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")

PAGE = 4096


@contextmanager
def mailboxes(size: int, timeout: float = 20.0) -> Iterator[tuple[int, list[Mailbox]]]:
    """Return the memory's file, and one mailbox per rank, all in this process."""
    file = os.memfd_create("test")
    os.truncate(file, PAGE * (size + 1))
    with ExitStack() as stack:
        stack.callback(os.close, file)
        boxes = [Mailbox(os.dup(file), rank, size, timeout) for rank in range(size)]
        for box in boxes:
            stack.enter_context(closing(box))
        yield file, boxes


@given(st.data())
def test_all_ranks_read_all_messages_in_any_order(data: st.DataObject) -> None:
    """However far one rank is ahead, and in whatever order it reads, each message is the one that was sent."""
    size = data.draw(st.integers(2, 4), label="ranks")
    lengths = data.draw(st.lists(st.integers(0, CAPACITY), min_size=1, max_size=40), label="lengths")
    with mailboxes(size) as (_, boxes):
        letters: list[list[PostedMessage]] = [[] for _ in boxes]
        read = [0] * size
        while min(read) < len(lengths):
            sent = [len(each) for each in letters]
            able = [rank for rank in range(size) if sent[rank] < len(lengths) and sent[rank] - min(read) < UNREAD]
            waiting = [rank for rank in range(size) if read[rank] < min(sent)]
            choice = data.draw(st.sampled_from([(rank, False) for rank in able] + [(rank, True) for rank in waiting]))
            rank, reads = choice
            if reads:
                upto = data.draw(st.integers(read[rank], min(sent) - 1), label="read up to")
                rows = boxes[rank].collect(letters[rank][upto])
                assert rows == [tuple(float(upto * 10 + other) for _ in range(lengths[upto])) for other in range(size)]
                read[rank] = max(read[rank], upto + 1)
            else:
                number = sent[rank]
                letters[rank].append(boxes[rank].post([float(number * 10 + rank)] * lengths[number]))
        for rank, box in enumerate(boxes):
            assert [len(box.collect(letter)[0]) for letter in letters[rank]] == lengths


def test_a_rank_that_is_far_ahead_waits_for_slow_readers() -> None:
    """Unread messages are never overwritten."""
    with mailboxes(2) as (_, (ahead, slow)):
        early = [ahead.post([float(number)]) for number in range(UNREAD)]
        late: list[PostedMessage] = []
        posting = threading.Thread(target=lambda: late.append(ahead.post([float(UNREAD)])))
        posting.start()
        posting.join(0.05)
        assert not late

        answers = [slow.post([-1.0]) for _ in range(UNREAD)]
        posting.join(0.05)
        assert not late
        assert [slow.collect(answer)[0] for answer in answers] == [(float(number),) for number in range(UNREAD)]
        posting.join(10)

        assert len(late) == 1
        assert ahead.collect(early[-1]) == [(float(UNREAD - 1),), (-1.0,)]


@pytest.mark.parametrize("offset", range(28))
def test_a_partly_written_message_is_not_read(offset: int) -> None:
    """Whichever byte of a message is missing, its reader waits for it."""
    with mailboxes(2) as (file, (writer, reader)):
        writer.post([3.5, -2.25])
        at = PAGE + offset
        there = os.pread(file, 1, at)
        os.pwrite(file, bytes([there[0] ^ 0x41]), at)
        letter, received = reader.post([0.0, 0.0]), []
        reading = threading.Thread(target=lambda: received.append(reader.collect(letter)))
        reading.start()
        reading.join(0.01)
        assert not received

        os.pwrite(file, there, at)
        reading.join(10)
        assert received == [[(3.5, -2.25), (0.0, 0.0)]]


def test_a_failed_rank_is_not_waited_for() -> None:
    """A waiting rank stops when it learns that another one has failed."""
    file = os.memfd_create("test")
    os.truncate(file, PAGE * 3)
    with closing(Mailbox(file, 0, 2, 20.0, lambda: True)) as box:
        letter = box.post([1.0])
        with pytest.raises(RuntimeError, match="another process failed"):
            box.collect(letter)


class TestSetup:
    """How processes set up shared memory."""

    def meet(self, *, other_path: str | None = None, other_token: str | None = None) -> list[Mailbox | None]:
        """Return what two ranks share; if an offer is given, rank 1 sees it in place of rank 0's."""
        sent: list[list[Json]] = [[], []]
        turn = threading.Barrier(2, timeout=20)

        def meeting(rank: int) -> Mailbox | None:
            def gather(value: Json) -> list[Json]:
                sent[rank].append(value)
                turn.wait()
                both = [sent[each][len(sent[rank]) - 1] for each in range(2)]
                if rank == 1 and isinstance(both[0], list):
                    path, token = both[0]
                    both[0] = [other_path or path, token if other_token is None else other_token]
                turn.wait()
                return both

            return shared_mailbox(gather, rank, 2, 20.0, bool)

        found: list[Mailbox | None] = [None, None]
        threads = [threading.Thread(target=lambda rank=rank: found.__setitem__(rank, meeting(rank))) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return found

    def test_ranks_on_one_machine_share_memory(self) -> None:
        """What one rank writes, the other reads."""
        first, second = self.meet()

        assert first is not None
        assert second is not None
        with closing(first), closing(second):
            letters = [first.post([1.0]), second.post([2.0])]
            assert first.collect(letters[0]) == second.collect(letters[1]) == [(1.0,), (2.0,)]

    def test_memory_that_one_rank_cannot_open_is_not_used(self) -> None:
        """A rank on another machine finds no file of that name, and then no rank has a mailbox."""
        assert self.meet(other_path="/proc/4194305/fd/0") == [None, None]

    def test_another_file_of_that_name_is_not_used(self) -> None:
        """A rank on another machine may find another process's file, which is not mistaken for the offered one."""
        assert self.meet(other_token="0" * 32) == [None, None]

    def test_a_system_without_shared_memory_has_no_mailbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The ranks then communicate over their connections alone."""
        monkeypatch.delattr(os, "memfd_create")

        assert self.meet() == [None, None]

    def test_refused_shared_memory_leaves_no_mailbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All processes continue without it."""

        def refuse(name: str) -> int:
            raise PermissionError(1, "not permitted", name)

        monkeypatch.setattr(os, "memfd_create", refuse)

        assert self.meet() == [None, None]

    def test_no_file_stays_open_if_nothing_is_shared(self) -> None:
        """Files that were opened for it are closed."""
        before = len(os.listdir("/proc/self/fd"))

        self.meet(other_token="0" * 32)

        assert len(os.listdir("/proc/self/fd")) == before
