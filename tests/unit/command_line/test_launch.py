"""Arguments of `hexloop launch`, and how it merges the output of several processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
import torch
from tqdm import tqdm

from hexloop.app.callbacks.beside_bars import COPIED_TO_TERMINAL
from hexloop.app.command_line.launch.output import OutputStream, Screen
from hexloop.app.command_line.launch.plan import LaunchPlan, cores, escaped
from hexloop.app.command_line.options import command_text
from hexloop.app.command_line.parser import read_options
from hexloop.app.run.command import LAUNCHED_AS
from tests.terminals import screen_of
from tests.unit.command_line.commands import NOISY, Commands


def test_all_problems_are_reported_in_one_error(commands: Commands) -> None:
    """One error lists bad values, a missing rendezvous and a missing recipe, and nothing is started."""
    numbers = ["--processes", "0", "--nodes", "2", "--node-rank", "2", "--restarts", "x", "--grace", "-1"]
    outcome = commands("launch", *numbers, "--log-folder", "project.py", "none.yaml")
    assert outcome.code == 2
    assert outcome.errors.startswith("hexloop: 7 problems in the configuration:\n  1. --processes: You chose '0'")
    for expected in (
        "--node-rank: You chose 2, but node ranks start at 0, so the last of 2 is 1",
        "--restarts: You chose 'x', but it must be a whole number",
        "--grace: You chose '-1'",
        "--rendezvous is missing, and several nodes need it to connect",
        "--log-folder: You chose 'project.py', but that is a file",
        "You chose 'none.yaml', but there is no such file",
    ):
        assert expected in outcome.errors


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--processes", "two"], "--processes: You chose 'two', but it must be a whole number, 1 or more"),
        (["--nodes", "2:1"], "--nodes: You chose '2:1', but a range is MIN:MAX; swap the two numbers"),
        (["--nodes", "1:x"], "--nodes: You chose 'x', but it must be a whole number, 1 or more, or a range"),
        (["--nodes", "1:2"], "--rendezvous is missing"),
        (["--rendezvous", "node0"], "--rendezvous: You chose 'node0', but it must be HOST:PORT"),
        (["--rendezvous", "node0:99999"], "--rendezvous: You chose 'node0:99999', but it must be HOST:PORT"),
        (["--grace", "inf"], "--grace: You chose 'inf', but it must be a number of seconds"),
        (["--restarts", "nan"], "--restarts: You chose 'nan', but it must be a whole number"),
    ],
)
def test_wrong_value_is_reported(commands: Commands, words: list[str], expected: str) -> None:
    """Each message shows the given value and the accepted ones."""
    outcome = commands("launch", "--processes", "2", *words, "recipe.yaml")
    assert (outcome.code, expected in outcome.errors) == (2, True), outcome.errors


WITHOUT_XLA = find_spec("torch_xla") is None


@pytest.mark.skipif(not WITHOUT_XLA, reason="torch_xla is installed")
def test_tpus_need_torch_xla(commands: Commands) -> None:
    """Otherwise the processes would train on the CPU; and there is one option for their number."""
    outcome = commands("launch", "--tpu", "2", "--processes", "2", "recipe.yaml")
    assert outcome.code == 2
    assert "--tpu: You chose '2', but torch_xla is not installed." in outcome.errors
    assert "leave one of them out" in outcome.errors


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("def _mp_fn(index): ...", True),
        ("from other import main as _mp_fn", True),
        ("_mp_fn = print", True),
        ("def main(): ...", False),
        ("def _mp_fn(:", False),
    ],
)
def test_the_function_of_a_script_is_called_on_tpus(tmp_path: Path, text: str, calls: bool) -> None:
    """As transformers' xla_spawn does; other scripts are run as they are, and all of them elsewhere."""
    script = tmp_path / "train.py"
    script.write_text(text)
    plan = LaunchPlan(str(script), ("--rate", "1"), processes=4, on_tpu=True)
    called = ["-u", "-P", "-m", "hexloop.app.command_line.launch.function", "4", str(script), "--rate", "1"]
    assert plan.command(again=False) == (called if calls else ["-u", str(script), "--rate", "1"])
    assert LaunchPlan(str(script), processes=4).command(again=False) == ["-u", str(script)]


def test_the_function_gets_the_rank_and_the_script_the_number_of_cores(tmp_path: Path) -> None:
    """In `sys.argv`; modules beside the script are found, and the script's is importable by its name."""
    (tmp_path / "beside.py").write_text("VALUE = 5")
    script = tmp_path / "train_it.py"
    script.write_text(
        "import sys\nfrom beside import VALUE\n"
        "def _mp_fn(index):\n    print(index, VALUE, sys.argv[1:], sys.modules['train_it']._mp_fn is _mp_fn)\n"
        "if __name__ == '__main__':\n    raise SystemExit('run as a script')\n"
    )
    command = LaunchPlan(str(script), ("--rate", "1"), processes=4, on_tpu=True).command(again=False)
    done = subprocess.run(
        [sys.executable, *command], check=False, capture_output=True, text=True, env={**os.environ, "RANK": "3"}
    )
    assert done.stdout == "3 5 ['--rate', '1', '--tpu_num_cores', '4'] True\n", done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs, of which each gets a process")
def test_processes_is_required_without_gpus(commands: Commands) -> None:
    """--processes defaults to the number of GPUs and is required without any."""
    outcome = commands("launch", "recipe.yaml")
    assert outcome.code == 2
    assert "--processes is missing, and there is no GPU to count" in outcome.errors


def test_arguments_after_the_program_are_passed_to_it() -> None:
    """Options after the program belong to it; unknown options before it are rejected."""
    options = read_options(["launch", "--processes", "2", "train.py", "--processes", "7", "--unheard"])
    assert (options.processes, options.program) == ("2", "train.py")
    assert options.program_arguments == ["--processes", "7", "--unheard"]
    with pytest.raises(SystemExit, match="2"):
        read_options(["launch", "--procs", "2", "train.py"])
    with pytest.raises(SystemExit, match="2"):
        read_options(["launch", "--processes", "2"])


def test_recipe_resumes_after_a_restart() -> None:
    """The first start uses the given options; later ones resume from the newest checkpoint."""
    plan = LaunchPlan("recipe.yaml", ("--max_steps", "9", "--resume", "out/checkpoint-3"))
    train = ["-u", "-P", "-m", "hexloop", "train", "recipe.yaml", "--max_steps", "9"]
    assert plan.command(again=False) == [*train, "--resume", "out/checkpoint-3"]
    assert plan.command(again=True) == [*train, "--resume", "auto"]


def test_script_is_started_with_its_own_arguments() -> None:
    """A .py file is run by Python with the same arguments at each start, dollar signs included."""
    plan = LaunchPlan("train.py", ("--resume", "never", "$HOME"))
    assert plan.command(again=False) == plan.command(again=True) == ["-u", "train.py", "--resume", "never", "$HOME"]
    assert escaped(["$HOME", "a"]) == ["$$HOME", "a"]


@pytest.mark.parametrize("processes", [1, 2, 3, 10_000])
def test_processes_share_the_cores(processes: int) -> None:
    """The threads of all processes together do not exceed the cores, with at least one thread each."""
    threads = LaunchPlan("train.py", processes=processes).threads
    assert threads >= 1
    assert threads == 1 or threads * processes <= cores()


def test_restarts_reject_a_folder_with_other_checkpoints(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """With restarts, a folder with checkpoints of another run is rejected unless --resume auto is given."""
    recipe = commands.write("whole.yaml", NOISY)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    assert commands("train", recipe).code == 0
    outcome = commands("train", recipe)
    assert outcome.code == 2
    assert "You chose to start a new run with up to 2 restarts, but" in outcome.errors
    assert commands("train", recipe, "--resume", "auto").code == 0
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert commands("train", recipe).code == 0


def test_resume_command_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker prints the launcher's command for resuming, not its own."""
    assert command_text(["train", "recipe.yaml", "--resume"]) == "hexloop train recipe.yaml --resume"
    monkeypatch.setenv(LAUNCHED_AS, "hexloop launch --processes 2")
    assert command_text(["train", "recipe.yaml", "--resume"]) == "hexloop launch --processes 2 recipe.yaml --resume"


def sources(*ranks: int, stream: int = 1) -> list[OutputStream]:
    screen = Screen()
    return [OutputStream(screen, stream, rank, f"[rank {rank}] ".encode()) for rank in ranks]


def test_lines_are_labelled(capfd: pytest.CaptureFixture[str]) -> None:
    """Each line has its rank's label even if it arrives in pieces or has no newline."""
    first, second = sources(0, 1)
    for source, chunk in ((first, b"a"), (second, b"x\ny"), (first, b"b\r"), (first, b"\nc"), (second, b"z\n\n")):
        source.take(chunk)
    first.end()
    second.end()
    shown = capfd.readouterr().out.splitlines()
    assert shown == ["[rank 1] x", "[rank 0] ab", "[rank 1] yz", "[rank 1] ", "[rank 0] c"]


def test_only_rank_0_draws_bars(capfd: pytest.CaptureFixture[str]) -> None:
    """Bars of rank 0 are redrawn under its label, and bars of other ranks are dropped."""
    first, second = sources(0, 1, stream=2)
    for source, chunk in (
        (first, b"\r 0%|    |"),
        (second, b"\r 0%|    |"),
        (first, b"\r50%|##  |"),
        (second, b"\r90%|### |\n"),
        (second, b"a line\n"),
        (first, b"\r99%|####|\n"),
        (first, b"the end\n"),
    ):
        source.take(chunk)
    first.end()
    second.end()
    bars = "\r[rank 0]  0%|    |\r[rank 0] 50%|##  |\n[rank 1] a line\n\r[rank 0] 99%|####|\n[rank 0] the end\n"
    assert capfd.readouterr().err == bars


class Pieces(io.StringIO):
    """A stream that keeps what is written to it, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, text: str) -> int:
        self.written.append(text.encode())
        return len(text)


class OrderedBars(WeakSet[Any]):
    """Bars in the order of their rows, or in the reverse order; tqdm's own set has any order."""

    reverse = False

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=lambda bar: abs(getattr(bar, "pos", 0)), reverse=self.reverse))


class Bar(tqdm):  # type: ignore[type-arg]
    """A bar whose position does not depend on bars that other tests have left."""

    monitor_interval = 0
    _instances: ClassVar[OrderedBars] = OrderedBars()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_lines_above_bars_stay_in_their_order(rank: int, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that a worker writes above its bars, one or two, stay above them, between the lines of its output."""
    monkeypatch.setattr(OrderedBars, "reverse", reverse)
    pieces = Pieces()
    with Bar(total=2, file=pieces, ncols=40, mininterval=0, ascii=True) as outer:
        for number in (1, 2):
            outer.update()
            Bar.write(f"message {number}", file=pieces)
            pieces.written.append(b"|")  # here the other stream has a line
            with Bar(total=1, file=pieces, ncols=40, mininterval=0, ascii=True, leave=False) as inner:
                inner.update()
                Bar.write(f"inner {number}", file=pieces)
    ours, terminal = os.openpty()
    screen = Screen(joined=True)
    bars = OutputStream(screen, terminal, rank, b"[rank %d] " % rank)
    lines = OutputStream(screen, terminal, rank, b"[rank %d] " % rank)
    count = 0
    for piece in pieces.written:
        if piece == b"|":
            count += 1
            lines.take(b"line %d\n" % count)
        else:
            bars.take(piece)
    bars.end()
    os.close(terminal)
    rows = [row.removeprefix(f"[rank {rank}] ") for row in screen_of(ours) if row]
    os.close(ours)
    expected = ["message 1", "line 1", "inner 1", "message 2", "line 2", "inner 2"]
    assert rows[: len(expected)] == expected
    assert [row[:4] for row in rows[len(expected) :]] == (["100%"] if rank == 0 else [])


def test_empty_lines_above_bars_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    """Newlines after a message are empty lines unless a bar is drawn after them, also at the end of the output."""
    stream = OutputStream(Screen(), 2, 1, b"[rank 1] ")
    stream.take(b"\r 50%|##  |\r           \ra message\n\na line\n\r 60%|##  |\r           \rthe last\n\n")
    stream.end()
    labelled = [f"[rank 1] {line}\n" for line in ("a message", "", "a line", "the last", "")]
    assert capfd.readouterr().err == "".join(labelled)


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_workers_know_the_terminal(
    on_a_terminal: bool, commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They draw bars in their pipes only if the launcher prints them on a terminal; a line has room for the label."""
    told: list[str | None] = []

    def launch(_plan: LaunchPlan) -> int:
        told.append(os.environ.get(COPIED_TO_TERMINAL))
        return 0

    monkeypatch.setattr("hexloop.app.command_line.launch.launch", launch)
    monkeypatch.setattr(os, "isatty", lambda _stream: on_a_terminal)
    monkeypatch.setattr(os, "get_terminal_size", lambda _stream: os.terminal_size((100, 40)))
    (tmp_path / "script.py").touch()
    assert commands("launch", "--processes", "1", str(tmp_path / "script.py")).code == 0
    assert told == ["91" if on_a_terminal else None]
    assert COPIED_TO_TERMINAL not in os.environ


def test_erasing_a_bar_erases_its_label(capfd: pytest.CaptureFixture[str]) -> None:
    """The blanks that erase a bar also cover the label."""
    (source,) = sources(0, stream=2)
    source.take(b"\r50%|##  |\r         \r")
    source.end()
    assert capfd.readouterr().err.endswith("\r" + " " * len("[rank 0] 50%|##  |"))


def test_tracebacks_are_shown_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    """Tracebacks are held until released, without torch's label; warnings are shown immediately."""
    (source,) = sources(1, stream=2)
    source.take(b"hexloop: warning: it is late\n[rank1]: Traceback (most recent call last):\n[rank1]:   File\n")
    assert capfd.readouterr().err == "[rank 1] hexloop: warning: it is late\n"
    assert source.reported_at is not None
    source.release_if_old()
    assert capfd.readouterr().err == ""
    assert source.release() == b"Traceback (most recent call last):\n  File"
    assert capfd.readouterr().err == "[rank 1] Traceback (most recent call last):\n[rank 1]   File\n"
    assert source.release() == b""


TWO_BARS = (
    b"\r  0%|  | 0/8", b"\n", b"\r inner| 1/2", b"\x1b[A", b"\n", b"\r inner| 2/2", b"\x1b[A", b"\n", b"\r" + b" " * 11,
    b"\r", b"\x1b[A", b"\r" + b" " * 12, b"\r", b"\r 50%|# | 4/8", b"\r100%|##| 8/8", b"\n",
)  # fmt: skip
"""How tqdm draws a bar and one below it, that goes before a line is written; a piece each time it writes."""


@pytest.mark.parametrize("position", range(1, len(TWO_BARS)))
@pytest.mark.parametrize("rank", [0, 1])
def test_lines_are_never_overwritten_by_bars(position: int, rank: int) -> None:
    """A line that arrives between any two pieces of a bar is never overwritten."""
    ours, terminal = os.openpty()
    screen = Screen(joined=True)
    bars = OutputStream(screen, terminal, 0, b"[rank 0] ")
    lines = OutputStream(screen, terminal, rank, b"[rank %d] " % rank)
    for number, piece in enumerate(TWO_BARS):
        if number == position:
            lines.take(b"log\n")
        bars.take(piece)
    bars.end()
    os.close(terminal)
    assert [row for row in screen_of(ours) if row] == [f"[rank {rank}] log", "[rank 0] 100%|##| 8/8"]
    os.close(ours)
