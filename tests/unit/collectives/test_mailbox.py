"""What processes of one machine say to each other through memory that they share."""

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

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")

PAGE = 4096


@contextmanager
def mailboxes(size: int, timeout: float = 20.0) -> Iterator[tuple[int, list[Mailbox]]]:
    """The memory's file, and one mailbox a rank, all in this process."""
    file = os.memfd_create("test")
    os.truncate(file, PAGE * (size + 1))
    with ExitStack() as stack:
        stack.callback(os.close, file)
        boxes = [Mailbox(os.dup(file), rank, size, timeout) for rank in range(size)]
        for box in boxes:
            stack.enter_context(closing(box))
        yield file, boxes


@given(st.data())
def test_all_read_what_all_said_in_whatever_order_they_come(data: st.DataObject) -> None:
    """However far one rank is ahead of another, and in whatever order it reads, each message is what each one said."""
    size = data.draw(st.integers(2, 4), label="ranks")
    lengths = data.draw(st.lists(st.integers(0, CAPACITY), min_size=1, max_size=40), label="lengths")
    with mailboxes(size) as (_, boxes):
        letters: list[list[PostedMessage]] = [[] for _ in boxes]
        read = [0] * size
        while min(read) < len(lengths):
            said = [len(each) for each in letters]
            able = [rank for rank in range(size) if said[rank] < len(lengths) and said[rank] - min(read) < UNREAD]
            waiting = [rank for rank in range(size) if read[rank] < min(said)]
            choice = data.draw(st.sampled_from([(rank, False) for rank in able] + [(rank, True) for rank in waiting]))
            rank, reads = choice
            if reads:
                upto = data.draw(st.integers(read[rank], min(said) - 1), label="read up to")
                rows = boxes[rank].collect(letters[rank][upto])
                assert rows == [tuple(float(upto * 10 + other) for _ in range(lengths[upto])) for other in range(size)]
                read[rank] = max(read[rank], upto + 1)
            else:
                number = said[rank]
                letters[rank].append(boxes[rank].post([float(number * 10 + rank)] * lengths[number]))
        for rank, box in enumerate(boxes):
            assert [len(box.collect(letter)[0]) for letter in letters[rank]] == lengths


def test_a_rank_that_is_far_ahead_waits_for_those_who_have_not_read() -> None:
    """Nothing that somebody still has to read is written over."""
    with mailboxes(2) as (_, (ahead, behind)):
        early = [ahead.post([float(number)]) for number in range(UNREAD)]
        late: list[PostedMessage] = []
        going_on = threading.Thread(target=lambda: late.append(ahead.post([float(UNREAD)])))
        going_on.start()
        going_on.join(0.05)
        assert not late

        answers = [behind.post([-1.0]) for _ in range(UNREAD)]
        going_on.join(0.05)
        assert not late
        assert [behind.collect(answer)[0] for answer in answers] == [(float(number),) for number in range(UNREAD)]
        going_on.join(10)

        assert len(late) == 1
        assert ahead.collect(early[-1]) == [(float(UNREAD - 1),), (-1.0,)]


@pytest.mark.parametrize("place", range(28))
def test_a_message_that_is_half_written_is_not_read(place: int) -> None:
    """Whichever byte of a message is not there yet, its reader waits for it."""
    with mailboxes(2) as (file, (writer, reader)):
        writer.post([3.5, -2.25])
        at = PAGE + place
        there = os.pread(file, 1, at)
        os.pwrite(file, bytes([there[0] ^ 0x41]), at)
        letter, heard = reader.post([0.0, 0.0]), []
        reading = threading.Thread(target=lambda: heard.append(reader.collect(letter)))
        reading.start()
        reading.join(0.01)
        assert not heard

        os.pwrite(file, there, at)
        reading.join(10)
        assert heard == [[(3.5, -2.25), (0.0, 0.0)]]


def test_a_rank_that_failed_elsewhere_is_not_waited_for() -> None:
    """Who waits stops when it hears that another one has failed."""
    file = os.memfd_create("test")
    os.truncate(file, PAGE * 3)
    with closing(Mailbox(file, 0, 2, 20.0, lambda: True)) as box:
        letter = box.post([1.0])
        with pytest.raises(RuntimeError, match="another process failed"):
            box.collect(letter)


class TestMeeting:
    """How processes come to share memory."""

    def meet(self, *, other_path: str | None = None, other_token: str | None = None) -> list[Mailbox | None]:
        """What two ranks share, rank 1 seeing another offer than rank 0 made where one is given."""
        said: list[list[Json]] = [[], []]
        turn = threading.Barrier(2, timeout=20)

        def meeting(rank: int) -> Mailbox | None:
            def gather(value: Json) -> list[Json]:
                said[rank].append(value)
                turn.wait()
                both = [said[each][len(said[rank]) - 1] for each in range(2)]
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

    def test_those_on_one_machine_share_it(self) -> None:
        """What one says, the other reads."""
        first, second = self.meet()

        assert first is not None
        assert second is not None
        with closing(first), closing(second):
            letters = [first.post([1.0]), second.post([2.0])]
            assert first.collect(letters[0]) == second.collect(letters[1]) == [(1.0,), (2.0,)]

    def test_nobody_shares_what_one_cannot_open(self) -> None:
        """A rank on another machine finds no file of that name, and then no rank has a mailbox."""
        assert self.meet(other_path="/proc/4194305/fd/0") == [None, None]

    def test_nobody_shares_another_file_of_that_name(self) -> None:
        """A rank on another machine may find a file of another process, which is not taken for what was offered."""
        assert self.meet(other_token="0" * 32) == [None, None]

    def test_a_system_without_such_memory_has_no_mailbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The ranks then talk over their connections alone."""
        monkeypatch.delattr(os, "memfd_create")

        assert self.meet() == [None, None]

    def test_a_system_that_refuses_such_memory_has_no_mailbox(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first process goes on without it, and the others with it."""

        def refuse(name: str) -> int:
            raise PermissionError(1, "not permitted", name)

        monkeypatch.setattr(os, "memfd_create", refuse)

        assert self.meet() == [None, None]

    def test_no_file_stays_open_where_nothing_is_shared(self) -> None:
        """What was opened for it is closed."""
        before = len(os.listdir("/proc/self/fd"))

        self.meet(other_token="0" * 32)

        assert len(os.listdir("/proc/self/fd")) == before
