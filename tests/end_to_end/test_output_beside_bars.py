"""What anything prints while a progress bar is drawn on a terminal: whole lines above one bar."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.terminals import screen_of
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[2]
SIZE = ("COLUMNS", "LINES")
INHERITED = {name: value for name, value in os.environ.items() if name not in SIZE}
ENVIRONMENT = {**INHERITED, "OMP_NUM_THREADS": "1", "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}

SCRIPT = """
    import logging, os, sys, threading, warnings
    import tqdm
    from hexloop import Trainer, TrainerCallback, TrainingArguments
    from tests.end_to_end.small.models import net, rows

    logging.basicConfig(format="a library logs: %(message)s")
    logging.getLogger("of.another.library").addHandler(logging.StreamHandler(sys.stdout))
    rank = os.environ.get("RANK", "0")

    class Noise(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            step = f"{state.global_step} of rank {rank}"
            warnings.warn_explicit(f"warned at {step}", UserWarning, "file.py", state.global_step)
            logging.getLogger("other").warning("at %s", step)
            logging.getLogger("of.another.library").warning("twice at %s", step)
            print("printed", "at", step, end="")
            print(" and on")
            sys.stderr.write(f"written at {step}\\n")
            thread = threading.Thread(target=print, args=(f"thread at {step}",))
            thread.start()
            thread.join()
            if rank != "0" and "HEXLOOP_TERMINAL" in os.environ:  # of `hexloop launch`
                os.write(2, f"from C at {step}\\n".encode())
            if "RANK" not in os.environ:
                for _ in tqdm.tqdm(range(3), desc="of another library", leave=False):
                    pass

        on_prediction_step = lambda self, args, state, control, **kwargs: print(f"evaluated on rank {rank}")

    of_ranks = {"ddp_backend": "gloo", "ddp_find_unused_parameters": False} if "RANK" in os.environ else {}
    arguments = TrainingArguments(
        sys.argv[1], use_cpu=True, max_steps=4, per_device_train_batch_size=2, logging_steps=2, save_strategy="no",
        eval_strategy="steps", eval_steps=2, report_to="none", **of_ranks,
    )
    Trainer(net(), arguments, train_dataset=rows(16), eval_dataset=rows(4), callbacks=[Noise()]).train()
    if "RANK" not in os.environ:
        print("after the run", end="")
    assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr), "the streams are as before"
"""


def printed_by(rank: str, steps: Sequence[int]) -> list[str]:
    """Return the lines that the script prints while it trains."""
    lines = []
    for step in (f"{each} of rank {rank}" for each in steps):
        lines += [
            f"a library logs: at {step}", f"twice at {step}", f"a library logs: twice at {step}",
            f"printed at {step} and on", f"written at {step}", f"thread at {step}",
        ]  # fmt: skip
    return lines


def shown_by(commands: Sequence[tuple[list[str], Mapping[str, str]]]) -> list[str]:
    """Run programs on one terminal, and return the rows that it shows in the end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 200, 120, 0, 0))
    started = [
        subprocess.Popen(command, cwd=ROOT, env={**ENVIRONMENT, **given}, stdout=theirs, stderr=theirs)
        for command, given in commands
    ]
    os.close(theirs)
    shown = [row for row in screen_of(ours) if row]
    os.close(ours)
    assert [each.wait() for each in started] == [0] * len(started), shown
    return shown


def check(shown: Sequence[str], ranks: Sequence[str]) -> None:
    """Check that each line is whole and on a row of its own, and that there is one bar, which is complete."""
    bars = [row for row in shown if "%|" in row]
    assert len(bars) == 1, shown
    assert re.match(r"100%\|.*\| 4/4 ", bars[0])
    for rank in ranks:
        for line in printed_by(rank, range(1, 5)):
            assert shown.count(line) == 1, (line, shown)
        for step in range(1, 5):
            assert f"file.py:{step}: UserWarning: warned at {step} of rank {rank}" in shown
    known = (
        r"a library logs: |twice at |printed at |written at |thread at |from C at |file\.py:\d: |evaluated on rank \d$"
        r"|100%\||\{'"
    )
    torn = [row for row in shown if not re.match(rf"({known}|  +(step|\d)|after the run)", row)]
    assert not torn, shown


def test_output_of_any_library_stays_above_the_bar(tmp_path: Path) -> None:
    """Warnings, logs, prints in pieces, threads and another bar leave one bar, and the streams are restored."""
    shown = shown_by([([warm_python(), "-c", textwrap.dedent(SCRIPT), str(tmp_path)], {})])
    check(shown, ["0"])
    assert "after the run" in shown[-1]


@pytest.mark.one_in(2)
def test_output_of_other_ranks_leaves_the_bar_whole(tmp_path: Path) -> None:
    """Two processes on one terminal, as torchrun starts them: the lines of rank 1 replace no bar and are not torn."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [warm_python(), "-c", textwrap.dedent(SCRIPT), str(tmp_path)]
    shown = shown_by([(command, {**common, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")])
    check([row for row in shown if not row.startswith("[W")], ["0", "1"])  # torch warns while it connects


@pytest.mark.matrix
def test_output_of_launched_ranks_is_above_the_bar_and_none_is_lost(tmp_path: Path) -> None:
    """Three processes of `hexloop launch`: each line once, whole and with its rank, also from C in the other ranks."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-m", "hexloop", "launch", "--processes", "3", str(script), str(tmp_path / "run")]
    labelled = [row for row in shown_by([(command, {})]) if not row.startswith("hexloop: ")]
    assert all(re.match(r"\[rank [012]\] ", row) for row in labelled), labelled
    shown = [row[len("[rank 0] ") :] for row in labelled]
    check([row for row in shown if not row.startswith("[W")], ["0", "1", "2"])
    for rank in "012":
        of_rank = [row for row in labelled if row.endswith(f"of rank {rank}")]
        assert {row[: len("[rank 0]")] for row in of_rank} == {f"[rank {rank}]"}
    assert len([row for row in shown if row.startswith("from C at ")]) == 8
