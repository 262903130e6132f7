"""The table of many runs: a page that takes the changes has the same as one that gets the whole table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.labels import Labels
from hexloop.app.pages.run_table import FACTS, MOST_ARGUMENTS, MOST_METRICS, RunTable
from hexloop.app.pages.watching import Listing, RunListing, SharedSettings

NOW = 1_000.0


def run(
    folder: str, values: dict[str, Any], settings: dict[str, Any], time: float = NOW, ends: bool = True
) -> RunListing:
    history = RunHistory(folder)
    history.take({"kind": "began", "step": 0, "total_steps": 10, "settings": settings, "time": time - 5})
    history.take({"kind": "logged", "step": 4, "values": values, "time": time})
    if ends:
        history.take({"kind": "ended", "step": 10, "stopped": False, "time": time})
    return RunListing(folder, history)


def listing(runs: Iterable[RunListing], waiting: int = 0) -> Listing:
    shared = SharedSettings()
    return Listing([shared.listing(each, each.labels) for each in runs], [], False, waiting, waiting == 0)


def page_of(document: dict[str, Any]) -> dict[str, list[Any]]:
    return {row[0]: row for row in document["rows"]}


def facts_of(row: list[Any]) -> dict[str, Any]:
    return dict(zip(FACTS, row, strict=True))


def test_a_row_has_what_a_run_is_doing(tmp_path: Path) -> None:
    """State, steps from the first moment, pace, times, and labels."""
    table = RunTable(str(tmp_path))
    table.update(listing([run("a", {"loss": 0.25}, {"seed": 1}, ends=False)]), NOW + 1)
    row = facts_of(json.loads(table.document())["rows"][0])
    expected = {
        "folder": "a",
        "state": "running",
        "detail": "",
        "step": 4,
        "total": 10,
        "pace": 1.25,
        "started": 995,
        "seen": 1000,
    }
    assert {name: row[name] for name in expected} == expected
    table.update(listing([run("a", {"loss": 0.25}, {"seed": 1}, ends=False)]), NOW + 3600)
    assert facts_of(json.loads(table.document())["rows"][0])["state"] == "lost"


def test_columns_are_what_differs(tmp_path: Path) -> None:
    """Arguments that are equal everywhere are left out, and those that only some runs have are not; 1 is not True."""
    runs = [
        run("a", {"loss": 1.0, "train_runtime": 2.0}, {"same": 1, "rate": 0.1, "flag": True, "output_dir": "a"}),
        run("b", {"loss": 2.0, "eval_f1": 0.5}, {"same": 1, "rate": 0.2, "flag": 1, "output_dir": "b"}),
        run("c", {"loss": "NaN"}, {"same": 1, "rate": 0.1, "more": 3, "flag": True}),
    ]
    table = RunTable(str(tmp_path))
    table.update(listing(runs), NOW)
    document = json.loads(table.document())
    assert document["metrics"] == ["loss", "eval_f1", "train_runtime"]
    assert document["arguments"] == ["flag", "more", "rate"]
    rows = {name: facts_of(row) for name, row in page_of(document).items()}
    assert rows["b"]["metrics"] == [2.0, 0.5, None]
    assert rows["c"]["metrics"] == ["not finite", None, None]
    assert rows["c"]["arguments"] == [True, 3, 0.1]


def test_columns_and_texts_are_bounded(tmp_path: Path) -> None:
    """And secrets are not shown."""
    values = {f"v{number}": 1.0 for number in range(100)}
    runs = [
        run(str(each), values, {f"a{number}": each for number in range(100)} | {"api_key": f"{each}secret"})
        for each in (1, 2)
    ]
    table = RunTable(str(tmp_path))
    table.update(listing(runs), NOW)
    document = json.loads(table.document())
    assert (len(document["metrics"]), len(document["arguments"])) == (MOST_METRICS, MOST_ARGUMENTS)
    table.update(
        listing([run(str(each), {}, {"api_key": f"{each}secret", "long": f"{each}" * 500}) for each in (1, 2)]), NOW
    )
    text = table.document()
    assert "secret" not in text
    assert max(len(each) for each in facts_of(json.loads(text)["rows"][0])["arguments"]) < 100


runs_drawn = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(
        st.dictionaries(st.sampled_from(["loss", "eval_f1", "x"]), st.floats(-1, 1), max_size=2),
        st.dictionaries(st.sampled_from(["seed", "rate"]), st.integers(0, 2)),
        st.booleans(),
        st.sampled_from([(), ("good",)]),
    ),
)


@given(st.lists(st.tuples(runs_drawn, st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_changes_add_up_to_the_table(versions: list[tuple[dict[str, Any], int, bool]]) -> None:
    """For a page that asks after every change, and for one that misses some."""
    table, page, known = RunTable("/runs"), dict[str, list[Any]](), ""
    for number, (drawn, waiting, asks) in enumerate(versions):
        runs = []
        for name, (values, settings, ends, tags) in drawn.items():
            made = run(name, values, settings, NOW + number, ends)
            runs.append(RunListing(name, made.history, labels=Labels(tags)))
        table.update(listing(runs, waiting), NOW + number)
        if not asks and number < len(versions) - 1:
            continue
        fresh = json.loads(table.document(known))
        known = table.version
        page = {} if fresh["whole"] else page
        page |= page_of(fresh)
        for folder in fresh["removed"]:
            page.pop(folder, None)
        whole = json.loads(table.document())
        assert page == page_of(whole)
        assert (fresh["metrics"], fresh["waiting"]) == (whole["metrics"], whole["waiting"])
        assert json.loads(table.document(known))["rows"] == []


def test_a_version_of_another_board_gets_the_whole_table() -> None:
    """Such as of one that was started again, or one that no board has made."""
    table = RunTable("/runs")
    table.update(listing([run("a", {"loss": 1.0}, {})]), NOW)
    for known in (
        "",
        "0.1",
        f"{table.version}9",
        table.version.replace(".", ".-"),
        f"{table.version.partition('.')[0]}.\u0661",
    ):
        assert json.loads(table.document(known))["whole"] is True, known
    assert json.loads(table.document(table.version))["whole"] is False
