"""Opening files that may come from elsewhere."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hexloop.domain import regular_files
from hexloop.domain.folders import place_of
from hexloop.domain.limits import reading_limits
from hexloop.domain.regular_files import (
    NotRegularError,
    chunks_of,
    is_link,
    open_lines,
    open_regular,
    read_file,
    write_atomically,
)


def lines_of(path: Path, most: int | None = None) -> Iterator[bytes]:
    folder, name = place_of(path)
    return folder.lines(name, most=most)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    descriptor = open_regular(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def irregular(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "irregular"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "device":
        path = Path("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    return path


@pytest.mark.parametrize("irregular", ["pipe", "folder", "device", "socket"], indirect=True)
def test_only_regular_files_are_opened(irregular: Path) -> None:
    """Pipes, folders, devices and sockets are refused at once, for reading and for writing, and none is left open."""
    before = len(os.listdir("/proc/self/fd"))
    for use in (open_regular, open_lines, read_file, lambda path: next(lines_of(path))):
        with pytest.raises(NotRegularError, match="not a regular file") as raised:
            use(irregular)
        assert raised.value.filename == str(irregular)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_missing_file_is_the_usual_error(tmp_path: Path) -> None:
    """As for `open`."""
    for use in (open_regular, read_file, lambda path: next(lines_of(path))):
        with pytest.raises(FileNotFoundError):
            use(tmp_path / "nowhere")


@pytest.mark.parametrize("flag", [True, False])
def test_links_are_followed_only_where_a_user_named_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: bool
) -> None:
    """A link is refused, and its target unchanged, also on a system whose `open` cannot refuse links."""
    if not flag:
        monkeypatch.setattr(regular_files, "NO_FOLLOW", 0)
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"one")
    link.symlink_to(target)
    for use in (open_regular, open_lines, lambda path: next(lines_of(path))):
        with pytest.raises(NotRegularError, match="it is a link"):
            use(link)
    assert read_file(link) == b"one"
    assert target.read_bytes() == b"one"


def test_what_is_not_there_is_no_link(tmp_path: Path) -> None:
    """Nor is a file."""
    (tmp_path / "file").touch()
    assert not is_link(str(tmp_path / "missing"))
    assert not is_link(str(tmp_path / "file"))


def test_a_file_is_read_from_a_position(tmp_path: Path) -> None:
    """Up to its end, which may come early if it has been cut since."""
    path = tmp_path / "file"
    path.write_bytes(b"012345")
    with opened(path) as descriptor:
        assert b"".join(chunks_of(descriptor, 2)) == b"2345"
        assert list(chunks_of(descriptor, 9)) == []


def test_growth_while_reading_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that appends for ever does not keep a reader."""
    monkeypatch.setattr(regular_files, "CHUNK", 4)
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    read = b""
    with opened(path) as descriptor:
        for chunk in chunks_of(descriptor):
            read += chunk
            with path.open("ab") as file:
                file.write(b"more")
        assert read == b"0123456789"
        chunks = chunks_of(descriptor)
        next(chunks)
        os.truncate(path, 0)
        assert list(chunks) == []


def test_a_file_beyond_the_limit_is_refused_by_its_size(tmp_path: Path) -> None:
    """Nothing of it is read: it may be sparse and larger than the memory."""
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match=r"it has 1099511627776 bytes, more than 134217728; document_bytes raises"):
        read_file(path)
    with pytest.raises(OSError, match="recipe_bytes raises"):
        read_file(path, "recipe_bytes")


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Lines are yielded without their ends, wherever chunks end; the last one may lack its end."""
    monkeypatch.setattr(regular_files, "CHUNK", size)
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\ntwo\r\nlast")
    assert list(lines_of(path)) == [b"one", b"", b"two\r", b"last"]
    path.write_bytes(b"one\n")
    assert list(lines_of(path)) == [b"one"]


def test_a_file_of_lines_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many bytes as are read at a time; the error names the limit."""
    monkeypatch.setattr(regular_files, "CHUNK", 4)
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert list(lines_of(path, 14)) == [b"one", b"two", b"three"]
    lines = lines_of(path, 10)
    assert [next(lines), next(lines)] == [b"one", b"two"]
    with pytest.raises(OSError, match="it is longer than 10 bytes; log_bytes raises this limit"):
        next(lines)


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the line and the limit."""
    monkeypatch.setattr(regular_files, "CHUNK", 4)
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"x" * 100)
    lines = lines_of(path)
    with reading_limits(line_bytes=10):
        assert next(lines) == b"one"
        with pytest.raises(OSError, match="its line 2 is longer than 10 bytes; line_bytes raises this limit"):
            next(lines)


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_a_file_is_written_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool, mode: int
) -> None:
    """Nothing else is left in its folder, and a link in its place is replaced, not followed."""
    outside, path = tmp_path / "outside", tmp_path / "new" / "file"
    outside.write_bytes(b"untouched")
    path.parent.mkdir()
    path.symlink_to(outside)
    before = os.umask(0o022)
    try:
        write_atomically(path, b"data", private)
    finally:
        os.umask(before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777, path.is_symlink()) == (b"data", mode, False)
    assert outside.read_bytes() == b"untouched"

    def fail(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"other", private)
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == b"data"


def test_lines_are_appended_after_a_torn_one(tmp_path: Path) -> None:
    """A new file is created; the last line of another is ended if it is incomplete."""
    path = tmp_path / "lines"
    for text, expected in ((b"", b"more\n"), (b"whole\n", b"whole\nmore\n"), (b"torn", b"torn\nmore\n")):
        path.write_bytes(text)
        descriptor = open_lines(path)
        os.write(descriptor, b"more\n")
        os.close(descriptor)
        assert path.read_bytes() == expected
    path.unlink()
    os.close(open_lines(path, 0o600))
    assert path.stat().st_mode & 0o777 == 0o600
