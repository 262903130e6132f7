"""The limits on what is read."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from attrs import fields

import hexloop
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.limits import Limits, limits, limits_in, reading_limits

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"


def test_limits_change_in_a_block() -> None:
    """Limits change at the start of the block, in every thread, and are restored at its end, also after an error."""
    before, seen = limits(), list[int]()

    def in_block() -> None:
        with hexloop.reading_limits(document_depth=7, note_bytes=8) as changed:
            thread = threading.Thread(target=lambda: seen.append(limits().document_depth))
            thread.start()
            thread.join()
            assert (changed.document_depth, limits().note_bytes) == (7, 8)
            raise KeyError

    with pytest.raises(KeyError):
        in_block()
    assert seen == [7]
    assert limits() == before


def test_limits_change_at_a_call() -> None:
    """Without a block, limits stay changed."""
    changed = reading_limits(document_depth=7)
    assert limits().document_depth == 7
    changed.__exit__(None, None, None)


def test_unknown_and_invalid_limits_are_refused_together() -> None:
    """The error lists every problem, and no limit has changed."""
    before = limits()
    with pytest.raises(ConfigurationError) as raised:
        reading_limits(document_depht=7, note_bytes=0, line_bytes=1.5, document_values=True)  # type: ignore[arg-type]
    assert len(raised.value.problems) == 4
    assert "no limit 'document_depht'" in raised.value.problems[0]
    assert "note_bytes is 0; set it to a whole number" in raised.value.problems[1]
    assert limits() == before


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("document_bytes=256MiB", "document_bytes", 1 << 28),
        ("document_bytes=2 kB", "document_bytes", 2000),
        ("note_bytes=7B", "note_bytes", 7),
        ("recipe_values=1_000,000", "recipe_values", 1_000_000),
        ("import_seconds=60", "import_seconds", 60),
    ],
)
def test_a_limit_is_read_from_text(text: str, name: str, value: int) -> None:
    """Sizes may have a unit."""
    assert limits_in([text]) == {name: value}


def test_problems_of_texts_are_told_together() -> None:
    """Unknown names, missing and invalid values, and units of what is not a size."""
    with pytest.raises(ConfigurationError) as raised:
        limits_in(["deep=1", "document_depth", "document_depth=2kB", "document_bytes=2iB", "note_bytes=0"])
    assert [problem[:42] for problem in raised.value.problems] == [
        "You chose the limit 'document_depth'; writ",
        "You chose the limit 'document_depth=2kB'; ",
        "You chose the limit 'document_bytes=2iB'; ",
        "There is no limit 'deep'. The limits are d",
        "The limit note_bytes is 0; set it to a who",
    ]
    assert "or a size such as 256MiB" in raised.value.problems[2]


def test_the_page_lists_every_limit() -> None:
    """docs/limits.md has the default and the description of each limit."""
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: (int(default.replace(",", "")), text) for name, default, text in rows} == {
        each.name: (getattr(Limits(), each.name), each.metadata["help"]) for each in fields(Limits)
    }
