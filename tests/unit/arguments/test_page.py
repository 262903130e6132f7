"""The page of all arguments matches the declarations."""

from __future__ import annotations

from tests.unit.arguments.page import PAGE, page


def test_the_page_is_that_of_the_declarations() -> None:
    """Whoever changes an argument writes the page anew, with `python -m tests.unit.arguments.page`."""
    assert PAGE.read_text(encoding="utf-8") == page()
