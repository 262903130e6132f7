"""The command that a run's journal records."""

from __future__ import annotations

import sys

import pytest

from hexloop.app.run.command import LAUNCHED_AS, LONGEST, command_of_process

PYTHON = "/venv/bin/python3.12"


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        ([PYTHON, "/venv/bin/hexloop", "train", "a b.yaml", "--seed", "3"], "hexloop train 'a b.yaml' --seed 3"),
        ([PYTHON, "-m", "hexloop", "train", "a.yaml"], "hexloop train a.yaml"),
        ([PYTHON, "-u", "-P", "train.py", "--lr", "1"], "python3.12 -u -P train.py --lr 1"),
        ([PYTHON, "-m", "project.train"], "python3.12 -m project.train"),
        ([PYTHON], "python3.12"),
        ([PYTHON, "-m", "ipykernel_launcher", "-f", "kernel.json"], ""),
        ([PYTHON, "-m", "hexloop", "run", "script.py"], "hexloop run script.py"),
    ],
)
def test_commands_are_those_that_a_user_typed(argv: list[str], command: str) -> None:
    """Without the path of the interpreter; none in a notebook."""
    assert command_of_process(argv, {}) == command


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (
            [PYTHON, "-u", "-P", "-m", "hexloop", "train", "a.yaml", "--seed", "3"],
            "hexloop launch --processes 2 a.yaml --seed 3",
        ),
        ([PYTHON, "-u", "train.py", "--lr", "1"], "hexloop launch --processes 2 train.py --lr 1"),
        ([PYTHON, "-u", "-P", "-m", "hexloop", "run", "train.py"], "hexloop launch --processes 2 run train.py"),
    ],
)
def test_workers_have_the_command_of_their_launcher(argv: list[str], command: str) -> None:
    """`hexloop launch` passes on its own part."""
    assert command_of_process(argv, {LAUNCHED_AS: "hexloop launch --processes 2"}) == command


def test_secrets_are_not_recorded() -> None:
    """By the name of their option, or by their form; and a command that is too long is cut."""
    argv = [PYTHON, "t.py", "--hub_token", "plain", "--api-key=abcdefgh", "s3://me:secret@host/x"]
    assert command_of_process(argv, {}) == "python3.12 t.py --hub_token '***' --api-key=*** s3://***@host/x"
    assert len(command_of_process([PYTHON, "x" * 9000], {})) == LONGEST


def test_this_process_has_a_command() -> None:
    """As the interpreter knows it."""
    assert "pytest" in command_of_process(sys.orig_argv, {}) or "python" in command_of_process(sys.orig_argv, {})
