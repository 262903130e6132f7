"""The index of media: what a line may hold, what replaces what, and what is kept under a limit on the size."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hexloop.domain.log_entries import entry_of, item_of, remains
from hexloop.domain.media import (
    ENDINGS,
    KINDS,
    LONGEST_NAME,
    MOST_TOGETHER,
    KeptMedia,
    is_file_name,
    is_sound_content,
    kept_after_resume,
    kept_entry,
    kept_of,
    newest,
    within,
)
from hexloop.ports.logger import Fact, Media

CONTENTS = {"image": {"width": 3, "height": 2}, "audio": {"rate": 8000, "seconds": 1.5, "channels": 2}}
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=LONGEST_NAME)
STEPS = st.integers(0, 2**53 - 1)


@st.composite
def media(draw: st.DrawFn, names: st.SearchStrategy[str] = NAMES, steps: st.SearchStrategy[int] = STEPS) -> Media:
    kind = draw(st.sampled_from(KINDS))
    file = f"{draw(st.integers(0, 2**128 - 1)):032x}.{ENDINGS[kind]}"
    epoch, index = draw(st.floats(0, 1e6)), draw(st.integers(0, MOST_TOGETHER - 1))
    size = draw(st.integers(0, 1 << 20))
    content = cast("Mapping[str, Fact]", CONTENTS.get(kind, {}))
    return Media(draw(names), draw(steps), epoch, kind, content, index, draw(NAMES), file, size)


def kept(*sizes: tuple[str, int, int]) -> list[KeptMedia]:
    """Return entries by name, step and size."""
    file = f"{0:032x}.json"
    return [
        KeptMedia("run", 1.0, Media(name, step, 0.0, "text", {}, file=file, size=size)) for name, step, size in sizes
    ]


@given(media(), st.floats(0, 1e10))
def test_a_line_is_read_back(one: Media, time: float) -> None:
    """In the index, and in the spool of loggers."""
    line = KeptMedia("run", time, one)
    assert kept_of(json.loads(json.dumps(kept_entry(line)))) == line
    assert item_of(json.loads(json.dumps(entry_of(one, ["a logger"])))) == one


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    media(), st.sampled_from(["run", "time", "name", "step", "epoch", "kind", "content", "index", "file", "size"]), ANY
)
def test_a_line_with_any_value_raises_nothing(one: Media, name: str, value: object) -> None:
    """It is a line, or it is not."""
    found = kept_of({**kept_entry(KeptMedia("run", 1.0, one)), name: value})
    assert found is None or found.media.kind in KINDS


@pytest.mark.parametrize(
    "changed",
    [
        {"file": "../../etc/passwd"},
        {"file": "/etc/passwd"},
        {"file": f"{0:032x}.png"},  # of another kind
        {"file": ""},
        {"file": None},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "a" * 1000},
        {"name": "\ud800"},
        {"kind": "video"},
        {"kind": ["text"]},
        {"step": -1},
        {"step": True},
        {"step": 1 << 60},
        {"index": 100},
        {"size": 1 << 40},
        {"epoch": float("nan")},
        {"content": {"text": "not in the index"}},
        {"run": 3},
        {"time": "now"},
    ],
)
def test_a_line_that_leads_elsewhere_or_is_out_of_bounds_is_left_out(changed: dict[str, object]) -> None:
    """Each field is checked."""
    good = {**kept_entry(kept(("a", 1, 5))[0])}
    assert kept_of(good) is not None
    assert kept_of({**good, **changed}) is None


@given(media(), st.sets(st.sampled_from([*kept_entry(kept(("a", 1, 5))[0])])))
def test_a_line_without_a_field_that_is_needed_is_left_out(one: Media, missing: set[str]) -> None:
    """Only the index, the caption and the size have a default."""
    entry = kept_entry(KeptMedia("run", 1.0, one))
    found = kept_of({name: value for name, value in entry.items() if name not in missing})
    assert (found is not None) == (missing <= {"index", "caption", "size"})


@given(ANY)
def test_json_that_does_not_describe_a_medium_is_left_out(value: object) -> None:
    """Whatever a line holds, also if it is no object."""
    assert kept_of(value) is None


@given(st.text(), st.sampled_from(KINDS))
def test_only_digests_are_names_of_files(name: str, kind: str) -> None:
    """Nothing with a separator, a dot too many, or another ending."""
    assert not is_file_name(name, kind) or (len(name.partition(".")[0]) == 32 and "/" not in name)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("text", {"text": 3}),
        ("text", {"text": "a" * 200_000}),
        ("text", []),
        ("table", {"columns": ["a"], "rows": [[1, 2]]}),
        ("table", {"columns": ["a"], "rows": [[{"html": "<b>"}]]}),
        ("table", {"columns": ["a\n"], "rows": []}),
        ("table", {"columns": ["a"] * 51, "rows": []}),
        ("table", {"columns": ["a"], "rows": [[1]] * 501}),
        ("table", {"columns": ["a"], "rows": [[float("inf")]]}),
        ("table", {"columns": "a", "rows": [[1]]}),
        ("table", {"columns": ["a"], "rows": {}}),
        ("table", {"columns": ["a"]}),
        ("table", {"rows": [[1]]}),
        ("image", {"width": 0, "height": 1}),
        ("image", {"width": 1 << 20, "height": 1 << 20}),
        ("image", {"width": True, "height": 1}),
        ("histogram", {"edges": [0, 1], "counts": [1, 2]}),
        ("histogram", {"edges": [1, 0], "counts": [1]}),
        ("histogram", {"edges": [0, float("nan")], "counts": [1]}),
        ("histogram", {"edges": [0, 1], "counts": [-1]}),
        ("histogram", {"edges": [], "counts": []}),
        ("histogram", {"edges": [0, 1], "counts": {"0": 1}}),
        ("histogram", {"edges": [0, 1]}),
        ("histogram", {"counts": [1]}),
        ("audio", {"rate": 0, "seconds": 1.0, "channels": 1}),
        ("audio", {"rate": 8000, "seconds": -1.0, "channels": 1}),
        ("audio", {"rate": 8000, "seconds": 1.0, "channels": 99}),
    ],
)
def test_content_out_of_bounds_is_refused(kind: str, content: object) -> None:
    """Whatever a page would have to draw is bounded."""
    assert not is_sound_content(kind, content)  # type: ignore[arg-type]


def test_a_later_line_replaces_one_of_the_same_place() -> None:
    """By run, name, step and index; the order stays."""
    lines = kept(("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("a", 1, 4))
    assert [each.media.size for each in newest(lines)] == [2, 3, 4]


@given(st.lists(media(st.sampled_from("ab"), st.integers(0, 9))), st.integers(0, 9))
def test_a_resume_drops_what_comes_again(found: list[Media], step: int) -> None:
    """What its run logged after the step, and nothing of another run; in the index as in the spool."""
    lines = [KeptMedia(run, 1.0, each) for each in found for run in ("own", "other")]
    left = kept_after_resume(lines, "own", step)
    assert [each.media for each in left if each.run == "other"] == found
    assert [each.media for each in left if each.run == "own"] == [each for each in found if each.step <= step]
    assert [each for each in found if remains(entry_of(each), step)] == [each for each in found if each.step <= step]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(1, 100)), max_size=60),
    st.integers(0, 3000),
)
def test_what_is_kept_fits_and_is_spread(found: Sequence[tuple[str, int, int]], most: int) -> None:
    """Everything if it fits; otherwise of each name the first and the last step, as long as others can go."""
    lines = newest(kept(*found))
    sizes = {each.key: each.media.size for each in lines}
    left = within(lines, most, sizes)
    assert sum(sizes[each.key] for each in left) <= most
    assert [each for each in lines if each in left] == left
    if sum(sizes.values()) <= most:
        assert left == lines
    for name in "abc":
        before = sorted({each.media.step for each in lines if each.media.name == name})
        after = sorted({each.media.step for each in left if each.media.name == name})
        if len(after) > 2:
            assert (after[0], after[-1]) == (before[0], before[-1])
