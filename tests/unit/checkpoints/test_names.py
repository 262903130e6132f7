"""Names of checkpoints, staging folders, markers and sessions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.checkpoints.manifest import (
    Owner,
    checkpoint_name,
    free_name,
    may_be_unfinished,
    new_session,
    stays_inside,
    step_of,
)

NEITHER = [
    "checkpoint",
    "checkpoint-",
    "checkpoint--1",
    "checkpoint-01",
    "checkpoint-1 ",
    "my-checkpoint-1",
    "runs",
    "",
]


@given(st.integers(0, 10**16 - 1))
def test_a_name_contains_its_step(step: int) -> None:
    """A checkpoint has the usual name, and its step can be parsed from it."""
    assert checkpoint_name(step) == f"checkpoint-{step}"
    assert step_of(checkpoint_name(step)) == step


@pytest.mark.parametrize("digits", [17, 5_000])
def test_a_name_of_more_digits_than_a_step_has_is_none(digits: int) -> None:
    """It is not the name of a checkpoint."""
    assert step_of(f"checkpoint-{'1' * digits}") is None


@pytest.mark.parametrize("name", NEITHER)
def test_other_names_are_not_checkpoints(name: str) -> None:
    """Any other name has no step, and is never taken for an unfinished checkpoint."""
    assert step_of(name) is None
    assert not may_be_unfinished(name)


@given(st.text(), st.text(alphabet="0123456789abcdef", min_size=1), st.integers(min_value=0))
def test_unfinished_folders_do_not_look_like_checkpoints(run: str, session: str, step: int) -> None:
    """Markers, staging folders and quarantined checkpoints have no checkpoint name."""
    owner = Owner(run, session)
    name = checkpoint_name(step)
    for other in (owner.mark, owner.staging_name(name), free_name(name, ())):
        assert step_of(other) is None
        assert stays_inside(other)
        assert "checkpoint-" not in other[: len("checkpoint-")]


@given(st.text(), st.text())
def test_a_run_recognizes_its_own_leftovers(run: str, other: str) -> None:
    """Leftovers of this and earlier sessions of a run are its own; those of later sessions and other runs are not."""
    early, late = sorted((new_session(), new_session()))
    for name in (Owner(run, early).mark, Owner(run, early).staging_name("checkpoint-7")):
        assert Owner(run, late).left_behind(name)
        assert Owner(run, early).left_behind(name)
        assert Owner(other, late).left_behind(name) == (other == run)
    assert not Owner(run, early).left_behind(Owner(run, late).staging_name("checkpoint-7"))
    assert not Owner(run, late).left_behind("checkpoint-7")


@given(st.text(), st.text())
def test_a_run_that_is_alone_may_remove_all_earlier_leftovers(run: str, other: str) -> None:
    """Leftovers of any run may be removed, except those of later sessions."""
    early, late = sorted((new_session(), new_session()))
    assert Owner(run, late, exclusive=True).left_behind(Owner(other, early).staging_name("checkpoint-7"))
    assert not Owner(run, early, exclusive=True).left_behind(Owner(other, late).staging_name("checkpoint-7"))
    assert not Owner(run, late, exclusive=True).left_behind("checkpoint-7")


def test_later_sessions_sort_after_earlier_ones() -> None:
    """Session names are unique and in chronological order."""
    sessions = [new_session() for _ in range(50)]
    assert len(set(sessions)) == 50
    assert [session[:16] for session in sessions] == sorted(session[:16] for session in sessions)


def test_a_free_name_is_unused() -> None:
    """Several folders that are moved out of the way of one checkpoint get different names, all recognized as such."""
    taken: set[str] = set()
    for _ in range(3):
        taken.add(free_name("checkpoint-7", taken))
    assert taken == {f"replaced-{number}-checkpoint-7" for number in (1, 2, 3)}
    assert all(map(may_be_unfinished, taken))


@pytest.mark.parametrize("path", ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\0b"])
def test_a_path_that_may_leave_the_folder_is_detected(path: str) -> None:
    """Absolute paths, empty names, dots, and separators of other systems are refused."""
    assert not stays_inside(path)


@pytest.mark.parametrize("path", ["a", "a/b/c", "...", "a.b", ".a", " "])
def test_a_plain_path_stays_inside(path: str) -> None:
    """A path of plain names cannot leave the folder."""
    assert stays_inside(path)
