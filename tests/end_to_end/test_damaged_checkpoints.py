"""Any change to any file of a checkpoint is detected, and the checkpoint is not loaded."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import pytest

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.checkpoints.reading import verify
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError
from tests.contracts.keepers import Keeper
from tests.end_to_end.checkpoint_folder import (
    NAME,
    copy_of,
    make_checkpoint,
    refused_by_resume,
    refused_by_verify,
)

POSITIONS = 1000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("whole"))


def assert_unusable(checkpoint: Path) -> None:
    """Verification and a resume by name both refuse it; nothing is loaded."""
    refused_by_verify(checkpoint)
    keeper = Keeper()
    store = CheckpointStore(LocalStorage(checkpoint.parent), CheckpointContents({"model": keeper}))
    with pytest.raises(CheckpointError, match=r"Choose one of the good|no good checkpoint"):
        store.resume(checkpoint.name)
    assert keeper.loads == 0


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def test_the_undamaged_checkpoint_is_valid(whole: Path) -> None:
    """The checkpoint that the tests below damage is valid, and has a file of each kind."""
    verify(LocalStorage(whole.parent), NAME)
    assert len(files_of(whole)) == 6


@pytest.mark.parametrize("every", [10, pytest.param(1, marks=pytest.mark.matrix)])
def test_every_flipped_bit_is_detected(whole: Path, tmp_path: Path, every: int) -> None:
    """One bit at each of a thousand positions over all files, the manifest included: all are refused."""
    checkpoint, draw = copy_of(whole, tmp_path / "flipped"), random.Random(5)
    files = files_of(checkpoint)
    chosen = [files[number % len(files)] for number in range(POSITIONS)]
    for number, path in enumerate(chosen):
        good = path.read_bytes()
        place, bit = draw.randrange(len(good)), 1 << draw.randrange(8)
        path.write_bytes(good[:place] + bytes([good[place] ^ bit]) + good[place + 1 :])
        refused_by_verify(checkpoint)
        if number % every == 0:
            assert_unusable(checkpoint)
        if number % (50 * every) == 0:
            refused_by_resume(checkpoint, tmp_path / "output")
        path.write_bytes(good)
    verify(LocalStorage(checkpoint.parent), NAME)


def test_every_truncation_is_detected(whole: Path, tmp_path: Path) -> None:
    """Each file, cut at its start, in the middle, or by one byte, or with an additional byte."""
    checkpoint = copy_of(whole, tmp_path / "cut")
    for path in files_of(checkpoint):
        good = path.read_bytes()
        for length in sorted({0, 1, 7, 8, len(good) // 3, len(good) // 2, len(good) - 8, len(good) - 1} - {len(good)}):
            path.write_bytes(good[: max(0, length)])
            assert_unusable(checkpoint)
        refused_by_resume(checkpoint, tmp_path / "output")
        path.write_bytes(good + b"\0")
        assert_unusable(checkpoint)
        path.write_bytes(good)


def test_every_missing_file_is_detected(whole: Path, tmp_path: Path) -> None:
    """Verification names it."""
    for path in files_of(whole):
        checkpoint = copy_of(whole, tmp_path / "missing")
        (checkpoint / path.name).unlink()
        assert path.name in refused_by_verify(checkpoint)
        assert_unusable(checkpoint)
        refused_by_resume(checkpoint, tmp_path / "output")


def test_every_swapped_pair_is_detected(whole: Path, tmp_path: Path) -> None:
    """Two files whose names are swapped, unless they have the same content."""
    checkpoint = copy_of(whole, tmp_path / "swapped")
    pairs = 0
    for one, other in combinations(files_of(checkpoint), 2):
        first, second = one.read_bytes(), other.read_bytes()
        if first == second:
            continue
        one.write_bytes(second)
        other.write_bytes(first)
        assert_unusable(checkpoint)
        one.write_bytes(first)
        other.write_bytes(second)
        pairs += 1
    assert pairs >= 10
    refused_by_resume(_swapped(checkpoint, "training_args.json", "trainer_state.json"), tmp_path / "output")


def _swapped(checkpoint: Path, one: str, other: str) -> Path:
    first = (checkpoint / one).read_bytes()
    target = checkpoint / other
    (checkpoint / one).write_bytes(target.read_bytes())
    target.write_bytes(first)
    return checkpoint
