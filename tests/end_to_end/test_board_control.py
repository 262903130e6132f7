"""Runs that the board commands: real runs, through the files in their folders."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainerCallback
from hexloop.adapters.journal import read
from hexloop.adapters.storage.memory import MemoryStorage
from hexloop.app.control.files import Action, CommandFolder
from hexloop.app.pages.reading import read_runs
from hexloop.app.pages.watching import RunIndex
from tests.end_to_end.small.trainers import history, same_weights, small_trainer, weights

LIVE: dict[str, Any] = {"save_strategy": "steps", "save_steps": 10**6, "num_train_epochs": 10**6}


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def outcomes(folder: Path) -> list[tuple[int, str]]:
    """Return what the journal says of commands: number and outcome."""
    return [(note["sequence"], note["outcome"]) for note in notes(folder) if note["kind"] == "command"]


def notes(folder: Path) -> list[dict[str, Any]]:
    return read(folder / ".hexloop/journal.jsonl") if (folder / ".hexloop/journal.jsonl").exists() else []


class Gate(TrainerCallback):
    """Holds a run at the end of a step, so that a command is given before the next one."""

    def __init__(self, step: int) -> None:
        self.step, self.opened = step, threading.Event()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            assert self.opened.wait(60)


class Started:
    """A run in a thread, and the board's side of it."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.folder, self.trainer = folder, small_trainer(folder, **{**LIVE, "max_steps": 10**6, **given})
        self.thread = threading.Thread(target=self.trainer.train)
        self.thread.start()
        until(lambda: self.trainer.state.global_step > 0)
        self.board = CommandFolder(folder, notes(folder)[0]["run"])

    def give(self, action: Action) -> int:
        """Give a command, and wait until the run has taken it."""
        number = self.board.give(action)
        until(lambda: self.board.last_taken() >= number)
        return number

    def pause(self) -> int:
        """Pause the run, and return the step at which it waits."""
        number = self.give(Action.PAUSE)
        until(lambda: (number, "done") in outcomes(self.folder))
        return int(self.trainer.state.global_step)

    def end(self) -> None:
        self.trainer.request_stop()
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_a_run_is_paused_saved_resumed_and_stopped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each takes effect once, also during the pause; the journal, the log and the report say so."""
    caplog.set_level(logging.INFO, "hexloop")
    run = Started(tmp_path)
    step = run.pause()
    assert read_runs([str(tmp_path)])[0].history.paused_at == step
    assert RunIndex(tmp_path).runs()[0].history.paused_at == step
    run.give(Action.SAVE)
    until(lambda: (2, "done") in outcomes(tmp_path))
    assert (tmp_path / f"checkpoint-{step}" / "manifest.json").exists()
    assert run.trainer.state.global_step == step

    run.give(Action.RESUME)
    until(lambda: run.trainer.state.global_step > step)
    run.give(Action.STOP)
    run.thread.join(60)

    last = run.trainer.state.global_step
    assert run.trainer.outcome.checkpoint == f"checkpoint-{last}"
    assert run.trainer.outcome.reasons[0].startswith("stopped by the board (command 4, ")
    assert outcomes(tmp_path) == [
        (1, "accepted"), (1, "done"), (2, "accepted"), (2, "done"), (3, "accepted"), (4, "accepted"),
    ]  # fmt: skip
    assert f"Paused at step {step:,} by the board (command 1, " in caplog.text
    assert "by the board (command 4, " in caplog.text
    assert read_runs([str(tmp_path)])[0].history.paused_at is None


def test_a_paused_saved_and_resumed_run_is_bit_identical(tmp_path: Path) -> None:
    """To one that was left alone: weights and history."""
    plain = small_trainer(tmp_path / "plain", **{**LIVE, "max_steps": 400})
    plain.train()
    gate = Gate(20)
    run = Started(tmp_path / "run", max_steps=400, logging_steps=1, parts={"callbacks": [gate]})
    run.give(Action.PAUSE)
    gate.opened.set()
    until(lambda: (1, "done") in outcomes(run.folder))
    run.give(Action.SAVE)
    until(lambda: (2, "done") in outcomes(run.folder))
    run.give(Action.RESUME)
    run.thread.join(60)
    assert (tmp_path / "run" / "checkpoint-20").exists()
    assert run.trainer.state.global_step == 400
    assert same_weights(weights(plain), weights(run.trainer))
    assert history(plain) == history(run.trainer)


@pytest.mark.parametrize("wake", ["request_stop", "stop_file"])
def test_a_pause_ends_with_other_requests(tmp_path: Path, wake: str) -> None:
    """A stop by the program, or by what reclaims the machine, saves and ends a paused run."""
    run = Started(tmp_path / "run", stop_file=str(tmp_path / "stop"))
    step = run.pause()
    if wake == "stop_file":
        (tmp_path / "stop").touch()
    else:
        run.trainer.request_stop(save=True)
    run.thread.join(60)
    assert run.trainer.outcome.checkpoint == f"checkpoint-{step}"


@pytest.mark.parametrize("given", [{"board_control": False}, {"journal": "off"}, {"save_strategy": "no"}])
def test_control_can_be_switched_off(tmp_path: Path, given: dict[str, Any]) -> None:
    """There is no thread, and commands stay where they are; a run without a journal cannot be commanded either."""
    trainer, names = small_trainer(tmp_path, **{**LIVE, "max_steps": 2, **given}), list[str]()
    board = CommandFolder(tmp_path, "named")
    trainer.new_run_name = lambda: "named"
    events = trainer.stream()
    next(events)
    board.give(Action.STOP)
    names += [thread.name for thread in threading.enumerate()]
    for _ in events:
        pass
    assert "hexloop commands" not in names
    assert board.waiting() == [1]


def test_a_run_elsewhere_has_no_commands(tmp_path: Path) -> None:
    """Where output is not in a local folder, nothing is read."""
    trainer = small_trainer(tmp_path, save_strategy="steps", max_steps=1, parts={"storage": MemoryStorage()})
    events = trainer.stream()
    next(events)
    assert "hexloop commands" not in [thread.name for thread in threading.enumerate()]
    events.close()


def test_no_folder_is_made_without_a_command(tmp_path: Path) -> None:
    """A run that is never commanded writes nothing for it, and its thread ends with it."""
    small_trainer(tmp_path, save_strategy="steps", save_steps=2, max_steps=4).train()
    assert not (tmp_path / ".hexloop/commands").exists()
    assert "hexloop commands" not in [thread.name for thread in threading.enumerate()]


def test_files_that_are_no_commands_never_matter(tmp_path: Path) -> None:
    """A run among garbage obeys nothing of it, records at most a hundred refusals, and then a good command."""
    run = Started(tmp_path)
    other = CommandFolder(tmp_path, "another run")
    other.give(Action.STOP)
    for number in range(1, 301):
        run.board._file(number).write_bytes(b"garbage <script>")
    until(lambda: not run.board.waiting())
    assert not (tmp_path / ".hexloop/commands" / run.board._file(1).name).exists()
    run.pause()
    assert other.waiting() == [1]
    assert [outcome for _, outcome in outcomes(tmp_path)].count("refused") == 100
    run.end()


@pytest.mark.matrix
def test_a_killed_run_does_not_obey_twice(tmp_path: Path) -> None:
    """A stop that the killed process had not taken does not stop the run that is started again."""
    script = (
        "import sys, time; from pathlib import Path; from hexloop import TrainerCallback\n"
        "from tests.end_to_end.small.trainers import small_trainer\n"
        "class Slow(TrainerCallback):\n"
        "    def on_step_end(self, *given, **named): time.sleep(0.01)\n"
        "trainer = small_trainer(Path(sys.argv[1]), max_steps=int(sys.argv[2]), num_train_epochs=10**6,\n"
        "    save_strategy='steps', save_steps=5, save_total_limit=2, parts={'callbacks': [Slow()]})\n"
        "trainer.train(resume_from_checkpoint='auto'); print(trainer.outcome.stopped)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    process = subprocess.Popen([*command, "1000000"], cwd=Path(__file__).parents[2])
    try:
        until(lambda: any(note.get("phase") == "published" for note in notes(tmp_path)))
        board = CommandFolder(tmp_path, notes(tmp_path)[0]["run"])
        assert board.give(Action.PAUSE) == 1
        until(lambda: (1, "done") in outcomes(tmp_path))
        process.send_signal(signal.SIGSTOP)
        assert board.give(Action.STOP) == 2
    finally:
        process.kill()
        process.wait()
    last = max(int(path.name.partition("-")[2]) for path in tmp_path.glob("checkpoint-*"))
    again = [*command, str(last + 10)]
    done = subprocess.run(again, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert (2, "refused") in outcomes(tmp_path)
