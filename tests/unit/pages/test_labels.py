"""Tags and notes of a run: written whole, read within bounds, through no link."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.labels import (
    LARGEST,
    LONGEST_NOTES,
    LONGEST_TAG,
    MOST_TAGS,
    LabelChange,
    Labels,
    change_in,
    change_labels,
    labels_in,
    read_labels,
)
from hexloop.domain.errors import ConfigurationError

FILE = ".hexloop/labels.json"


def test_changes_are_read_back(tmp_path: Path) -> None:
    """Tags are added and removed, and what a change does not name stays."""
    change_labels(tmp_path, LabelChange(add=("a", "b"), notes="good"))
    change_labels(tmp_path, LabelChange(add=("c",), remove=("a",), hidden=True))
    assert read_labels(tmp_path) == Labels(("b", "c"), "good", True)
    assert [path.name for path in (tmp_path / ".hexloop").iterdir()] == ["labels.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"schema": 2, "tags": ["a"]}',
        b"\xff",
        b'{"schema": 1, "tags": ' + b"[" * 10**5,
        b"x" * (LARGEST + 1),
    ],
)
def test_a_file_that_is_not_valid_has_no_labels(tmp_path: Path, content: bytes) -> None:
    """It is not refused, because a page must be shown."""
    (tmp_path / ".hexloop").mkdir()
    (tmp_path / FILE).write_bytes(content)
    assert read_labels(tmp_path) == Labels()


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Neither to read labels, nor to write them: not the file, and not the hidden folder."""
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    (outside / "labels.json").write_text(json.dumps({"schema": 1, "tags": ["secret"], "notes": ""}))
    (run / ".hexloop").mkdir(parents=True)
    (run / FILE).symlink_to(outside / "labels.json")
    assert read_labels(run) == Labels()
    change_labels(run, LabelChange(add=("mine",)))  # replaces the link itself
    assert "mine" not in (outside / "labels.json").read_text()
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ".hexloop").symlink_to(outside)
    assert read_labels(linked) == Labels()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        change_labels(linked, LabelChange(add=("mine",)))


@pytest.mark.parametrize(
    "document",
    [
        {"add": "a"}, {"add": [1]}, {"remove": {}}, {"notes": 1}, {"hidden": 1}, {"other": []}, {"add": [""]},
        {"add": ["a,b"]}, {"add": ["\n"]}, {"add": ["\x1b[31m"]}, {"add": ["x" * (LONGEST_TAG + 1)]},
        {"notes": "x" * (LONGEST_NOTES + 1)},
    ],
)  # fmt: skip
def test_a_change_that_is_not_valid_is_refused(document: dict[str, Any]) -> None:
    """With what is wrong."""
    with pytest.raises(ConfigurationError):
        change_in(document)


def test_a_run_has_few_tags(tmp_path: Path) -> None:
    """More are refused, and those that there are stay."""
    change_labels(tmp_path, LabelChange(add=tuple(map(str, range(MOST_TAGS)))))
    with pytest.raises(ConfigurationError, match=f"at most {MOST_TAGS}"):
        change_labels(tmp_path, LabelChange(add=("one more",)))
    assert len(read_labels(tmp_path).tags) == MOST_TAGS
    assert change_labels(tmp_path, LabelChange(add=("another",), remove=("0",))).tags[-1] == "another"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(
    st.fixed_dictionaries(
        {"schema": st.just(1)}, optional={"tags": JSON | st.lists(st.text()), "notes": JSON, "hidden": JSON}
    )
)
def test_what_is_read_is_bounded(document: Any) -> None:
    """Whatever the file has."""
    labels = labels_in(document)
    assert len(labels.tags) == len(set(labels.tags)) <= MOST_TAGS
    assert all(tag and len(tag) <= LONGEST_TAG and tag.isprintable() for tag in labels.tags)
    assert len(labels.notes) <= LONGEST_NOTES
