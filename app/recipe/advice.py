"""Which name was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def advice(name: str, known: Iterable[str], otherwise: str) -> str:
    """The question whether the nearest of `known` was meant, whatever the case of its letters, else `otherwise`."""
    by_lower_case = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower_case), n=1)
    return f"did you mean {by_lower_case[near[0]]}?" if near else otherwise
