"""The fuzzers can fail: what a case does to its process is a finding, with the case that did it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.everything import TARGETS
from tests.fuzz.processes import run_all
from tests.fuzz.targets import Target

ROOT = Path(__file__).parents[2]


def _segfault() -> None:
    ctypes.string_at(8)


def _hang() -> None:
    while True:
        pass


def _sleep() -> None:
    time.sleep(3600)


def _allocate() -> None:
    bytearray(600 << 20)


def _allocate_more() -> None:
    bytearray(1 << 45)


def _raise() -> None:
    raise KeyError("raw")


def _leave() -> None:
    os._exit(3)


def _exit() -> None:
    sys.exit(0)


DEEDS = {
    "segfault": (_segfault, "crash", "signal 11"),
    "abort": (os.abort, "crash", "signal 6"),
    "hang": (_hang, "hang", "processor time"),
    "allocate": (_allocate, "memory", "MiB more than before"),
    "allocate more": (_allocate_more, "memory", "MemoryError"),
    "raise": (_raise, "error", "KeyError: 'raw' | KeyError"),
    "leave": (_leave, "crash", "exit code 3"),
    "exit": (_exit, "error", "SystemExit"),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", DEEDS)
def test_what_a_case_does_is_a_finding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kind, the case and the place are known, and the cases after it are run."""
    deed, kind, words = DEEDS[name]
    if kind == "hang":
        monkeypatch.setattr("tests.fuzz.processes.SECONDS", 0.5)
    counts = run_all("target", lambda data: deed() if data == b"bad" else None, [b"good", b"bad", b"fine", b"last"])
    (finding,) = counts.findings.values()
    assert (finding.kind, finding.data, counts.cases) == (kind, b"bad", 4)
    assert words in finding.detail


def test_a_case_that_waits_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no processor time, and never ends."""
    monkeypatch.setattr("tests.fuzz.processes.WAIT", 0.5)
    monkeypatch.setattr("tests.fuzz.processes.SECONDS", 0.2)
    (finding,) = run_all("target", lambda _: _sleep(), [b"only"]).findings.values()
    assert finding.kind == "hang"


def test_a_case_that_gets_no_processor_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with other work takes long for it; what counts is the processor time that it uses."""
    monkeypatch.setattr("tests.fuzz.processes.WAIT", 0.1)
    assert run_all("target", lambda _: _work(until=time.process_time() + 1.0), [b"only"]).findings == {}


def _work(until: float) -> None:
    while time.process_time() < until:
        pass


def test_the_same_error_is_one_finding() -> None:
    """Many cases with one cause are counted, and one of them is kept."""
    counts = run_all("target", lambda _: _raise(), [b"%d" % number for number in range(20)])
    assert (len(counts.findings), counts.repeated, counts.cases) == (1, 19, 20)


def test_cases_that_do_nothing_are_no_findings() -> None:
    """All are run."""
    counts = run_all("target", lambda _: None, [b"%d" % number for number in range(500)])
    assert (counts.cases, counts.findings) == (500, {})


def test_the_command_fails_if_there_are_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random cases find an error, which is written to a file that repeats it."""
    monkeypatch.setitem(TARGETS, "bad", Target("bad", lambda data: _raise() if len(data) > 3 else None))
    words = ["fuzz", "--seconds", "1", "--targets", "bad", "--random", "--findings", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1
    assert "1 findings" in capsys.readouterr().out
    (path,) = (each for each in (tmp_path / "bad").iterdir() if each.suffix != ".json")
    monkeypatch.setattr(sys, "argv", ["fuzz", "--target", "bad", str(path)])
    assert main() == 1
    assert "KeyError" in capsys.readouterr().out


@pytest.mark.matrix
def test_the_command_reports_and_repeats_findings(tmp_path: Path) -> None:
    """It exits with 0 without findings; a file of a finding is run again by name."""
    (tmp_path / "case").write_bytes(b"{}")
    for words in (["--seconds", "2", "--targets", "json", "--random"], ["--target", "json", str(tmp_path / "case")]):
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", "--findings", str(tmp_path), *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "0 findings" in ended.stdout or "No finding." in ended.stdout
