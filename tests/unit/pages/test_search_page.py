"""The page of a search: trials in every state, no trials, several objectives, and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hexloop.app.pages.page import search_content, search_page
from hexloop.app.pages.trials import ShownSearch, holds_search, objective_of, shown_search
from hexloop.domain.folders import Folder
from hexloop.domain.redaction import printable
from hexloop.domain.search.records import LINES, RecordedTrial, SearchDefinition, SearchLog
from hexloop.ports.search import TrialState
from tests.end_to_end.report_page import ReportPage
from tests.unit.pages.test_templates import HOSTILE, Elements

COMPLETE, PRUNED, FAILED = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED


def trial(number: int, state: TrialState | None, *values: float, **parameters: Any) -> RecordedTrial:
    """Return a trial. values: what it reported, the last one also its result if it is complete."""
    found = RecordedTrial(number, f"run-{number}", str(number), parameters or {"rate": 0.1 * number}, {}, {})
    found.reports = {step: [value] for step, value in enumerate(values, 1)}
    found.state, found.values = state, list(values[-1:]) if state is COMPLETE else None
    found.reason = "OutOfMemoryError: no room" if state is FAILED else None
    found.seconds = 0.0 if state is None else 1.5 + number
    return found


def write(folder: Path, *trials: RecordedTrial, directions: tuple[str, ...] = ("minimize",), wanted: int = 9) -> Path:
    """Write the record of a search."""
    folder.mkdir(parents=True, exist_ok=True)
    log = SearchLog(Folder(str(folder)))
    log.start(SearchDefinition("random", list(directions), wanted, 3))
    for each in trials:
        log.proposed(each, None)
        for step, values in each.reports.items():
            log.reported(each.number, step, values, False)
        if each.state is not None:
            log.ended(each, None)
    log.close()
    return folder


def page_of(folder: Path, tmp_path: Path) -> ReportPage:
    """Return the parsed page of a search."""
    path = tmp_path / "page.html"
    path.write_text(search_page(shown_search(folder), 1e9), encoding="utf-8")
    return ReportPage(path)


def test_trials_in_every_state(tmp_path: Path) -> None:
    """The best one, the counts, and a row for each trial; pruned ones have their last report, failed ones a reason."""
    folder = write(
        tmp_path / "search",
        trial(0, COMPLETE, 0.9, 0.5),
        trial(1, PRUNED, 0.95),
        trial(2, FAILED),
        trial(3, COMPLETE, 0.6, 0.4),
        trial(4, None, 0.7),
    )
    page = page_of(folder, tmp_path)
    page.check_policy()
    assert page.row("The search", "trials")[1] == "4 ended of 9"
    assert page.row("The search", "of these")[1] == "2 complete, 1 pruned, 1 failed, 1 running"
    assert page.row("The search", "best trial")[1] == "3, with 0.4"
    assert page.column("Parameters of the best trial, 3", "value") == ["0.3"]
    assert page.column("Trials", "trial") == ["0", "1", "2", "3", "4"]
    assert page.column("Trials", "objective") == ["0.5", "0.95", "-", "0.4", "0.7"]
    assert page.row("Trials", "2")[1] == "failed: OutOfMemoryError: no room"
    assert page.column("Trials", "") == ["", "", "", "best", ""]
    trials = page.data["trials"]
    assert trials["states"] == ["complete", "pruned", "failed", "complete", "running"]
    assert trials["objectives"] == [{"name": "objective", "minimized": True, "values": [0.5, 0.95, None, 0.4, 0.7]}]
    assert page.data["search"]["states"] == trials["states"]
    assert page.data["runs"] == ["trial 0", "trial 1 (pruned)", "trial 2 (failed)", "trial 3", "trial 4 (running)"]
    commands = "\n".join(page.preformatted)
    assert "run-3" in commands
    assert "--resume" in commands


def test_a_search_without_trials(tmp_path: Path) -> None:
    """Says so, and has no charts."""
    page = page_of(write(tmp_path / "search"), tmp_path)
    assert "There is no trial yet." in page.text
    assert "No trial has reported an objective yet." in page.text
    assert page.data["search"] is None


def test_more_is_better_where_it_is_maximized(tmp_path: Path) -> None:
    """And objectives that are not finite count for nothing."""
    folder = write(
        tmp_path / "s",
        trial(0, COMPLETE, 0.5),
        trial(1, COMPLETE, 0.7),
        trial(2, COMPLETE, float("inf")),
        directions=("maximize",),
    )
    search = shown_search(folder)
    assert search.best is not None
    assert search.best.number == 1
    assert [objective_of(each, 0) for each in search.trials] == [0.5, 0.7, None]
    assert page_of(folder, tmp_path).row("The search", "objective")[1] == "objective, more is better"


def test_several_objectives(tmp_path: Path) -> None:
    """There is no best trial, but trials that no other one is better than."""
    several = []
    for number, values in enumerate([(0.1, 5.0), (0.2, 9.0), (0.3, 4.0), (0.1, 9.0)]):
        each = trial(number, COMPLETE)
        each.values = list(values)
        several.append(each)
    folder = write(tmp_path / "search", *several, directions=("minimize", "maximize"))
    search = shown_search(folder)
    assert search.best is None
    assert [each.number for each in search.front] == [3]
    page = page_of(folder, tmp_path)
    assert page.row("The search", "trials that no other is better than")[1] == "3"
    assert page.column("Trials", "objective 2") == ["5", "9", "4", "9"]
    assert page.data["trials"]["front"] == [3]
    assert 'id="front-chart"' in page.source


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    """And counted; a record that cannot be read at all is said to be."""
    folder = write(tmp_path / "search", trial(0, COMPLETE, 0.5))
    with (folder / LINES).open("a") as file:
        file.write('{"kind": "ended", "trial": 7, "state": "complete"}\n{"kind": "repor')
    search = shown_search(folder)
    assert [each.number for each in search.trials] == [0]
    assert search.remarks == ["2 lines of search.jsonl are left out: they are not valid."]
    (folder / "search.json").write_text("{}")
    assert "search.json" in shown_search(folder).remarks[0]
    assert "Left out" in page_of(folder, tmp_path).headings
    (folder / LINES).unlink()
    (folder / LINES).symlink_to(tmp_path / "page.html")
    assert shown_search(folder).trials == ()


def test_a_link_is_not_a_search(tmp_path: Path) -> None:
    """A folder has a search if its definition is there; a linked one is not read."""
    write(tmp_path / "one")
    (tmp_path / "two").mkdir()
    assert not holds_search(tmp_path / "two")
    (tmp_path / "two" / "search.json").symlink_to(tmp_path / "one" / "search.json")
    assert shown_search(tmp_path / "two").remarks


@pytest.mark.parametrize("text", HOSTILE, ids=[f"{printable(each[:12])}" for each in HOSTILE])
def test_a_hostile_text_adds_no_element(text: str) -> None:
    """Of a parameter, a value, a reason or a backend."""

    def page(words: str) -> str:
        trials = [trial(number, COMPLETE, 0.1 * number, **{f"a {words}": f"{number}{words}"}) for number in range(5)]
        trials[0].reason = trials[1].name = words
        search = ShownSearch(f"/runs/{printable(words)}", SearchDefinition(words, ["minimize"], 9), trials, [words])
        return search_page(search, 1e9) + str(search_content(search, {0: "runs?run=a"}).sections)

    def elements(source: str) -> list[tuple[str, list[str]]]:
        return [(name, sorted(attributes)) for name, attributes in Elements(source).elements]

    assert elements(page(text)) == elements(page("harmless"))


def test_objectives_have_the_names_of_their_metrics(tmp_path: Path) -> None:
    """And axes are logarithmic where the space is."""
    space = {"rate": {"low": 0.001, "high": 0.002, "log": True}, "decay": {"low": 0.001, "high": 0.9}}
    definition = SearchDefinition("random", ["maximize"], 9, space=space, metrics=["accuracy"])
    trials = [trial(number, COMPLETE, 0.1, rate=0.001 + number * 1e-4, decay=0.002 * 4**number) for number in range(4)]
    content = search_content(ShownSearch("/runs/a", definition, trials))
    data = content.document["trials"]
    assert [each["name"] for each in data["objectives"]] == ["accuracy"]
    assert {each["name"]: each["type"] for each in data["parameters"]} == {"rate": "log", "decay": "value"}
    hostile = SearchDefinition("random", ["maximize"], 9, space={"rate": 3, "decay": ["low"]}, metrics=["a", "b"])
    assert search_content(ShownSearch("/runs/a", hostile, trials)).document["trials"]["objectives"][0]["name"] == (
        "objective"
    )


def importance_of(trials: list[RecordedTrial]) -> str:
    content = search_content(ShownSearch("/runs/a", SearchDefinition("random", ["minimize"], 9), trials))
    return next((str(each.content) for each in content.sections if each.identifier == "importance"), "")


def test_importance_is_by_the_package_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By optuna; without it, and for trials that it has no result for, by the share that is explained."""
    trials = [trial(number, COMPLETE, float(number % 5), a=number % 5, b=number % 2 == 0) for number in range(30)]
    pytest.importorskip("optuna")
    assert "By optuna, for 30 complete trials" in importance_of(trials)
    monkeypatch.setattr("hexloop.app.assembly.searches._is_installed", lambda row: False)
    simple = importance_of(trials)
    assert "adjusted correlation ratio" in simple
    assert simple.index(">a<") < simple.index(">b<")
    assert "At least 8 complete trials" in importance_of(trials[:5])


def test_importance_of_hostile_trials() -> None:
    """Values of any kind are left to the simple measure."""
    values: list[Any] = [None, [1], {"a": 2}, "x" * 500, 10**400, float("inf"), -1, True, "y", 0.5, 1e200, "z"]
    trials = [trial(number, COMPLETE, float(number), a=value) for number, value in enumerate(values)]
    assert "adjusted correlation ratio" in importance_of(trials)
