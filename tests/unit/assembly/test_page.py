"""The compatibility page matches the rules that the assembly enforces."""

from __future__ import annotations

import importlib.util

import pytest

from hexloop.adapters.device.torch.kinds import KINDS
from tests.unit.assembly.page import DEVICES, KNOWN, PAGE, page, with_devices


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="its absence would be a refusal")
def test_page_matches_the_rules() -> None:
    """The page is up to date; `python -m tests.unit.assembly.page` regenerates it."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_table_of_devices_matches_their_kinds() -> None:
    """The table is up to date, with a row for each kind; the same command regenerates it."""
    text = DEVICES.read_text(encoding="utf-8")
    assert text == with_devices(text)
    assert KNOWN.keys() <= KINDS.keys()
    assert text.count("\n| `") == len(KINDS) - 1
