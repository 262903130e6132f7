"""How results depend on arguments: which axes there are, and what is drawn of them."""

from __future__ import annotations

from typing import Any

import pytest

from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.search import MOST_ARGUMENTS, Search, search_data, search_of, search_section


def record(number: int, settings: dict[str, Any], **values: Any) -> RunRecord:
    history = RunHistory(f"run {number}", settings={"seed": 1, "output_dir": f"runs/{number}", **settings})
    for step, each in enumerate(values.pop("steps", [values]), 1):
        history.add_logged(step, each)
    return RunRecord(f"r{number}", f"r{number}", f"/runs/{number}", history, "journal.jsonl")


def found(*records: RunRecord) -> Search:
    search = search_of(records)
    assert search is not None
    return search


def test_axes_are_arguments_that_differ_and_results() -> None:
    """Numbers, words and missing values; losses with their lowest value; names of runs are no arguments."""
    search = found(
        record(0, {"learning_rate": 1e-4, "optim": "adamw", "fp16": True}, steps=[{"loss": 3.0}, {"loss": 2.0}]),
        record(1, {"learning_rate": 1e-2, "optim": "sgd", "fp16": False}, steps=[{"loss": 1.0}, {"loss": 4.0}]),
        record(2, {"learning_rate": 1e-3, "optim": "sgd"}, steps=[{"loss": 5.0, "eval_f1": 0.5}, {"loss": 6.0}]),
    )
    axes = {axis.name: axis for axis in (*search.arguments, *search.results)}
    assert set(axes) == {"learning_rate", "optim", "fp16", "last loss", "lowest loss", "last eval_f1"}
    assert axes["fp16"].values == ["True", "False", None]
    assert axes["lowest loss"].values == [2.0, 1.0, 5.0]
    assert axes["last eval_f1"].values == [None, None, 0.5]
    data = search_data(search)
    assert data is not None
    assert [(each["name"], each["type"]) for each in data["arguments"]] == [
        ("fp16", "category"), ("learning_rate", "log"), ("optim", "category"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "records",
    [
        [record(number, {"rate": number}, loss=float(number)) for number in range(2)],
        [record(number, {}, loss=float(number)) for number in range(5)],
        [record(number, {"rate": number}) for number in range(5)],
        [record(number, {"rate": number}, loss=1.0) for number in range(5)],
    ],
)
def test_without_differences_there_is_nothing(records: list[RunRecord]) -> None:
    """For two runs, equal arguments, no results, and equal ones."""
    assert search_of(records) is None
    assert search_section(None, []) == ""
    assert search_data(None) is None


def test_a_figure_has_the_same_in_words() -> None:
    """A table with a row for each run. With one argument there is no heat map."""
    records = [record(number, {"rate": number}, loss=float(number)) for number in range(3)]
    part = search_section(found(*records), ["a", "b", "c"])
    assert "heat-map" not in part
    assert "<td" in part
    assert 'id="parallel"' in part
    both = [record(number, {"rate": number, "size": number * 2}, loss=float(number)) for number in range(3)]
    assert 'id="heat-map"' in search_section(found(*both), ["a", "b", "c"])


def test_hostile_arguments_stay_text() -> None:
    """Names and values with HTML, of any type, very long, and more than can be drawn; secrets are removed."""
    hostile = "<script>alert(1)</script>"
    records = [
        record(
            number,
            {
                hostile: hostile * (number + 1),
                "api_key": f"hf_{'abcdefghij' * 3}{number}",
                "huge": 10**400 + number,
                "nested": {"a": [number]},
                "endless": float("inf") * (number - 1),
                **{f"argument {each}": number * each for each in range(1, 50)},
            },
            loss=float(number),
            **{f"eval_{hostile}": number / 2},
        )
        for number in range(3)
    ]
    search = found(*records)
    part, data = search_section(search, [hostile, "b", "c"]), str(search_data(search))
    assert "<script>" not in part
    assert "abcdefghij" not in part + data
    assert len(search.arguments) == MOST_ARGUMENTS
    assert len(data) < 20_000
