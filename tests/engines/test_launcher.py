"""`hexloop launch` with real processes: labels, restarts, exit codes, signals, and cleanup."""

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
    """Return launches in an empty folder."""
    return Launches(tmp_path)


def test_a_killed_rank_is_reported_and_all_ranks_restart(launches: Launches) -> None:
    """Two processes sum over gloo; one is killed, both are restarted, and the sums are right."""
    outcome = launches("--processes", "2", "--restarts", "2", "--log-folder", "logs", "sums.py", "2", "1", "killed")
    assert outcome.code == 0, outcome.errors
    assert sorted(re.findall(r"^\[rank \d\] rank .*", outcome.output, re.MULTILINE)) == [
        "[rank 0] rank 0 of 2 sums to 3 after 1 restarts",
        "[rank 1] rank 1 of 2 sums to 3 after 1 restarts",
    ]
    reported = re.findall(r"^hexloop: .*", outcome.errors, re.MULTILINE)
    assert len(reported) == 1, reported
    assert re.fullmatch(
        r"hexloop: rank 1 \(process \d+\) was killed by SIGKILL; restarting all workers \(restart 1 of 2\)",
        reported[0],
    )
    assert len(outcome.numbers(0)) == 4
    for rank in (0, 1):
        kept = (launches.folder / "logs" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of 2 sums to 3 after 1 restarts\n" in kept
        assert f"[rank {rank}]" not in kept.replace(f"[rank{rank}]", "")


@pytest.mark.matrix
def test_the_traceback_of_the_failed_rank_is_printed_last_and_once(launches: Launches) -> None:
    """The error and exit code of the rank that failed first are reported last."""
    outcome = launches("--processes", "3", "--restarts", "1", "sums.py", "3", "2", "raises")
    assert outcome.code == 1
    assert outcome.errors.count("[rank 1] ArithmeticError: a bug of its own\n") == 2  # one for each attempt
    error, last = outcome.errors.splitlines()[-2:]
    assert error == "[rank 1] ArithmeticError: a bug of its own"
    assert re.fullmatch(r"hexloop: rank 1 \(process \d+\) failed with exit code 1; all 1 restarts are used up", last)


@pytest.mark.matrix
def test_the_exit_code_is_that_of_the_first_failed_rank(launches: Launches) -> None:
    """Rank 0 succeeds, rank 1 exits with 7, and rank 2 is terminated before it can fail; threads share the cores."""
    outcome = launches("--processes", "3", "plain.py", "0", "7", "9")
    assert outcome.code == 7
    assert re.search(r"^hexloop: rank 1 \(process \d+\) failed with exit code 7$", outcome.errors, re.MULTILINE)
    assert outcome.numbers(4) == [max(1, cores() // 3)] * 3


@pytest.mark.matrix
@pytest.mark.parametrize(("codes", "expected"), [(("3", "3"), 3), (("3", "0"), 3), (("2", "2"), 2)])
def test_stopped_and_misconfigured_runs_are_not_restarted(
    launches: Launches, codes: tuple[str, str], expected: int
) -> None:
    """Exit codes 3 and 2 end a launch that has restarts left; other ranks may stop later."""
    outcome = launches("--processes", "2", "--restarts", "5", "plain.py", *codes)
    assert outcome.code == expected
    assert len(outcome.numbers(0)) == 2
    assert "restarting all" not in outcome.errors


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_signal_lets_the_workers_save_and_exit(launches: Launches, name: str) -> None:
    """The launch forwards the signal, waits for the workers, and exits with their code."""
    words = ("saves", "saves") if name != "SIGINT" else ("waits", "waits")
    process = launches.start("--processes", "2", "--restarts", "1", "plain.py", *words)
    launches.wait_for_workers(2)
    send(process, name)
    outcome = launches.end(process)
    if name == "SIGINT":  # Python raises an exception for it
        assert outcome.code == 128 + signal.SIGINT
        return
    assert outcome.code == 3
    assert sorted(re.findall(r"\[rank \d\] saved", outcome.output)) == ["[rank 0] saved", "[rank 1] saved"]


@pytest.mark.matrix
def test_a_worker_that_ignores_signals_is_killed_after_the_grace_period(launches: Launches) -> None:
    """One worker saves and one ignores signals; the exit code is that of the killed one."""
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
def test_workers_end_with_a_killed_launcher(launches: Launches) -> None:
    """The kernel terminates them, although they ignore signals."""
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
def test_machines_are_ordered_by_node_rank(launches: Launches, tmp_path: Path) -> None:
    """Two launches rendezvous; the second machine holds the last ranks, although its launch started first."""
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
    """Where all machines are required, a signal to one ends all of them, whatever restarts are left."""
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
    """After its timeout, the error names the address of the rendezvous."""
    outcome = launches(
        "--processes", "1", "--nodes", "2", "--node-rank", "1", "--rendezvous", "127.0.0.1:1", "--join-timeout", "1",
        "sums.py",
    )  # fmt: skip
    assert outcome.code == 1
    assert outcome.errors.startswith("hexloop: Rendezvous at 127.0.0.1:1 failed")


@pytest.mark.matrix
def test_one_progress_bar_stays_below_the_output(launches: Launches) -> None:
    """On a terminal, the bar of rank 0 stays in one line, whatever other ranks print."""
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
