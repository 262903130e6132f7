"""The board commands a run of several real processes: the first reads, and all do the same at the same step."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hexloop import TrainerCallback
from hexloop.adapters.journal import read
from hexloop.adapters.storage.local import LocalStorage
from hexloop.app.control.files import Action, CommandFolder
from hexloop.domain.checkpoints.reading import checkpoint_steps
from tests.engines.several.training import Training, fresh, run

PAUSE = 8.0
"""Seconds; longer than the timeout of the processes."""


class CommandedByTheBoard(TrainerCallback):
    """Pauses, saves, resumes and stops the run as another program does that shares the folder."""

    trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        time.sleep(0.02)
        if args.process_index == 0 and state.global_step == 6:
            journal = read(Path(args.output_dir, ".hexloop/journal.jsonl"))
            board = CommandFolder(Path(args.output_dir), journal[0]["run"])  # type: ignore[arg-type]
            board.give(Action.PAUSE)
            for seconds, action in ((2.0, Action.SAVE), (PAUSE, Action.RESUME), (PAUSE + 2, Action.STOP)):
                threading.Timer(seconds, board.give, [action]).start()


@pytest.mark.matrix
def test_all_ranks_pause_save_resume_and_stop(tmp_path: Path) -> None:
    """At the same steps; a pause that is longer than the timeout of the collectives fails nothing."""
    arguments = {"logging_strategy": "no", "save_strategy": "steps", "save_steps": 10**6, "ddp_timeout": 5}
    arguments |= {"max_steps": 10**5}
    folder = fresh(tmp_path / "run")
    run(Training(processes=2, callbacks=(CommandedByTheBoard,), arguments=arguments), folder)
    notes = read(folder / ".hexloop/journal.jsonl")
    commands: list[Any] = [note for note in notes if note["kind"] == "command"]
    paused = next(note for note in commands if note["outcome"] == "done" and note["action"] == "pause")
    saved, ended = next(note for note in commands if "checkpoint" in note), notes[-1]
    assert saved["checkpoint"] == f"checkpoint-{paused['step']}"
    assert ended["stopped"] is True
    assert ended["step"] > paused["step"]
    assert sorted(checkpoint_steps(LocalStorage(folder))) == [paused["step"], ended["step"]]
    assert sum(note["kind"] == "paused" for note in notes) == 1
