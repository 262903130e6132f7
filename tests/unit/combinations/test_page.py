"""The page of what goes with what says what the wiring refuses."""

from __future__ import annotations

import importlib.util

import pytest

from tests.unit.combinations.page import PAGE, page


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="its absence would be a refusal")
def test_the_page_is_that_of_the_table() -> None:
    """Whoever changes a refusal writes the page anew, with `python -m tests.unit.combinations.page`."""
    assert PAGE.read_text(encoding="utf-8") == page()
