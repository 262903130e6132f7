"""What the public doors make of a hostile file, measured in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from attrs import frozen

SECONDS = 10.0
"""A refusal takes less than 2 s on an idle machine."""

MIB = 200
"""MiB that a refusal may take beyond the size that a file declares."""

PROGRAM = """
import contextlib, io, json, os, resource, signal, sys, time
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


def answer(calls):
    for words in calls:
        output, errors = io.StringIO(), io.StringIO()
        before, began = peak(), time.perf_counter()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = resumed(*words[1:]) if words[0] == "resume" else main(words)
        took = time.perf_counter() - began
        print(json.dumps([code, output.getvalue(), errors.getvalue(), took, peak() - before]), flush=True)


small_trainer(Path(sys.argv[1], "warm"), max_steps=1).train()
for line in sys.stdin:
    if not (child := os.fork()):
        signal.alarm(120)  # ends a call that hangs
        answer(json.loads(line))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)
"""


@cache
def server() -> subprocess.Popen[str]:
    """Return a process that has imported everything and forks one for each request, so that none waits for imports."""
    folder = tempfile.mkdtemp()
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, folder],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def stop() -> None:
        started.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return started


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


def ask(*calls: list[str | Path], declared: float = 0) -> list[Answer]:
    """Call the doors one after the other; each must answer within the bounds.

    A call is the words of a command, or "resume" with an output folder and a checkpoint. declared: MiB of the file.
    """
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([[str(word) for word in call] for call in calls]) + "\n")
    process.stdin.flush()
    answers = []
    while isinstance(read := json.loads(process.stdout.readline()), list):
        answers.append(Answer(*read))
    assert read == 0, f"the process ended with {read} after {len(answers)} answers"
    assert len(answers) == len(calls)
    for call, answer in zip(calls, answers, strict=True):
        assert answer.seconds < SECONDS, (call, answer)
        assert answer.mib < MIB + declared, (call, answer)
        assert "Traceback" not in answer.errors, (call, answer)
    return answers
