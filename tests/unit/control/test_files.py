"""Commands through files: each is taken once and in order, and what is not a command to this run is never obeyed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.control.files import Action, CommandFolder, RefusedCommand, RunCommand
from hexloop.domain.limits import limits


def taken(folder: CommandFolder) -> list[tuple[int, str]]:
    """Return the number of each command that is taken, with its action, or why it is refused."""
    return [
        (each.sequence, each.action.value if isinstance(each, RunCommand) else each.reason) for each in folder.take()
    ]


def sides(tmp_path: Path, run: str = "one") -> tuple[CommandFolder, CommandFolder]:
    """Return the sides of the board and of the run."""
    return CommandFolder(tmp_path, run), CommandFolder(tmp_path, run)


def write(board: CommandFolder, number: int, /, **changes: Any) -> Path:
    """Write a command by hand, with changes."""
    board.path.mkdir(parents=True, exist_ok=True)
    path = board._file(number)
    path.write_text(json.dumps({"schema": 1, "run": board.run, "sequence": number, "action": "pause", **changes}))
    return path


def test_commands_are_taken_once_and_in_order(tmp_path: Path) -> None:
    """Their files are removed, and numbers continue, also in another process of the board."""
    board, run = sides(tmp_path)
    assert taken(run) == []
    assert [board.give(each) for each in (Action.PAUSE, Action.SAVE, Action.RESUME)] == [1, 2, 3]
    assert board.waiting() == [1, 2, 3]
    assert taken(run) == [(1, "pause"), (2, "save"), (3, "resume")]
    assert taken(run) == []
    assert CommandFolder(tmp_path, "one").give(Action.STOP) == 4
    assert taken(run) == [(4, "stop")]
    assert board.last_taken() == 4
    assert stat.S_IMODE(os.stat(board.path).st_mode) == 0o700


def test_two_boards_never_use_one_number(tmp_path: Path) -> None:
    """The file of a number is created once, and complete."""
    one, other = sides(tmp_path)
    write(one, 1)
    other.last_taken()
    assert one.give(Action.SAVE) == 2
    assert not [name for name in os.listdir(one.path) if name.startswith(".")]


def test_a_command_counts_as_taken_before_it_is_obeyed(tmp_path: Path) -> None:
    """A run that is killed in between does not obey it a second time, nor what was given before it started again."""
    board, run = sides(tmp_path)
    board.give(Action.STOP)
    next(run.take())
    board.give(Action.STOP)
    again = CommandFolder(tmp_path, "one")
    assert again.begin() == [RefusedCommand(2, "it was given before the run started")]
    assert taken(again) == []
    assert board.give(Action.SAVE) == 3
    assert taken(again) == [(3, "save")]


def test_a_command_that_comes_back_is_refused(tmp_path: Path) -> None:
    """As a tool that synchronizes folders may restore its file."""
    board, run = sides(tmp_path)
    board.give(Action.STOP)
    copy = board._file(1).read_bytes()
    assert taken(run) == [(1, "stop")]
    board._file(1).write_bytes(copy)
    assert taken(run) == [(1, "its number is not above 1, the last that was taken")]
    again = CommandFolder(tmp_path, "one")
    again.begin()
    board._file(1).write_bytes(copy)
    assert taken(again)[0][1].startswith("its number is not above 1")


def test_a_command_to_another_run_stays(tmp_path: Path) -> None:
    """Two runs that share a folder each take their own; a file with another run's name in it is refused."""
    one, other = CommandFolder(tmp_path, "one"), CommandFolder(tmp_path, "other")
    one.give(Action.STOP)
    assert taken(other) == []
    other.path.joinpath(other._file(5).name).write_bytes(one._file(1).read_bytes())
    assert taken(other) == [(5, "its run is 'one', not 'other'")]
    assert taken(one) == [(1, "stop")]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"action": "delete"}, "its action is 'delete'"),
        ({"action": ["stop"]}, "its action is ['stop']"),
        ({"sequence": 8}, "its sequence is 8, not 7"),
        ({"sequence": True}, "its sequence is True"),
        ({"schema": 2}, "its schema is 2, not 1"),
        ({"run": "x" * 500}, "its run is 'xxx"),
        ({"more": 1}, "it is not a command"),
        ({"action": "x" * 5000}, "it is longer than 4096 bytes"),
    ],
)
def test_what_is_not_a_command_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    """With the reason, and removed; it does not use up its number."""
    board, run = sides(tmp_path)
    path = write(board, 7, **changes)
    ((number, words),) = taken(run)
    assert number == 7
    assert words.startswith(reason)
    assert len(words) < 200
    assert not path.exists()
    assert run.last_taken() == 0


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"\xff", b'{"schema": 1', b"[" * 4000, b'{"a": NaN}'])
def test_garbage_is_refused(tmp_path: Path, data: bytes) -> None:
    """Without an error."""
    board, run = sides(tmp_path)
    write(board, 1).write_bytes(data)
    assert [number for number, _ in taken(run)] == [1]
    assert taken(run) == []


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    """A link is removed and what it leads to is not; a pipe does not block; a folder is refused once."""
    board, run = sides(tmp_path)
    real = write(board, 1).rename(tmp_path / "elsewhere.json")
    board._file(1).symlink_to(real)
    os.mkfifo(board._file(2))
    board._file(3).mkdir()
    assert [words.split(",")[0] for _, words in taken(run)] == [
        "it is a link",
        "it is not a regular file",
        "it is not a regular file",
    ]
    assert taken(run) == []
    assert real.exists()


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    """Neither to read commands nor to write them."""
    (tmp_path / "real").mkdir()
    (tmp_path / "output" / ".hexloop").mkdir(parents=True)
    (tmp_path / "output" / ".hexloop/commands").symlink_to(tmp_path / "real")
    board, run = sides(tmp_path / "output")
    with pytest.raises(OSError, match="it is a link"):
        board.give(Action.STOP)
    write(board, 1)
    assert taken(run) == []
    run.beat()
    assert run.listened_at() is None


def test_many_files_do_not_matter(tmp_path: Path) -> None:
    """Names that are not commands to this run are skipped, and numbers beyond all bounds."""
    board, run = sides(tmp_path)
    board.give(Action.SAVE)
    for name in ("x", "1.json", f"{run._key}-01.json", f"{run._key}-{10**15}.json", f"{run._key}--1.json"):
        (board.path / name).write_text("{}")
    assert taken(run) == [(1, "save")]
    assert board.give(Action.SAVE) == 2


def test_what_was_taken_is_read_with_care(tmp_path: Path) -> None:
    """Garbage in the place of the last number counts as none."""
    board, run = sides(tmp_path)
    board.path.mkdir(parents=True)
    for data in (b"[]", b"{", b'{"run": "one", "sequence": "x"}', b'{"run": "two", "sequence": 5}', b" " * 10_000):
        run._taken.write_bytes(data)
        assert run.last_taken() == 0
    assert limits().command_bytes < 10_000


def test_a_run_reports_that_it_listens(tmp_path: Path) -> None:
    """Where there is a folder of commands; it makes none."""
    board, run = sides(tmp_path)
    run.beat()
    assert board.listened_at() is None
    assert not board.path.exists()
    board.give(Action.SAVE)
    run.beat()
    os.utime(run._taken, (1, 1))
    run.beat()
    assert (board.listened_at() or 0) > 1
    assert board.last_taken() == 0
