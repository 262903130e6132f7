"""The thread that samples a rank: what it writes, how its cost and its file stay bounded, what ends it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from hexloop.adapters.clock import ManualClock
from hexloop.domain import system_sampling
from hexloop.domain.folders import Folder
from hexloop.domain.run_folder import system_file
from hexloop.domain.system_metrics import LONGEST_LINE, MOST_SAMPLES, Sample, SessionStart
from hexloop.domain.system_sampling import LARGEST_SHARE, MOST_LINES, SHORTEST, SystemSampler, lines_of_rank


class Bench:
    """A sampler with a clock that is moved by hand. cost: seconds of processor time that each sample takes."""

    def __init__(self, folder: Path, run: str = "run", cost: float = 0.0) -> None:
        self.folder, self.clock, self.cost = Folder(folder), ManualClock(1e9), cost
        self.values: dict[str, float] = {"cpu": 10.0}
        self.failure: Exception | None = None
        self.step = 0
        self.reports: list[str] = []
        self._spent = 0.0
        start = SessionStart(run, 0, "host", os.getpid(), 0, self.clock.wall())
        self.sampler = SystemSampler(
            self.measure, lambda: self.step, self.folder, start, self.clock, self.reports.append, lambda: self._spent
        )

    def measure(self) -> Mapping[str, float]:
        self._spent += self.cost
        if self.failure is not None:
            raise self.failure
        return self.values

    def sample(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(self.sampler.interval)
            self.step += 1
            self.sampler.sample()

    def lines(self) -> list[Sample | SessionStart]:
        return list(lines_of_rank(self.folder, 0))


def test_a_session_starts_with_its_process(tmp_path: Path) -> None:
    """Then comes a line for each sample; another session appends to it."""
    for run in ("one", "two"):
        bench = Bench(tmp_path, run)
        bench.sample(2)
        bench.sampler.close()
    found = bench.lines()
    assert [type(each) for each in found] == [SessionStart, Sample, Sample] * 2
    assert [each.run for each in found if isinstance(each, SessionStart)] == ["one", "two"]
    assert found[2] == Sample(1e9 + 2 * SHORTEST, 2, {"cpu": 10.0})


def test_a_file_stays_small_and_covers_the_run(tmp_path: Path) -> None:
    """However many samples are taken; fewer are taken then."""
    bench = Bench(tmp_path)
    bench.sample(3 * MOST_SAMPLES)
    found = [each for each in bench.lines() if isinstance(each, Sample)]
    assert MOST_SAMPLES // 4 < len(found) <= MOST_SAMPLES
    assert found[0].step == 1
    assert found[-1].step == 3 * MOST_SAMPLES
    gaps = [other.time - one.time for one, other in pairwise(found)]
    assert max(gaps) <= 5 * min(gaps)
    assert bench.sampler.interval > SHORTEST
    assert bench.reports == []


def test_a_sample_that_costs_much_comes_seldom(tmp_path: Path) -> None:
    """A thousandth of a processor at most; the first sample, which imports, does not count."""
    bench = Bench(tmp_path, cost=5.0)
    bench.sample()
    bench.cost = 0.002
    bench.sample()
    assert bench.sampler.interval == pytest.approx(0.002 / LARGEST_SHARE)
    bench.sample(10)
    assert bench.sampler.interval == pytest.approx(0.002 / LARGEST_SHARE)


def test_a_line_that_a_full_disk_cut_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next line starts on its own."""
    bench = Bench(tmp_path)
    bench.sample()
    write, cut = os.write, [True]

    def short(descriptor: int, data: bytes) -> int:
        return write(descriptor, data[:5] if cut else data)

    monkeypatch.setattr(os, "write", short)
    bench.sample()
    cut.clear()
    bench.sample()
    assert [each.step for each in bench.lines()] == [0, 1, 3]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"time": 5.0, "st', id="cut"),
        pytest.param(b"\xff\xfe", id="not a text"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"time": 5.0}', id="without a step"),
        pytest.param(b'{"time": 5.0, "step": -1}', id="a step below zero"),
        pytest.param(b'{"time": true, "step": 5}', id="a time that is no number"),
        pytest.param(b'{"kind": "began", "time": 5.0, "step": 5}', id="a start of no process"),
        pytest.param(b'{"time": 5.0, "step": 5, "note": "%s"}' % (b"x" * LONGEST_LINE), id="too long"),
    ],
)
def test_a_line_that_is_not_sound_is_left_out(line: bytes, tmp_path: Path) -> None:
    """Those before and after it are read, and the next session goes on after them."""
    bench = Bench(tmp_path)
    bench.sample(2)
    bench.sampler.close()
    with (tmp_path / system_file(0)).open("ab") as file:
        file.write(line + b"\n")
    again = Bench(tmp_path, "again")
    again.sample()
    again.sampler.close()
    assert [(type(each), each.step) for each in again.lines()] == [
        (SessionStart, 0),
        (Sample, 1),
        (Sample, 2),
        (SessionStart, 0),
        (Sample, 1),
    ]


def test_a_file_of_too_many_lines_is_read_in_part(tmp_path: Path) -> None:
    """A run keeps far fewer lines, so that such a file is from elsewhere; reading it takes bounded time."""
    path = tmp_path / system_file(0)
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps({"time": 1.0, "step": step}) + "\n" for step in range(MOST_LINES + 3)))
    steps = [each.step for each in lines_of_rank(Folder(tmp_path), 0)]
    assert steps == [*range(MOST_LINES)]


def wait_until_idle(sampler: SystemSampler) -> None:
    assert sampler._thread is not None
    sampler._thread.join(10)
    assert not sampler._thread.is_alive()


def test_a_measurement_that_fails_ends_the_samples(tmp_path: Path) -> None:
    """With one report; the thread is gone."""
    bench = Bench(tmp_path)
    bench.failure = RuntimeError("the driver is gone")
    bench.sampler.start()
    wait_until_idle(bench.sampler)
    assert len(bench.reports) == 1
    assert "no longer recorded (RuntimeError: the driver is gone)" in bench.reports[0]
    bench.sampler.close()


def test_a_folder_that_cannot_be_written_ends_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link in the place of the file is not followed."""
    monkeypatch.setattr(system_sampling, "SHORTEST", 0.0)
    bench = Bench(tmp_path)
    (tmp_path / ".hexloop").mkdir()
    (tmp_path / system_file(0)).symlink_to(tmp_path / "elsewhere")
    bench.sampler.interval = 0.001
    bench.sampler.start()
    wait_until_idle(bench.sampler)
    assert len(bench.reports) == 1
    assert not (tmp_path / "elsewhere").exists()


def test_closing_does_not_wait_for_a_driver_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it measures afterwards is not written."""
    monkeypatch.setattr(system_sampling, "CLOSING", 0.05)
    bench, released = Bench(tmp_path), threading.Event()

    def hang() -> Mapping[str, float]:
        released.wait(30)
        return {}

    bench.sampler._measure = hang
    bench.sampler.start()
    bench.sampler.close()
    released.set()
    wait_until_idle(bench.sampler)
    assert not (tmp_path / system_file(0)).exists()


def test_samples_come_while_nothing_else_happens(tmp_path: Path) -> None:
    """From a daemon thread, until it is closed."""
    bench = Bench(tmp_path)
    bench.sampler.interval = 0.001
    bench.sampler.start()
    until = time.monotonic() + 20
    while len(bench.lines() if (tmp_path / system_file(0)).exists() else []) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    bench.sampler.close()
    count = len(bench.lines())
    assert threading.active_count() >= 1
    assert len(bench.lines()) == count
