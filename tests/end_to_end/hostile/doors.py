"""What the public doors make of a hostile file, each call measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from attrs import frozen

SECONDS = 10.0
"""A refusal takes less than 2 s on an idle machine."""

MIB = 200
"""MiB that a refusal may take beyond the size that a file declares."""

PROGRAM = """
import contextlib, io, json, resource, sys, time, warnings
from pathlib import Path

import hexloop.app.command_line.checkpoints.changing
import hexloop.app.command_line.checkpoints.diff
import hexloop.app.command_line.checkpoints.inspecting
import hexloop.app.command_line.runs
from hexloop.app.command_line import main
from hexloop.domain.errors import HexloopError
from tests.end_to_end.small.trainers import small_trainer


def resumed(folder, source):
    trainer = small_trainer(Path(folder), max_steps=3)
    try:
        trainer.train(resume_from_checkpoint=source)
    except HexloopError as error:
        print(f"hexloop: {error}", file=sys.stderr)
        return 1
    return 0


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


small_trainer(Path(sys.argv[2], "warm"), max_steps=1).train()
for words in json.loads(sys.argv[1]):
    output, errors = io.StringIO(), io.StringIO()
    before, began = peak(), time.perf_counter()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = resumed(*words[1:]) if words[0] == "resume" else main(words)
    took = time.perf_counter() - began
    print(json.dumps([code, output.getvalue(), errors.getvalue(), took, peak() - before]))
"""


@frozen
class Answer:
    """What a door returned: its exit code and output. seconds: that it took. mib: by which the process has grown."""

    code: int
    output: str
    errors: str
    seconds: float
    mib: float

    def refuses(self, *words: str, code: int = 1) -> bool:
        """Return whether it failed with one line on standard error that has these words, and no traceback."""
        lines = [line for line in self.errors.splitlines() if line.startswith("hexloop: ")]
        last = lines[-1] if lines else ""
        return self.code == code and "Traceback" not in self.errors and all(word in last for word in words)


def ask(folder: Path, *calls: list[str | Path], declared: float = 0) -> list[Answer]:
    """Call the doors one after the other; each must answer within the bounds.

    A call is the words of a command, or "resume" with an output folder and a checkpoint. declared: MiB of the file.
    """
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([[str(word) for word in call] for call in calls]), str(folder)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answers = [Answer(*json.loads(line)) for line in ended.stdout.splitlines()]
    assert len(answers) == len(calls)
    for call, answer in zip(calls, answers, strict=True):
        assert answer.seconds < SECONDS, (call, answer)
        assert answer.mib < MIB + declared, (call, answer)
        assert "Traceback" not in answer.errors, (call, answer)
    return answers
