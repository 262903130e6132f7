"""Shell completion, in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.command_line.commands import Commands

LINES = {
    "hexloop checkp": ["checkpoints"],
    "hexloop checkpoints ": [
        "list", "verify", "sign", "show", "diff", "prune", "consolidate", "import", "export", "merge",
    ],
    "hexloop train rec": ["recipe.yaml"],
    "hexloop train recipe.yaml --learning_r": ["--learning_rate"],
    "hexloop train recipe.yaml --save_strategy e": ["epoch"],
    "hexloop train recipe.yaml --bf16 ": ["true", "false"],
    "hexloop train recipe.yaml --report_to ten": ["tensorboard"],
    "hexloop train recipe.yaml --limit recipe_b": ["recipe_bytes="],
    "hexloop launch --proc": ["--processes"],
    "hexloop launch --processes 2 recipe.yaml --learning_r": ["--learning_rate"],
    "hexloop checkpoints list ru": ["runs/"],
    "hexloop completion z": ["zsh"],
    "hexloop train recipe.yaml --unheard": [],
}  # fmt: skip
"""What completes the end of each line, in a folder with a recipe and a folder of runs."""

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)}

WITHOUT_TORCH = """
import sys
class Refuses:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "transformers", "accelerate"):
            raise AssertionError(f"{name} is imported")
sys.meta_path.insert(0, Refuses())
from hexloop.app.command_line import main
raise SystemExit(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe, a folder of runs, and `hexloop` in bin, which must not import torch."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "recipe.yaml").write_text("model: project.Model\n")
    script = tmp_path / "bin" / "hexloop"
    script.parent.mkdir()
    program = tmp_path / "bin" / "program.py"
    program.write_text(WITHOUT_TORCH)
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
    script.chmod(0o755)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {**ENVIRONMENT, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}


def shell_or_skip(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_bash(folder: Path) -> None:
    """Commands, options, their values and files are completed, also after the recipe of `launch`."""
    bash = shutil.which("bash")
    assert bash is not None
    calls = "".join(
        f"COMP_LINE={shlex.quote(line)} COMP_POINT={len(line)} COMP_TYPE=9 COMPREPLY=()\n"
        '_python_argcomplete hexloop; printf "%s\\n" "${COMPREPLY[*]}"\n'
        for line in LINES
    )
    program = f'eval "$(hexloop completion bash)"\ncomplete -p hexloop >/dev/null || exit 1\n{calls}'
    ended = subprocess.run(
        [bash, "--norc", "-c", program], cwd=folder, env=environment(folder), capture_output=True, text=True, check=True
    )
    found = dict(zip(LINES, (line.split() for line in ended.stdout.splitlines()), strict=True))
    assert found == LINES, ended.stderr


@pytest.mark.parametrize("line", list(LINES)[:6])
def test_fish(folder: Path, line: str) -> None:
    """The same is shown in fish, with the help beside each."""
    program = f"hexloop completion fish | source\ncomplete -C {shlex.quote(line)}"
    ended = subprocess.run(
        [shell_or_skip("fish"), "--no-config", "-c", program],
        cwd=folder, env=environment(folder), capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown = dict(row.partition("\t")[::2] for row in ended.stdout.splitlines())
    assert sorted(shown) == sorted(LINES[line])
    if line == "hexloop checkp":
        assert shown["checkpoints"] == "list, verify, sign, compare, prune and convert checkpoints"


def test_zsh(folder: Path) -> None:
    """Tab completes what was typed, in a shell whose configuration has not set up completion."""
    zsh = shell_or_skip("zsh")
    ours, theirs = pty.openpty()
    start = 'PS1="ready> "; compaudit() { return 0 }; eval "$(hexloop completion zsh)"\n'
    with subprocess.Popen(
        [zsh, "-f", "-i"], cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        try:
            os.write(ours, start.encode())
            seen = read_until(ours, "", r"ready> $")
            for typed, expected in {
                "hexloop checkp\t": r"hexloop checkpoints $",
                "hexloop train recipe.yaml --learning_r\t": r"--learning_rate $",
                "hexloop train recipe.yaml --save_strategy e\t": r"--save_strategy epoch $",
            }.items():
                os.write(ours, typed.encode())
                seen = read_until(ours, "", expected)
                os.write(ours, b"\x15")  # erases the line
        finally:
            process.kill()
    os.close(ours)
    assert seen


def read_until(terminal: int, seen: str, expected: str) -> str:
    """Read what a shell shows until it ends with what is expected."""
    while not re.search(expected, re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|[\b\r]", "", seen)):
        ready, _, _ = select.select([terminal], [], [], 60)
        assert ready, f"the shell shows {seen!r}"
        seen += os.read(terminal, 2**16).decode(errors="replace")
    return seen


def test_an_unknown_shell_is_refused(commands: Commands) -> None:
    """The message lists the shells."""
    outcome = commands("completion", "csh")
    assert outcome.code == 2
    assert "bash" in outcome.errors
    assert outcome.output == ""
