"""Settings of every test process, made before torch is imported; examples, the mark `one_in`, garbage collections."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter

import pytest

from tests.earlier_releases import EarlierRelease
from tests.examples import choose_profile

# One thread per process: tests run in parallel on few cores, and float sums keep their order.
# No xet: the loopback hub of the tests speaks the hub's plain protocol.
for name in ("OMP_NUM_THREADS", "HF_HUB_DISABLE_XET"):
    os.environ.setdefault(name, "1")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples properties are tried with, before the tests are imported; shorten collections."""
    choose_profile(config.getoption("markexpr"))
    config.pluginmanager.register(Frozen())
    config.pluginmanager.register(EarlierRelease())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all cases of a test as `matrix`, except for one in so many, where it has the mark `one_in`."""
    cases = Counter[str]()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is None or item.get_closest_marker("matrix") is not None:
            continue
        name = item.nodeid.partition("[")[0]
        if cases[name] % mark.args[0]:
            item.add_marker("matrix")
        cases[name] += 1


class Frozen:
    """Leaves what was imported and collected out of garbage collections, each of which takes half a second with it."""

    MODULES = 100
    """After how many imports it does so again."""

    def __init__(self) -> None:
        self.modules = 0

    def pytest_runtest_setup(self) -> None:
        """Called before each test."""
        if len(sys.modules) >= self.modules + self.MODULES:
            self.modules = len(sys.modules)
            gc.collect()
            gc.freeze()
