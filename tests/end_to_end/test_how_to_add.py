"""The page "How to add": each section is applied to a copy of the source, where its check then runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.pages import ROOT, Block, blocks_of

PAGE = ROOT / "docs" / "how-to-add.md"
FOLDERS = ("domain", "ports", "adapters", "app")
CHECKS = [block for block in blocks_of(PAGE) if (block.title or "").startswith("check_")]
QUICK = ("check_argument.py", "check_storage.py")
"""Sections that `make test` follows, too."""


def section_of(check: Block) -> list[Block]:
    """Return the blocks of a check's section that come before it."""
    text = PAGE.read_text(encoding="utf-8")
    starts = [text.count("\n", 0, heading.start()) + 1 for heading in re.finditer("^## ", text, re.MULTILINE)]
    start = max(line for line in starts if line < check.line)
    return [block for block in blocks_of(PAGE) if start < block.line < check.line]


def copy_source(folder: Path) -> Path:
    """Copy the package without its links; return it."""
    package = folder / "hexloop"
    package.mkdir(parents=True)
    for file in (ROOT / "src" / "hexloop").glob("*.py*"):
        shutil.copy(file, package)
    for source in (*(ROOT / name for name in FOLDERS), ROOT / "src" / "hexloop" / "transformers"):
        shutil.copytree(source, package / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def apply(block: Block, package: Path) -> None:
    """Write a new file, or apply a hunk of a diff, which must match the file in exactly one position."""
    assert block.title is not None
    file = package / block.title
    if block.language == "python":
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.code, encoding="utf-8")
        return
    lines = block.code.splitlines()
    old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in "- ")
    new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in "+ ")
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{block.title} has no longer, or more than once:\n{old}"
    file.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(block, id=str(block.title), marks=[] if block.title in QUICK else [pytest.mark.matrix])
        for block in CHECKS
    ],
)
def test_following_a_section_works(check: Block, tmp_path: Path) -> None:
    """The check of a section fails without the section's changes, and passes with them."""
    package = copy_source(tmp_path / "source")
    (tmp_path / "empty").mkdir()
    program = tmp_path / "check.py"
    program.write_text(check.code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "OMP_NUM_THREADS": "1"}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", str(program)]
        return subprocess.run(
            command, cwd=tmp_path / "empty", env=environment, capture_output=True, text=True, check=False
        )

    assert run().returncode != 0
    changes = section_of(check)
    assert changes
    for block in changes:
        apply(block, package)
    ended = run()
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_every_kind_of_addition_has_a_section() -> None:
    """One section for each kind, from an argument to a policy of saving."""
    kinds = {str(block.title).removeprefix("check_").removesuffix(".py") for block in CHECKS}
    assert kinds == {
        *("argument", "optimizer", "tracker", "device", "precision", "storage", "engine", "override", "saved_weights"),
        "search",
    }
