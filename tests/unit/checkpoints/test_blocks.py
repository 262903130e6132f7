"""Files are loaded as they were verified, block by block."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from hexloop.adapters.collectives.simulated import SimulatedCollectives, SimulatedWorld
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.domain.checkpoints.blocks import MIB, MOST_BLOCKS, VerifiedFiles, block_size, read_blocks
from hexloop.domain.checkpoints.reading import Checkpoint, verify
from hexloop.domain.checkpoints.restoring import load_on_all_ranks
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import ChangedCheckpointError, MissingCheckpointError, UnreadableCheckpointError
from hexloop.domain.state import RunState
from hexloop.ports.storage import Stored
from tests.unit.checkpoints.small_contents import SmallContents


def verified(storage: MemoryStorage, block: int = 4) -> VerifiedFiles:
    expected = storage.digest("checkpoint-1/file")
    found, blocks = read_blocks(storage, "checkpoint-1/file", expected, block)
    assert found == expected
    return VerifiedFiles(storage, "checkpoint-1", {"file": expected.digest.partition(":")[0]}, {"file": blocks})


def stored(data: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    storage.write("checkpoint-1/file", [data])
    return storage


@given(st.binary(max_size=40), st.integers(0, 45), st.integers(1, 9))
def test_an_unchanged_file_is_read_from_any_byte_on(data: bytes, start: int, block: int) -> None:
    """The bytes are those of the storage, whatever the size of the blocks."""
    opened = verified(stored(data), block)
    assert b"".join(opened("file", start)) == data[start:]


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 40), st.integers(1, 9))
def test_no_changed_byte_is_handed_on(data: bytes, other: bytes, start: int, block: int) -> None:
    """What is read of a replaced file are bytes that were verified, and then an error."""
    storage = stored(data)
    opened = verified(storage, block)
    storage.damage("checkpoint-1/file", other)
    read = bytearray()
    start = min(start, len(data))
    try:
        for piece in opened("file", start):
            read += piece
        unchanged = True
    except ChangedCheckpointError:
        unchanged = False
    assert data[start:].startswith(read)
    assert unchanged == (read == data[start:]) or other != data


def test_a_longer_file_is_not_read_to_its_end() -> None:
    """Verification stops behind the size that the manifest has."""
    storage = stored(bytes(1000))
    found, _ = read_blocks(storage, "checkpoint-1/file", Stored(10, "blake2b:0"), 4)
    assert 10 < found.size < 1000


def test_only_verified_files_are_opened() -> None:
    """A file that the manifest does not name is not opened."""
    with pytest.raises(MissingCheckpointError, match="no file other that was verified"):
        next(verified(stored(b"data"))("other"))


@given(st.integers(0, 2**60))
def test_the_number_of_blocks_is_bounded(total: int) -> None:
    """Blocks are as small as that allows."""
    block = block_size(total)
    assert total <= block * MOST_BLOCKS
    assert block == MIB or total > block // 2 * MOST_BLOCKS


class OwnDigests(MemoryStorage):
    """A storage with digests that only it can compute."""

    def digest(self, path: str) -> Stored:
        return evolve(super().digest(path), digest=f"own:{super().digest(path).digest}")


def test_a_digest_that_only_the_storage_computes() -> None:
    """The blocks have another digest; the storage's is computed before and after they are read."""
    storage = OwnDigests()
    storage.write("checkpoint-1/file", [b"12345678"])
    expected = storage.digest("checkpoint-1/file")
    found, blocks = read_blocks(storage, "checkpoint-1/file", expected, 4)
    assert (found, len(blocks.digests)) == (expected, 2)
    opened = VerifiedFiles(storage, "checkpoint-1", {"file": "own"}, {"file": blocks})
    assert b"".join(opened("file", 3)) == b"45678"
    assert read_blocks(storage, "checkpoint-1/file", Stored(8, "own:other"), 4)[0] == expected
    storage.damage("checkpoint-1/file", b"12345679")
    with pytest.raises(ChangedCheckpointError):
        list(opened("file"))


def saved(*steps: int) -> MemoryStorage:
    storage = MemoryStorage()
    for step in steps:
        list(
            CheckpointStore(storage, SmallContents(b"weights of %d" % step), session=f"{step:04}").save(
                RunState("run", step=step)
            )
        )
    return storage


def test_a_checkpoint_is_the_same_on_another_rank() -> None:
    """Manifest and digests of blocks arrive as they were."""
    storage = saved(1)
    checkpoint = verify(storage, "checkpoint-1")
    received = Checkpoint.from_json(storage, checkpoint.to_json())
    assert received == checkpoint
    assert received.files == checkpoint.files


class Changing(SmallContents):
    """Contents during whose loading a file changes, a number of times."""

    def __init__(self, storage: MemoryStorage, times: int) -> None:
        super().__init__()
        self._storage, self._times = storage, times

    def restore(self, names: object, open_file: object) -> RunState:
        if self._times:
            self._times -= 1
            raise ChangedCheckpointError("weights/all.bin changed")
        return super().restore(names, open_file)  # type: ignore[arg-type]


def test_a_checkpoint_that_changed_is_chosen_again_if_it_is_good() -> None:
    """A warning names what changed."""
    storage = saved(1, 2)
    contents = Changing(storage, 2)
    with pytest.warns(UserWarning, match="weights/all.bin changed"):
        state = CheckpointStore(storage, contents).resume()
    assert state is not None
    assert (state.step, contents.weights) == (2, b"weights of 2")


def test_checkpoints_that_keep_changing_are_an_error() -> None:
    """The run does not start over."""
    storage = saved(1)
    with pytest.warns(UserWarning, match="changed"), pytest.raises(UnreadableCheckpointError, match="changed 5 times"):
        CheckpointStore(storage, Changing(storage, 99)).resume()


def test_a_named_checkpoint_that_changed_is_an_error() -> None:
    """No other one is used."""
    storage = saved(1, 2)
    with pytest.raises(ChangedCheckpointError):
        CheckpointStore(storage, Changing(storage, 1)).resume("checkpoint-2")


@pytest.mark.parametrize("changed", [{1}, {0, 2}, set()])
def test_a_change_that_one_rank_finds_is_refused_by_all(changed: set[int]) -> None:
    """Every rank raises, with the rank that found it; if none does, every rank has what it loaded."""

    def end(collectives: SimulatedCollectives) -> str:
        rank = collectives.rank

        def load() -> str:
            if rank in changed:
                raise ChangedCheckpointError(f"rank {rank} found it")
            return f"loaded by {rank}"

        try:
            return load_on_all_ranks(load, together=False, collectives=collectives)
        except ChangedCheckpointError as error:
            return str(error)

    told = SimulatedWorld(3).run(end)

    first = min(changed, default=None)
    for rank, words in enumerate(told):
        if first is None:
            assert words == f"loaded by {rank}"
        else:
            assert words == (f"rank {rank} found it" if rank in changed else f"On rank {first}: rank {first} found it")


def test_loads_of_several_ranks_that_are_collective_are_not_agreed_on() -> None:
    """The error of a rank is raised there, as the others wait within the load itself."""

    def end(collectives: SimulatedCollectives) -> str:
        return load_on_all_ranks(lambda: f"loaded by {collectives.rank}", together=True, collectives=collectives)

    assert SimulatedWorld(2).run(end) == ["loaded by 0", "loaded by 1"]
