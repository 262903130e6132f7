"""The page of all arguments matches the declarations."""

from __future__ import annotations

from tests.unit.arguments.page import PAGE, page


def test_page_matches_the_declarations() -> None:
    """The page is up to date; `python -m tests.unit.arguments.page` regenerates it."""
    assert PAGE.read_text(encoding="utf-8") == page()
