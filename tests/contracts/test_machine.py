"""Contract of the Machine port, run on each adapter, and what psutil measures here."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from hexloop.adapters.machine import PsutilMachine, SimulatedMachine
from hexloop.app.testing.contracts.environment import MachineContract
from hexloop.ports.process import Machine


class TestPsutilMachine(MachineContract):
    @pytest.fixture
    def machine(self, tmp_path: Path) -> Machine:
        return PsutilMachine(tmp_path)

    def test_memory_and_space_are_those_of_this_machine(self, tmp_path: Path) -> None:
        """Processor time and rates are known from the second call on."""
        machine = PsutilMachine(tmp_path)
        first = machine.measure()
        assert first["memory_total"] == psutil.virtual_memory().total
        assert 0 < first["process_memory"] < first["memory"] < first["memory_total"]
        assert first["disk_free"] > 0
        assert "cpu" not in first
        until = time.perf_counter() + 0.05
        while time.perf_counter() < until:
            pass
        second = machine.measure()
        assert 0 <= second["cpu"] <= 100
        assert second["process_cpu"] > 0

    def test_a_reading_that_fails_is_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As in a sandbox, where a system call is refused; it is not tried again."""
        calls = []

        def fail(*_given: object) -> None:
            calls.append(1)
            raise PermissionError("no")

        monkeypatch.setattr(psutil, "virtual_memory", fail)
        machine = PsutilMachine(tmp_path)
        for _ in range(3):
            found = machine.measure()
            assert "memory" not in found
            assert "disk_free" in found
        assert calls == [1]


class TestSimulatedMachine(MachineContract):
    @pytest.fixture
    def machine(self) -> Machine:
        return SimulatedMachine({"cpu": 50.0, "memory": 1e9})

    def test_it_measures_what_was_set(self) -> None:
        """And raises a failure."""
        machine = SimulatedMachine({"cpu": 50.0})
        machine.values["cpu"] = 60.0
        assert machine.measure() == {"cpu": 60.0}
        machine.failure = RuntimeError("no")
        with pytest.raises(RuntimeError):
            machine.measure()
        assert machine.calls == 2
