"""Tests of what later releases of transformers do than the installed one: expected to fail, or skipped.

hexloop does what the newest release does, whichever is installed. `reference/earlier_releases.tsv` lists the tests that
compare with transformers and that earlier releases fail, by the beginning of their names, in which `*` stands for any
text, with the first release that passes: of 5.0, 5.4, 5.9, 5.14, 5.19, 5.22 and 5.23, which were tried.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

TABLE = Path(__file__).with_name("reference") / "earlier_releases.tsv"
LATER = re.compile(
    r"TrainingArguments.*__init__\(\) got an unexpected keyword argument '(train_sampling_strategy|activation_checkpoin"
    r"ting)'|not used by the HfArgumentParser: \['--activation_checkpointing|greedy is not a valid SchedulerType"
)
"""Errors of transformers about what earlier releases do not have."""


def parts(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:2])


class EarlierRelease:
    """Marks the tests of the table that the installed release cannot pass."""

    def __init__(self) -> None:
        lines = TABLE.read_text(encoding="utf-8").splitlines()[1:]
        self.installed = version("transformers")
        rows = [line.split("\t") for line in lines]
        self.facts = {name: fact for since, name, fact in rows if parts(self.installed) < parts(since)}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Skip the files of the table, which import names that are not there."""
        report = yield
        if report.failed and (fact := self.fact(collector.nodeid)):
            report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {fact}")
        return report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Expect the tests of the table to fail."""
        for item in items:
            if fact := self.fact(item.nodeid):
                item.add_marker(pytest.mark.xfail(strict=True, reason=f"transformers {self.installed}: {fact}"))

    def fact(self, name: str) -> str | None:
        """Return what the installed release does instead, if the table has a beginning of the name after `tests/`."""
        name = name.rpartition("tests/")[2]
        patterns = ((f"{each.replace('[', '[[]')}*", fact) for each, fact in self.facts.items())
        return next((fact for pattern, fact in patterns if fnmatchcase(name, pattern)), None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Skip a test that gives transformers an argument or a schedule of a later release."""
        try:
            return (yield)
        except (TypeError, ValueError) as error:
            if LATER.search(str(error)):
                pytest.skip(f"transformers {self.installed}: {error}")
            raise
