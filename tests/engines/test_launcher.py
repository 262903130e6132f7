"""Launches in real processes: labels, restarts, exit codes, signals, and nothing that is left behind."""

from __future__ import annotations

import os
import pty
import re
import signal
from pathlib import Path

import pytest

from hexloop.app.command_line.launch.plan import cores
from tests.engines.launched import Launches, ended, send, wait_until
from tests.engines.processes import free_port
from tests.terminals import screen_of


@pytest.fixture
def launches(tmp_path: Path) -> Launches:
    """Launches in an empty folder."""
    return Launches(tmp_path)


def test_a_killed_rank_is_reported_and_all_restart(launches: Launches) -> None:
    """Two processes sum over gloo; one is killed, both are started again, and the sums come out right."""
    outcome = launches("--processes", "2", "--restarts", "2", "--log-folder", "logs", "sums.py", "2", "1", "killed")
    assert outcome.code == 0, outcome.errors
    assert sorted(re.findall(r"^\[rank \d\] rank .*", outcome.output, re.MULTILINE)) == [
        "[rank 0] rank 0 of 2 sums to 3 after 1 restarts",
        "[rank 1] rank 1 of 2 sums to 3 after 1 restarts",
    ]
    told = re.findall(r"^hexloop: .*", outcome.errors, re.MULTILINE)
    assert len(told) == 1, told
    assert re.fullmatch(
        r"hexloop: rank 1 \(process \d+\) was killed by SIGKILL; restarting all workers \(restart 1 of 2\)",
        told[0],
    )
    assert len(outcome.numbers(0)) == 4
    for rank in (0, 1):
        kept = (launches.folder / "logs" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of 2 sums to 3 after 1 restarts\n" in kept
        assert f"[rank {rank}]" not in kept.replace(f"[rank{rank}]", "")


@pytest.mark.matrix
def test_the_traceback_of_the_rank_that_failed_comes_last_and_once(launches: Launches) -> None:
    """The error and exit code of the rank that failed first are reported last."""
    outcome = launches("--processes", "3", "--restarts", "1", "sums.py", "3", "2", "raises")
    assert outcome.code == 1
    assert outcome.errors.count("[rank 1] ArithmeticError: a bug of its own\n") == 2  # one an attempt
    error, told = outcome.errors.splitlines()[-2:]
    assert error == "[rank 1] ArithmeticError: a bug of its own"
    assert re.fullmatch(r"hexloop: rank 1 \(process \d+\) failed with exit code 1; all 1 restarts are used up", told)


@pytest.mark.matrix
def test_the_exit_code_is_that_of_the_first_that_fails(launches: Launches) -> None:
    """Rank 0 ends well, rank 1 with 7 and rank 2 is ended before it could fail as well; threads share the cores."""
    outcome = launches("--processes", "3", "plain.py", "0", "7", "9")
    assert outcome.code == 7
    assert re.search(r"^hexloop: rank 1 \(process \d+\) failed with exit code 7$", outcome.errors, re.MULTILINE)
    assert outcome.numbers(4) == [max(1, cores() // 3)] * 3


@pytest.mark.matrix
@pytest.mark.parametrize(("codes", "expected"), [(("3", "3"), 3), (("3", "0"), 3), (("2", "2"), 2)])
def test_what_was_stopped_or_is_set_up_wrongly_is_not_restarted(
    launches: Launches, codes: tuple[str, str], expected: int
) -> None:
    """Exit codes 3 and 2 end a launch that has restarts left, and ranks that stop later than others may."""
    outcome = launches("--processes", "2", "--restarts", "5", "plain.py", *codes)
    assert outcome.code == expected
    assert len(outcome.numbers(0)) == 2
    assert "restarting all" not in outcome.errors


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_lets_the_workers_save_and_end(launches: Launches, name: str) -> None:
    """They get it, and the launch waits for them; what it ends with is theirs."""
    words = ("saves", "saves") if name != "SIGINT" else ("waits", "waits")
    process = launches.start("--processes", "2", "--restarts", "1", "plain.py", *words)
    launches.wait_for_workers(2)
    send(process, name)
    outcome = launches.end(process)
    if name == "SIGINT":  # which Python makes an exception of
        assert outcome.code == 128 + signal.SIGINT
        return
    assert outcome.code == 3
    assert sorted(re.findall(r"\[rank \d\] saved", outcome.output)) == ["[rank 0] saved", "[rank 1] saved"]


@pytest.mark.matrix
def test_a_worker_that_does_not_listen_is_killed_after_the_grace_period(launches: Launches) -> None:
    """One saves, one is deaf: the launch ends as the one that was killed."""
    process = launches.start("--processes", "2", "--grace", "1", "plain.py", "saves", "deaf")
    launches.wait_for_workers(2)
    send(process, "SIGTERM")
    outcome = launches.end(process)
    assert outcome.code == 128 + signal.SIGKILL
    assert "[rank 0] saved" in outcome.output
    assert outcome.errors.splitlines() == [
        "hexloop: SIGTERM: the workers have 1 s to save and exit; a second signal stops them immediately",
        "hexloop: killed because they did not exit within 1 s: rank 1",
    ]


@pytest.mark.matrix
def test_workers_do_not_outlive_a_launcher_that_is_killed(launches: Launches) -> None:
    """The kernel ends them, though they are deaf to everything else."""
    process = launches.start("--processes", "2", "plain.py", "deaf", "waits")
    launches.wait_for_workers(2)
    workers = [int(found) for found in re.findall(r" up (\d+)", (launches.folder / "output").read_text())]
    children = [int(found) for found in re.findall(r" (\d+) \d+$", (launches.folder / "output").read_text(), re.M)]
    send(process, "SIGKILL")
    process.wait()
    wait_until(lambda: all(map(ended, workers)), "a worker is left")
    for child in children:
        os.kill(child, signal.SIGKILL)


@pytest.mark.matrix
def test_machines_come_in_the_order_of_their_ranks(launches: Launches, tmp_path: Path) -> None:
    """Two launches meet; the one that started first, and is the second, holds the last ranks."""
    other = Launches(tmp_path / "other")
    other.folder.mkdir()
    words = ("--restarts", "1", "--nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}")
    second = other.start("--processes", "1", "--node-rank", "1", *words, "sums.py", "3", "1", "killed")
    first = launches.start("--processes", "2", "--node-rank", "0", *words, "sums.py", "3", "1", "killed")
    outcomes = launches.end(first), other.end(second)
    assert [outcome.code for outcome in outcomes] == [0, 0], [outcome.errors for outcome in outcomes]
    for outcome, ranks in zip(outcomes, ((0, 1), (2,)), strict=True):
        for rank in ranks:
            assert f"[rank {rank}] rank {rank} of 3 sums to 6 after" in outcome.output


@pytest.mark.matrix
def test_the_end_of_a_launch_on_another_machine_is_reported(launches: Launches, tmp_path: Path) -> None:
    """Where as many machines are needed, a signal to one is the end of all, whatever restarts are left."""
    other = Launches(tmp_path / "other")
    other.folder.mkdir()
    words = (
        "--restarts",
        "1",
        "--nodes",
        "2",
        "--rendezvous",
        f"127.0.0.1:{free_port()}",
        "plain.py",
        "waits",
        "waits",
    )
    first = launches.start("--processes", "1", "--node-rank", "0", *words)
    second = other.start("--processes", "1", "--node-rank", "1", *words)
    for each in (launches, other):
        each.wait_for_workers(1)
    send(second, "SIGTERM")
    assert other.end(second).code == 128 + signal.SIGTERM
    (worker,) = re.findall(r" up (\d+)", (launches.folder / "output").read_text())
    os.killpg(int(worker), signal.SIGKILL)
    outcome = launches.end(first)
    assert outcome.code == 128 + signal.SIGKILL
    assert outcome.errors.splitlines()[-1] == (
        "hexloop: another machine has ended the launch; workers are not restarted"
    )


@pytest.mark.matrix
def test_a_missing_machine_is_reported(launches: Launches) -> None:
    """After the time that it was given, the error says where the machines were to meet."""
    outcome = launches(
        "--processes", "1", "--nodes", "2", "--node-rank", "1", "--rendezvous", "127.0.0.1:1", "--join-timeout", "1",
        "sums.py",
    )  # fmt: skip
    assert outcome.code == 1
    assert outcome.errors.startswith("hexloop: Rendezvous at 127.0.0.1:1 failed")


@pytest.mark.matrix
def test_one_progress_bar_stands_below_the_lines(launches: Launches) -> None:
    """On a terminal, the bar of rank 0 is drawn in one place, whatever other ranks print."""
    launches.start("--processes", "x").wait()  # writes the scripts
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(launches.folder)
        command = launches.command(["--processes", "2", "bars.py"])
        os.execve(command[0], command, launches.environment())
    shown = screen_of(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert sorted(row for row in shown if "|" not in row and row) == [
        "[rank 0] log", *[f"[rank 1] other {step}" for step in range(8)]
    ]  # fmt: skip
    bars = [row for row in shown if "|" in row]
    assert len(bars) == 1, shown
    assert re.match(r"\[rank 0\] 100%\|.*\| 8/8 ", bars[0])
