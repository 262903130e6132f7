"""The code on a page of the documentation, and a program that runs it.

    python tests/end_to_end/pages.py PAGE
    python tests/end_to_end/pages.py --refresh PAGE ...
    python tests/end_to_end/pages.py --home

Blocks with a title are files, which are written to the current folder; the other Python blocks run in order, as one
module. Then `hexloop train` runs with every recipe that has a title, launchers run its scripts, and each recorded
output of `hexloop` is compared: a block of text that starts with the command. It may name the examples.
With `--refresh`, the code of the files that pages show is copied into them again. With `--home`, the home page of the
site is written again from README.md.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import types
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^<!-- The code of (?P<path>\S+) -->\n\n```[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block that shows a file of the repository, for readers of the page itself. `--refresh` brings it up to date."""
RECORDED = "$ hexloop "
CHANGING = re.compile(r"\bunder 1 ms\b|\b[0-9a-f]{8}\b|-?\d[\d.e-]*( (s|min|h)\b)?( \d+ s\b)?")
"""What differs between two recordings: run names, numbers, and units of ages and durations."""
LAUNCHERS = {
    "hexloop launch": [sys.executable, "-m", "hexloop", "launch"],
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
}
"""Launchers, by their command; their last argument is one of the page's files."""
TITLE = re.compile(r'title="(?P<title>[^"]+)"')


class Block(NamedTuple):
    """A fenced block: its language, its title if it is a file, the line on which it starts, and its code."""

    language: str
    title: str | None
    line: int
    code: str


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            found["language"],
            title["title"] if (title := TITLE.search(found["options"])) else None,
            text.count("\n", 0, found.start("code")) + 1,
            found["code"],
        )
        for found in BLOCK.finditer(text)
    ]


def refreshed(text: str) -> str:
    """Return the text of a page with the present code of every file that it shows."""

    def with_code(shown: re.Match[str]) -> str:
        before = shown[0][: shown.start("code") - shown.start()]
        return f"{before}{(ROOT / shown['path']).read_text(encoding='utf-8').rstrip()}\n```"

    return SHOWN.sub(with_code, text)


def home_page(readme: str) -> str:
    """Return the home page of the site: README.md with links as the site has them, which has no page of some files."""
    there = re.sub(r"\]\(docs/", "](", readme.replace("](CHANGELOG.md)", "](changelog.md)"))
    return re.sub(r"\[([^\]]+)\]\(([A-Z]+(?:\.md)?)\)", r"\1 (`\2`)", there)


def commands_of(block: Block) -> list[list[str]]:
    """Return the arguments of each command of a shell block, without comments."""
    return [words for line in block.code.splitlines() if (words := shlex.split(line, comments=True))]


def run(page: Path) -> None:
    """Run the code of the page."""
    module = types.ModuleType("page")
    sys.modules["page"] = module
    blocks = blocks_of(page)
    for block in blocks:
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "python":
            padded = "\n" * (block.line - 1) + block.code
            exec(compile(padded, str(page), "exec"), vars(module))
    for words in (words for block in blocks if block.language == "sh" for words in commands_of(block)):
        if words[:2] == ["hexloop", "train"] and Path(words[2]).exists():
            from hexloop.app.command_line import main

            code = main(words[1:])
            assert code == 0, (words, code)
        for launcher, command in LAUNCHERS.items():
            if words[: len(launcher.split())] == launcher.split() and Path(words[-1]).exists():
                subprocess.run([*command, *words[len(launcher.split()) :]], check=True, timeout=200)
    if not Path("docs").exists():
        Path("docs").symlink_to(ROOT / "docs")
    for block in blocks:
        if block.code.startswith(RECORDED):
            record(block)


def record(block: Block) -> None:
    """Run the command of a recording; the page must show its output, apart from values that change."""
    from hexloop.app.command_line import main

    command, _, recorded = block.code.partition("\n")
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(shlex.split(command)[2:])
    assert unchanging(printed.getvalue()) == unchanging(recorded), f"line {block.line}: {printed.getvalue()}"


def unchanging(text: str) -> list[list[str]]:
    """Return the words of each line, with a placeholder for values that change."""
    return [CHANGING.sub("#", line).split() for line in text.splitlines()]


if __name__ == "__main__":
    if sys.argv[1] == "--refresh":
        for page in map(Path, sys.argv[2:]):
            page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    elif sys.argv[1] == "--home":
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        (ROOT / "docs" / "index.md").write_text(home_page(readme), encoding="utf-8")
    else:
        run(Path(sys.argv[1]))
