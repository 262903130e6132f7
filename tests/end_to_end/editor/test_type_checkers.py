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
WRONG = sorted(HERE.glob("wrong*.py"))
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))

PAGES = ("README", *(f"docs/{name}" for name in ("start", "checkpoints", "evaluate", "storage", "hub", "packing")))
"""Pages whose blocks, one after the other, are a program; a block with a title is a file beside it."""

PLANTED = {
    (script.name, number): rule[1]
    for script in WRONG
    for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1)
    if (rule := re.search(r"# type: ignore\[[a-z-]+\]  # (\w+)$", line))
}
"""The rule of pyright that each line of the wrong scripts breaks."""


def reported(folder: Path) -> list[dict[str, Any]]:
    """What pyright reports about the programs in a folder, in one go; comments for mypy hide nothing."""
    settings = {**SETTINGS, "enableTypeIgnoreComments": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(ended.stdout)
    assert report["summary"]["filesAnalyzed"] == len([*folder.glob("*.py")])
    diagnostics: list[dict[str, Any]] = report["generalDiagnostics"]
    return diagnostics


def shown(diagnostics: list[dict[str, Any]]) -> list[str]:
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}" for each in diagnostics
    ]


def test_users_scripts(tmp_path: Path) -> None:
    """No error in what users commonly write, and each planted error is found: misspelt arguments, wrong types, wrong
    choices and unknown attributes. mypy does the same in `make types`; see the scripts.
    """
    for script in HERE.glob("*.py"):
        shutil.copy(script, tmp_path)
    found = [(Path(each["file"]).name, each) for each in reported(tmp_path)]
    assert shown([each for name, each in found if not name.startswith("wrong")]) == []
    assert len(PLANTED) >= 30
    assert {
        (name, each["range"]["start"]["line"] + 1): each["rule"] for name, each in found if name.startswith("wrong")
    } == PLANTED


@pytest.mark.matrix
def test_documented_scripts_have_no_error(tmp_path: Path) -> None:
    """The examples, and the programs on pages."""
    for script in EXAMPLES:
        shutil.copy(script, tmp_path)
    for page in PAGES:
        code = [block for block in blocks_of(ROOT / f"{page}.md") if block.language == "python"]
        assert code, page
        for block in code:
            with (tmp_path / (block.title or f"page_{Path(page).stem}.py")).open("a", encoding="utf-8") as file:
                file.write(f"{block.code}\n")
    assert shown(reported(tmp_path)) == []
