"""Retired phrases stay out of the source, the docs and the tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("domain", "ports", "adapters", "app", "src", "docs", "tests")
FILES = sorted(
    {
        file
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".pyi", ".md", ".yaml") and file.name not in ("test_language.py", "bare_loop.py")
    }
    | set(ROOT.glob("*.md"))
)

RETIRED = {
    r"the reference( library| Trainer)?\b(?! (implementation|manual))": "transformers",
    r"\bbit for bit\b": "bitwise, bit-identical",
    r"\bbehind the loop\b": "in the background",
    r"\b(whoever|nobody|somebody|those who|he who)\b": "the caller, the user; or rephrase",
    r"\breads along\b": "no-op",
    r"\b(made )?anew\b": "again, rebuilt",
    r"\bheed(s|ed|ing)?\b": "handle, apply",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(go|goes|going|went|gone) on from\b": "resume from",
    r"\bmodel parallelism is no more\b": "is no longer supported",
    r"\bwhat goes with what\b": "compatibility",
    r"\bthere for good\b": "durable",
}
"""From a phrase that is not used, as a regular expression, to what is written instead."""


@pytest.mark.parametrize("phrase", RETIRED)
def test_a_retired_phrase_does_not_come_back(phrase: str) -> None:
    """No file of the source, the docs or the tests contains it."""
    pattern = re.compile(phrase, re.IGNORECASE)
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"write {RETIRED[phrase]}:\n" + "\n".join(found)


def test_files_are_found() -> None:
    """The scan covers the whole source and the docs."""
    assert len(FILES) > 300
