"""Holes of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hexloop.domain import holes
from hexloop.domain.holes import are_too_many, bytes_on_disk, may_be_hollow
from hexloop.domain.limits import reading_limits

MIB = 1 << 20


def on_disk(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(3)
        found = bytes_on_disk(file.fileno())
        assert file.tell() == 3
    return found


@pytest.fixture
def hollow(tmp_path: Path) -> Path:
    """Return a file of a GiB with 4 KiB on the disk."""
    path = tmp_path / "hollow"
    path.write_bytes(bytes(range(256)) * 16)
    os.truncate(path, 1 << 30)
    if not may_be_hollow(path.stat()):
        pytest.skip("this file system makes no holes")
    return path


def test_the_bytes_on_the_disk_are_found(tmp_path: Path, hollow: Path) -> None:
    """Of a file with a large hole; any other one has its size there."""
    assert 4096 <= on_disk(hollow) < MIB
    for size in (0, 100, 3 * MIB):
        (tmp_path / "whole").write_bytes(bytes(range(256)) * (size // 256))
        assert on_disk(tmp_path / "whole") == size // 256 * 256
    os.truncate(tmp_path / "whole", 4 * MIB)
    assert on_disk(tmp_path / "whole") == 4 * MIB, "most of it is on the disk"


def test_only_what_is_called_a_hole_is_one(hollow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that report no bytes, or cannot tell holes from data, have none."""
    with monkeypatch.context() as changed:
        changed.setattr(holes, "_has_no_hole", lambda _, __: True)
        assert on_disk(hollow) == 1 << 30
    with monkeypatch.context() as changed:
        changed.delattr(os, "SEEK_HOLE")
        assert on_disk(hollow) == 1 << 30


def test_a_few_holes_are_allowed() -> None:
    """Those up to a limit, and some for each byte on the disk."""
    with reading_limits(hole_bytes=1000):
        assert not are_too_many(1000, 0)
        assert are_too_many(1001, 0)
        assert not are_too_many(1000 + 16 * 50, 50)
        assert are_too_many(1001 + 16 * 50, 50)
        assert not are_too_many(1 << 40, 1 << 40)
