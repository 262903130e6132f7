"""Folders that others may write to: no link is followed, whatever is planted where."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hexloop.domain import folders
from hexloop.domain.folders import DEEPEST, Folder, is_private
from hexloop.domain.regular_files import NotRegularError


@pytest.fixture
def handles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the system opens files by the handle of their folder; Windows does not."""
    if not getattr(request, "param", True):
        monkeypatch.setattr(folders, "_HAS_HANDLES", False)
    return bool(getattr(request, "param", True))


both = pytest.mark.parametrize("handles", [True, False], indirect=True)


@both
def test_files_are_written_and_read(tmp_path: Path, handles: bool) -> None:
    """A folder need not exist; what is not there is the usual error, and an empty list."""
    folder = Folder(tmp_path / "run", "a/b")
    assert not folder.exists()
    assert folder.entries() == []
    with pytest.raises(FileNotFoundError):
        folder.read("x", 9)
    folder.replace("c/x", b"one\ntwo")
    folder.replace("c/x", b"one\nthree")
    assert folder.read("c/x", 9) == b"one\nthree"
    with pytest.raises(OSError, match="it has 9 bytes, more than 8"):
        folder.read("c/x", 8)
    assert list(folder.lines("c/x")) == [b"one", b"three"]
    assert list(folder.lines("c/x", 4)) == [b"three"]
    assert b"".join(folder.chunks("c/x", 2)) == b"e\nthree"
    os.close(folder.open_lines("c/x"))
    assert folder.read("c/x", 20) == b"one\nthree\n"
    folder.create("c/y", b"1")
    with pytest.raises(FileExistsError):
        folder.create("c/y", b"2")
    with pytest.raises(FileExistsError):
        folder.open_new("c/y")
    assert [(each.name, each.is_folder, each.size) for each in folder.entries()] == [("c", True, None)]
    assert [(each.name, each.size) for each in folder.entries("c")] == [("x", 10), ("y", 1)]
    assert [path for path, _ in folder.files()] == ["c/x", "c/y"]
    assert folder.location("c/x") == str(tmp_path / "run/a/b/c/x")
    assert folder.status("c/y").st_size == 1
    assert is_private(folder.below("c").own_status())
    assert folder.exists("c")
    assert not folder.exists("c/x")
    assert folder.entries("c/x") == []
    folder.move("c/y", "z")
    folder.remove("z")
    folder.remove("z")
    folder.remove_empty("c")
    folder.remove("c")
    folder.remove_empty()
    assert [path.name for path in (tmp_path / "run").rglob("*")] == ["a"]


USES: dict[str, Callable[[Folder], object]] = {
    "open": lambda folder: folder.open("x"),
    "read": lambda folder: folder.read("x", 9),
    "lines": lambda folder: list(folder.lines("x")),
    "chunks": lambda folder: list(folder.chunks("x")),
    "open_own": lambda folder: folder.open_own("x"),
    "open_lines": lambda folder: folder.open_lines("x"),
}

THROUGH: dict[str, Callable[[Folder], object]] = {
    **USES,
    "replace": lambda folder: folder.replace("x", b"changed"),
    "create": lambda folder: folder.create("new", b"changed"),
    "open_new": lambda folder: folder.open_new("new"),
    "link": lambda folder: folder.link(__file__, "new"),
    "make": lambda folder: folder.make("new"),
    "move": lambda folder: folder.move("x", "y"),
    "remove": lambda folder: folder.remove("x"),
    "entries": lambda folder: folder.entries(),
    "files": lambda folder: list(folder.files()),
    "status": lambda folder: folder.status("x"),
    "own_status": lambda folder: folder.own_status(),
}


@both
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", THROUGH)
def test_no_folder_on_the_way_may_be_a_link(name: str, depth: int, tmp_path: Path, handles: bool) -> None:
    """Every method refuses it, naming the link, and what it leads to stays as it is."""
    victim, names = tmp_path / "victim", ["a", "b", "c"]
    inside = victim.joinpath(*names[depth + 1 :])
    inside.mkdir(parents=True)
    (inside / "x").write_bytes(b"1")
    link = tmp_path.joinpath("run", *names[:depth], names[depth])
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    folder = Folder(tmp_path / "run", "a/b/c")
    with pytest.raises(NotRegularError, match="it is a link") as raised:
        THROUGH[name](folder)
    assert raised.value.filename == str(link)
    assert [path.name for path in inside.iterdir()] == ["x"]
    assert (inside / "x").read_bytes() == b"1"
    assert not folder.exists()


@both
@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_only_regular_files_are_opened(name: str, kind: str, tmp_path: Path, handles: bool) -> None:
    """Neither to read nor to write; the error names the file, and no pipe is waited for."""
    victim, planted = tmp_path / "victim", tmp_path / "x"
    if kind == "link":
        victim.write_bytes(b"1")
    if kind == "pipe":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    else:
        planted.symlink_to(victim)
    with pytest.raises(NotRegularError) as raised:
        USES[name](Folder(tmp_path))
    assert raised.value.filename == str(planted)
    assert victim.exists() == (kind == "link")


def test_a_file_with_another_name_is_not_written_in(tmp_path: Path) -> None:
    """A hard link may be one of a file elsewhere; a file of lines may have further names, as in a backup."""
    (tmp_path / "victim").write_bytes(b"1")
    os.link(tmp_path / "victim", tmp_path / "x")
    with pytest.raises(NotRegularError, match="another name of a file elsewhere"):
        Folder(tmp_path).open_own("x")
    Folder(tmp_path).replace("x", b"2")
    assert (tmp_path / "victim").read_bytes() == b"1"
    os.close(Folder(tmp_path).open_own("x"))


@both
def test_replacing_replaces_a_link_itself(tmp_path: Path, handles: bool) -> None:
    """And leaves no temporary file, not even if the name is one of a folder."""
    (tmp_path / "victim").write_bytes(b"1")
    (tmp_path / "x").symlink_to("victim")
    (tmp_path / "folder").mkdir()
    folder = Folder(tmp_path)
    folder.replace("x", b"2")
    assert ((tmp_path / "victim").read_bytes(), (tmp_path / "x").read_bytes()) == (b"1", b"2")
    with pytest.raises(OSError, match="irectory"):
        folder.replace("folder", b"2")
    assert sorted(os.listdir(tmp_path)) == ["folder", "victim", "x"]
    (tmp_path / "x").unlink()
    (tmp_path / "x").symlink_to("victim")
    folder.remove("x")
    assert sorted(os.listdir(tmp_path)) == ["folder", "victim"]


@pytest.mark.parametrize("path", ["..", "a/../b", "/etc/x", "a//b", ".", "a/\0", "a/"])
def test_no_name_leads_elsewhere(path: str, tmp_path: Path) -> None:
    """A path has only names of files and folders."""
    for use in (lambda: Folder(tmp_path).read(path, 9), lambda: Folder(tmp_path).below(path).entries()):
        with pytest.raises(NotRegularError, match="is not that of a file in it"):
            use()


@both
def test_removing_does_not_follow_links(tmp_path: Path, handles: bool) -> None:
    """A tree is removed with the links in it, and what they lead to stays."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "x").write_bytes(b"1")
    (tmp_path / "run" / "a" / "b").mkdir(parents=True)
    (tmp_path / "run" / "a" / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "run" / "a" / "file").write_bytes(b"1")
    Folder(tmp_path, "run").remove("a")
    assert os.listdir(tmp_path / "run") == []
    assert (tmp_path / "victim" / "x").exists()


def test_walking_and_removing_are_bounded(tmp_path: Path) -> None:
    """Folders that are nested deeper than hexloop makes them, and too many files, are refused with their name."""
    handle = os.open(tmp_path, os.O_RDONLY)
    for _ in range(DEEPEST + 10):
        os.mkdir("a", dir_fd=handle)
        inner = os.open("a", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    folder = Folder(tmp_path)
    for use in (lambda: list(folder.files()), lambda: folder.remove("a")):
        with pytest.raises(NotRegularError, match="more files, or deeper folders") as raised:
            use()
        assert str(raised.value.filename).startswith(str(tmp_path))
    (tmp_path / "many").mkdir()
    for number in range(10):
        (tmp_path / "many" / str(number)).touch()
    with pytest.raises(NotRegularError, match="more files"):
        list(folder.files("many", most=9))
    assert len(list(folder.files("many", most=10))) == 10
    assert len(folder.entries("many", most=3)) == 3


def test_what_is_no_file_is_not_walked_over(tmp_path: Path) -> None:
    """A logger or a hub would follow a link, and wait for a pipe."""
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(NotRegularError, match="not a regular file"):
        list(Folder(tmp_path).files())
    (tmp_path / "a" / "pipe").unlink()
    (tmp_path / "a" / "link").symlink_to("/etc")
    with pytest.raises(NotRegularError, match="it is a link"):
        list(Folder(tmp_path).files())
    assert Folder(tmp_path).entries("a") == []


@both
@pytest.mark.parametrize("links", [True, False])
def test_files_are_linked_or_copied(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handles: bool
) -> None:
    """Never a link, and never onto something that is there."""
    if not links:

        def refuse(*_: object, **__: object) -> None:
            raise NotImplementedError

        monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "source"
    source.write_bytes(b"1")
    folder = Folder(tmp_path, "held")
    folder.link(source, "a/x")
    assert folder.read("a/x", 9) == b"1"
    assert (folder.status("a/x").st_nlink > 1) == links
    with pytest.raises(FileExistsError):
        folder.link(source, "a/x")
    (tmp_path / "link").symlink_to("source")
    with pytest.raises(NotRegularError):
        folder.link(tmp_path / "link", "a/y")
    assert [each.name for each in folder.entries("a")] == ["x"]
    folder.create("a/z", b"2")
    with pytest.raises(FileExistsError):
        folder.create("a/z", b"3")
    assert folder.read("a/z", 9) == b"2"


def test_whose_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that others can write to, or that another user made, is not private; Windows does not tell."""
    folder = Folder(tmp_path)
    folder.replace("x", b"", 0o600)
    assert is_private(folder.status("x"))
    os.chmod(tmp_path / "x", 0o620)
    assert not is_private(folder.status("x"))
    os.chmod(tmp_path / "x", 0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path / "x").st_uid + 1)
    assert not is_private(folder.status("x"))
    monkeypatch.delattr(os, "geteuid")
    assert is_private(folder.status("x"))


@both
def test_a_file_that_goes_while_a_folder_is_listed_is_left_out(tmp_path: Path, handles: bool) -> None:
    """Other processes may remove files at any time."""

    class Gone:
        name = "gone"

        def stat(self, follow_symlinks: bool) -> os.stat_result:
            raise FileNotFoundError

    assert folders._entry(Gone()) is None  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        list(Folder(tmp_path, "file").files())
