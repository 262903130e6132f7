"""pyright and mypy understand users' programs, and find the errors in them before they run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.pages import blocks_of
from tests.language_server import ROOT, SETTINGS

HERE = Path(__file__).parent / "scripts"
WRONG = HERE / "wrong.py"
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGES = ("README", *(f"docs/{name}" for name in ("start", "checkpoints", "evaluate", "storage", "hub", "packing")))
"""Pages whose blocks, one after the other, are a program; a block with a title is a file beside it."""

PLANTED = {
    number: rule[1]
    for number, line in enumerate(WRONG.read_text(encoding="utf-8").splitlines(), 1)
    if (rule := re.search(r"# type: ignore\[[a-z-]+\]  # (\w+)$", line))
}
"""The rule of pyright that each line of the wrong script breaks."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What pyright reports about all scripts, in one go; comments for mypy hide nothing."""
    folder = tmp_path_factory.mktemp("scripts")
    for script in (*HERE.glob("*.py"), *EXAMPLES):
        shutil.copy(script, folder)
    for page in PAGES:
        code = [block for block in blocks_of(ROOT / f"{page}.md") if block.language == "python"]
        assert code, page
        for block in code:
            with (folder / (block.title or f"page_{Path(page).stem}.py")).open("a", encoding="utf-8") as file:
                file.write(f"{block.code}\n")
    settings = {**SETTINGS, "enableTypeIgnoreComments": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] == len([*folder.glob("*.py")])
    diagnostics: list[dict[str, Any]] = report["generalDiagnostics"]
    return diagnostics


def test_right_scripts_have_no_error(found: list[dict[str, Any]]) -> None:
    """The documented examples and pages, and a script with what users commonly write."""
    assert [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found
        if Path(each["file"]).name != WRONG.name
    ] == []


def test_each_planted_error_is_found(found: list[dict[str, Any]]) -> None:
    """Misspelt arguments, wrong types, wrong choices and unknown attributes; nothing else. mypy: see the script."""
    reported = {
        each["range"]["start"]["line"] + 1: each["rule"] for each in found if Path(each["file"]).name == WRONG.name
    }
    assert len(PLANTED) >= 20
    assert reported == PLANTED
