"""What `hexloop launch` makes of its words, and how what several processes print comes to one screen."""

from __future__ import annotations

import os

import pytest
import torch

from hexloop.app.command_line.launch.output import OutputStream, Screen
from hexloop.app.command_line.launch.plan import LaunchPlan, cores, escaped
from hexloop.app.command_line.options import read_options
from hexloop.app.command_line.resuming import LAUNCHED_AS, command_text
from tests.terminals import screen_of
from tests.unit.command_line.commands import NOISY, Commands


def test_everything_that_is_wrong_is_told_at_once(commands: Commands) -> None:
    """Values, a missing rendezvous and a recipe that is not there are one error, and nothing is started."""
    numbers = ["--processes", "0", "--nodes", "2", "--node-rank", "2", "--restarts", "x", "--grace", "-1"]
    outcome = commands("launch", *numbers, "--log-folder", "project.py", "none.yaml")
    assert outcome.code == 2
    assert outcome.errors.startswith("hexloop: 7 problems in the configuration:\n  1. --processes: You chose '0'")
    for told in (
        "--node-rank: You chose 2, but node ranks start at 0, so the last of 2 is 1",
        "--restarts: You chose 'x', but it must be a whole number",
        "--grace: You chose '-1'",
        "--rendezvous is missing, and several nodes need it to connect",
        "--log-folder: You chose 'project.py', but that is a file",
        "You chose 'none.yaml', but there is no such file",
    ):
        assert told in outcome.errors


@pytest.mark.parametrize(
    ("words", "told"),
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
def test_a_wrong_value_is_told(commands: Commands, words: list[str], told: str) -> None:
    """Each message says what was chosen, and what it has to be."""
    outcome = commands("launch", "--processes", "2", *words, "recipe.yaml")
    assert (outcome.code, told in outcome.errors) == (2, True), outcome.errors


@pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs, of which each gets a process")
def test_a_machine_without_gpus_has_to_be_told_how_many(commands: Commands) -> None:
    """Without --processes there is one for each GPU; where there is none, that is an error."""
    outcome = commands("launch", "recipe.yaml")
    assert outcome.code == 2
    assert "--processes is missing, and there is no GPU to count" in outcome.errors


def test_what_stands_after_the_program_is_for_it() -> None:
    """Options of the same name are not taken for the launcher's, and those of nobody before it are refused."""
    options = read_options(["launch", "--processes", "2", "train.py", "--processes", "7", "--unheard"])
    assert (options.processes, options.program) == ("2", "train.py")
    assert options.program_arguments == ["--processes", "7", "--unheard"]
    with pytest.raises(SystemExit, match="2"):
        read_options(["launch", "--procs", "2", "train.py"])
    with pytest.raises(SystemExit, match="2"):
        read_options(["launch", "--processes", "2"])


def test_a_recipe_goes_on_after_a_restart() -> None:
    """The first start is as the words say; the next ones resume from the newest checkpoint, whatever they said."""
    plan = LaunchPlan("recipe.yaml", ("--max_steps", "9", "--resume", "out/checkpoint-3"))
    train = ["-u", "-P", "-m", "hexloop", "train", "recipe.yaml", "--max_steps", "9"]
    assert plan.command(again=False) == [*train, "--resume", "out/checkpoint-3"]
    assert plan.command(again=True) == [*train, "--resume", "auto"]


def test_a_script_is_started_with_its_own_words() -> None:
    """A file that ends in .py is run by Python, each time with the same words, dollars among them."""
    plan = LaunchPlan("train.py", ("--resume", "never", "$HOME"))
    assert plan.command(again=False) == plan.command(again=True) == ["-u", "train.py", "--resume", "never", "$HOME"]
    assert escaped(["$HOME", "a"]) == ["$$HOME", "a"]


@pytest.mark.parametrize("processes", [1, 2, 3, 10_000])
def test_processes_share_the_cores(processes: int) -> None:
    """All of them together have no more threads than there are cores, but one each at least."""
    threads = LaunchPlan("train.py", processes=processes).threads
    assert threads >= 1
    assert threads == 1 or threads * processes <= cores()


def test_a_run_with_restarts_does_not_start_among_other_runs_checkpoints(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart could take them for its own; with --resume auto, there is nothing to mistake."""
    recipe = commands.write("whole.yaml", NOISY)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "2")
    assert commands("train", recipe).code == 0
    outcome = commands("train", recipe)
    assert outcome.code == 2
    assert "You chose to start a new run with up to 2 restarts, but" in outcome.errors
    assert commands("train", recipe, "--resume", "auto").code == 0
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert commands("train", recipe).code == 0


def test_the_command_that_goes_on_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker says how to go on in the words that a person typed, not in its own."""
    assert command_text(["train", "recipe.yaml", "--resume"]) == "hexloop train recipe.yaml --resume"
    monkeypatch.setenv(LAUNCHED_AS, "hexloop launch --processes 2")
    assert command_text(["train", "recipe.yaml", "--resume"]) == "hexloop launch --processes 2 recipe.yaml --resume"


def sources(*ranks: int, stream: int = 1) -> list[OutputStream]:
    screen = Screen()
    return [OutputStream(screen, stream, rank, f"[rank {rank}] ".encode()) for rank in ranks]


def test_lines_are_labelled_whole(capfd: pytest.CaptureFixture[str]) -> None:
    """Each line stands under its rank's label, however it came in pieces, and the last one without an end."""
    first, second = sources(0, 1)
    for source, chunk in ((first, b"a"), (second, b"x\ny"), (first, b"b\r"), (first, b"\nc"), (second, b"z\n\n")):
        source.take(chunk)
    first.end()
    second.end()
    shown = capfd.readouterr().out.splitlines()
    assert shown == ["[rank 1] x", "[rank 0] ab", "[rank 1] yz", "[rank 1] ", "[rank 0] c"]


def test_only_the_first_rank_draws(capfd: pytest.CaptureFixture[str]) -> None:
    """The bar of rank 0 is drawn over itself under its label, other lines stand alone, and other bars nowhere."""
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


def test_a_bar_that_is_wiped_takes_its_label_along(capfd: pytest.CaptureFixture[str]) -> None:
    """The blanks that wipe a bar cover the label too."""
    (source,) = sources(0, stream=2)
    source.take(b"\r50%|##  |\r         \r")
    source.end()
    assert capfd.readouterr().err.endswith("\r" + " " * len("[rank 0] 50%|##  |"))


def test_a_report_of_an_error_is_kept_for_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    """A traceback and what follows it are shown when they are released, without torch's own label; warnings at once."""
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
def test_a_line_stays_whenever_it_comes(position: int, rank: int) -> None:
    """Lines and bars come by two pipes: at whatever piece of the bars a line is seen, it is never drawn over."""
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
