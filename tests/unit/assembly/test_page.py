"""The compatibility page matches the rules that the assembly enforces."""

from __future__ import annotations

import importlib.util

import pytest

from tests.unit.assembly.page import PAGE, page


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="its absence would be a refusal")
def test_page_matches_the_rules() -> None:
    """The page is up to date; `python -m tests.unit.assembly.page` regenerates it."""
    assert PAGE.read_text(encoding="utf-8") == page()
