"""The limits on what is read."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import hexloop
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.limits import limits, limits_table, reading_limits

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


def test_the_page_lists_every_limit() -> None:
    """docs/limits.md has the default and the description of each limit."""
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: (int(default.replace(",", "")), text) for name, default, text in rows} == limits_table()
