"""A subclass of a contract suite that overrides too little is told what else to override, all at once."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hexloop.app.testing.contracts as contracts
from hexloop.app.testing.contracts.overriding import _missing, not_overridden

SUITES = sorted(
    {
        member
        for found in pkgutil.iter_modules(contracts.__path__)
        for member in vars(import_module(f"{contracts.__name__}.{found.name}")).values()
        if isinstance(member, type) and member.__name__.endswith("Contract")
    },
    key=lambda each: each.__name__,
)

SUITE = """
import pytest
from hexloop.adapters.device.simulated import SimulatedDevice
from hexloop.testing import DeviceContract

class TestMine(DeviceContract):
    @pytest.fixture
    def device(self):
        return SimulatedDevice()
"""


@pytest.mark.parametrize("suite", SUITES)
def test_each_suite_names_what_to_override(suite: type[Any]) -> None:
    """With its kind, parameters and what it returns."""
    mine = type("TestMine", (suite,), {})
    message = str(not_overridden(mine()))
    assert message.startswith(f"TestMine has to override {len(_missing(mine))} member")
    assert _missing(mine)
    for line in message.splitlines()[1:]:
        assert line.strip().startswith(("method ", "@pytest.fixture "))
        assert len(line.partition("): ")[2] or line.partition(": ")[2]) > 5


def test_what_is_overridden_is_not_named() -> None:
    """Nor what is inherited with a default."""
    from hexloop.testing import DeviceContract

    class TestMine(DeviceContract):
        @pytest.fixture
        def device(self) -> Any:
            return None

        def draw(self, device: Any) -> float:
            return 0.0

    message = str(not_overridden(TestMine()))
    assert message.startswith("TestMine has to override 1 member:\n    method out_of_memory(self, device:")
    assert "Return an out-of-memory error of the device." in message


def test_pytest_shows_it(tmp_path: Path) -> None:
    """As the error of each test that needs such a member."""
    (tmp_path / "test_mine.py").write_text(SUITE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "TestMine has to override 2 members:" in ended.stdout
    assert "method draw(self, device: Device) -> float: Return the next number" in ended.stdout
    assert "method out_of_memory(self, device: Device)" in ended.stdout
