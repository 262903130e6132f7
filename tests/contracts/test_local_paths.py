"""The local storage among links, pipes, and other processes that change its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hexloop.adapters.storage.local import LocalStorage
from hexloop.domain.errors import IrregularFileError, MissingFileError


def test_listed_files_have_sizes(tmp_path: Path) -> None:
    """A verification can compare sizes before it reads; folders, and links without a target, have none."""
    storage = LocalStorage(tmp_path)
    storage.write("folder/file", [b"12345"])
    (tmp_path / "folder" / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "folder" / "pipe")
    (tmp_path / "folder" / "inner").mkdir()
    assert {entry.name: entry.size for entry in storage.list("folder")} == {
        "file": 5, "nowhere": None, "pipe": None, "inner": None
    }  # fmt: skip


@pytest.mark.parametrize("place", ["folder", "folder/inner", "folder/inner/file"])
def test_a_link_that_replaces_part_of_a_path_is_not_followed(tmp_path: Path, place: str) -> None:
    """A link in the place of a file or of a folder above it is read if it leads to a place inside the root, only."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    storage = LocalStorage(root)
    storage.write("folder/inner/file", [b"inside"])
    storage.write("other/inner/file", [b"other"])
    (outside / "inner").mkdir(parents=True)
    for secret in (outside / "file", outside / "inner" / "file"):
        secret.write_bytes(b"secret")
    target = place.removeprefix("folder").strip("/")
    (root / place).rename(tmp_path / "moved")
    (root / place).symlink_to(outside / target)
    with pytest.raises(IrregularFileError, match="leads out of"):
        list(storage.read("folder/inner/file"))
    (root / place).unlink()
    (root / place).symlink_to(root / "other" / target)
    assert b"".join(storage.read("folder/inner/file")) == b"other"


def test_a_link_that_appears_while_a_file_is_opened_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a link leads to is checked again when it is resolved, and is then opened without links."""
    storage = LocalStorage(tmp_path / "root")
    storage.write("folder/file", [b"inside"])
    storage.write("other/file", [b"other"])
    (tmp_path / "root" / "link").symlink_to("folder")
    locate = storage._locate

    def swap_afterwards(path: str) -> str:
        found = locate(path)
        (tmp_path / "root" / "folder").rename(tmp_path / "moved")
        (tmp_path / "root" / "folder").symlink_to(tmp_path / "moved")
        return found

    monkeypatch.setattr(storage, "_locate", swap_afterwards)
    with pytest.raises(IrregularFileError, match="leads out of"):
        list(storage.read("link/file"))


def test_a_file_that_grows_is_read_up_to_its_size_at_first(tmp_path: Path) -> None:
    """Size and digest are those of the file when it was opened."""
    storage = LocalStorage(tmp_path)
    expected = storage.write("file", [bytes(10)])
    chunks = storage.read("file")
    first = next(chunks)
    with (tmp_path / "file").open("ab") as file:
        file.write(b"more")
    assert (len(first), list(chunks)) == (10, [])
    assert storage.digest("file").size == 14
    os.truncate(tmp_path / "file", 10)
    assert storage.digest("file") == expected


def test_a_missing_file_is_told_apart(tmp_path: Path) -> None:
    """Its error has a class of its own, so that a caller can ignore what another process removed."""
    storage = LocalStorage(tmp_path)
    storage.write("file", [b"x"])
    for act in (
        lambda: list(storage.read("nowhere")),
        lambda: storage.digest("folder/nowhere"),
        lambda: storage.move("nowhere", "elsewhere"),
    ):
        with pytest.raises(MissingFileError, match="No such file"):
            act()


def test_a_folder_is_removed_that_another_process_changes(tmp_path: Path) -> None:
    """Files that appear in it and vanish from it do no harm."""
    storage = LocalStorage(tmp_path)
    program = """
import os, pathlib, sys, time
print("ready", flush=True)
while not os.path.exists(sys.argv[2]):
    for act in (pathlib.Path.touch, pathlib.Path.unlink):
        for number in range(60):
            try:
                act(pathlib.Path(sys.argv[1], str(number)))
            except OSError:
                pass
        time.sleep(0.002)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "folder"), str(tmp_path / "stop")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            for _ in range(200):
                (tmp_path / "folder").mkdir()
                for number in range(40, 100):
                    (tmp_path / "folder" / str(number)).touch()
                storage.remove("folder")
                assert not (tmp_path / "folder").exists()
        finally:
            (tmp_path / "stop").touch()
