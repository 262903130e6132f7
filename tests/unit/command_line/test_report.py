"""`hexloop report`, and `hexloop train --report`, on real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.command_line.commands import NOISY, Commands


def test_train_writes_a_report_and_its_last_line_names_it(commands: Commands) -> None:
    """Beside the files to look at; the page has the command of the process and how to resume."""
    recipe = commands.write("noisy.yaml", NOISY)
    outcome = commands("train", recipe, "--report", "--output_dir", "out")
    assert outcome.code == 0, outcome.errors
    assert "out/report.html" in outcome.last_line
    page = Path("out/report.html").read_text()
    assert "<h1>Run out</h1>" in page
    assert "finished" in page

    stopped = commands("train", commands.stopping(step=4, names=["SIGTERM"]), "--report", "--output_dir", "stopped")
    assert stopped.code == 3
    assert "stopped/report.html" in stopped.last_line
    assert "stopped: signal SIGTERM" in Path("stopped/report.html").read_text()


def test_failing_report_does_not_fail_the_run(commands: Commands) -> None:
    """It is reported. Without --report there is no page."""
    recipe = commands.write("noisy.yaml", NOISY)
    assert commands("train", recipe, "--output_dir", "out").code == 0
    assert not Path("out/report.html").exists()
    Path("other/report.html").mkdir(parents=True)
    outcome = commands("train", recipe, "--report", "--output_dir", "other")
    assert outcome.code == 0
    assert "hexloop: the report was not written: " in outcome.errors


def test_report_of_one_run_is_in_its_folder_and_of_several_here(commands: Commands) -> None:
    """Unless a file is named."""
    recipe = commands.write("noisy.yaml", NOISY)
    for name in ("one", "two"):
        assert commands("train", recipe, "--output_dir", name).code == 0
    assert commands("report", "one").last_line == "The report is in one/report.html"
    assert commands("report", "one", "two").last_line == "The report is in report.html"
    journal = "one/.hexloop/journal.jsonl"
    assert commands("report", journal, "--out", "x/a.html").last_line == "The report is in x/a.html"
    assert Path("x/a.html").stat().st_size > 1_000_000


@pytest.mark.parametrize("given", [[], ["one", "--wrong"]])
def test_wrong_options_are_refused(commands: Commands, given: list[str]) -> None:
    """As by every command."""
    assert commands("report", *given).code == 2
