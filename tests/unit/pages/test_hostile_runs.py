"""Pages of runs whose names, values, arguments and files are hostile have the elements of pages of harmless runs."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.pages.board import list_content, list_page, runs_page, with_controls
from hexloop.app.pages.history import RunHistory
from hexloop.app.pages.lines import LinesPart, lines_content
from hexloop.app.pages.page import content_of, report_page
from hexloop.app.pages.reading import RunRecord
from hexloop.app.pages.results import Results
from hexloop.app.pages.system import RankMetrics, SystemMetrics
from hexloop.app.pages.watching import Listing, RunListing
from hexloop.domain.redaction import printable
from tests.unit.pages.test_templates import HOSTILE, Elements

NOW = 1e9 + 60


def record(text: str, number: int) -> RunRecord:
    """Return a run with a text in every place where one may be."""
    history = RunHistory(f"{number}{text}")
    settings = {f"name {text}": f"{number}{text}", "seed": text, "list": [text], "board_control": True}
    notes: list[dict[str, Any]] = [
        {"kind": "began", "run": text, "step": 0, "settings": settings, "defaults": {"seed": "1"}, "command": text},
        {
            "kind": "information",
            "host": dict.fromkeys(("name", "system", "python", "processor", "device"), text),
            "git": {"commit": text, "branch": text, "changed_files": 1},
            "packages": {text: text},
            "model": {"name": text},
        },
        *(
            {"kind": "logged", "step": step, "values": {f"a {text}": 1.0 + number, f"eval_{text}": step, "loss": 0.5}}
            for step in (1, 2)
        ),
        {"kind": "save", "phase": "failed", "step": 2, "error": text},
        {"kind": "irregular", "step": 2, "first_sample": 0, "samples": 1, "epoch": 0, "what": "loss", "value": text},
        {"kind": "goodput", "step": 2, "seconds": {"step": 1.0, text: 2.0}},
        {"kind": "profile", "first": 1, "last": 2, "trace": text, "table": text},
        {"kind": "command", "sequence": 1, "action": text, "by": text, "outcome": "failed", "reason": text},
        {"kind": "ended", "step": 2, "stopped": True, "reasons": [text]} if number else {"kind": "paused", "step": 2},
    ]
    for each, note in enumerate(notes):
        history.take({"time": 1e9 + each, "reaction": "skip", **note})
    results = Results({text: ("image/png", b"\x89PNG")}, {text: {text: text}}, {text: [text, text]}, [text])
    folder = f"/runs/{printable(text)}"  # file systems do not allow some characters
    usage = {"cpu": array("d", [1.0, 2.0]), "gpu_use": array("d", [3.0, 4.0])}
    system = SystemMetrics([RankMetrics(0, text, array("d", [1e9, 1e9 + 1]), array("q", [0, 1]), usage)])
    parts: tuple[Any, ...] = ((), results, {}, {text: text}, [text], [text], system)
    return RunRecord(text, f"{number}{text}", folder, history, text, *parts)


def pages(text: str) -> list[str]:
    """Return the pages of runs that have a text in every place."""
    records = [record(text, number) for number in range(3)]
    content = with_controls(content_of(records, NOW), [text] * 3, records, NOW)
    listed = [RunListing(text, each.history, text if number else "") for number, each in enumerate(records)]
    lines = lines_content(text, text, LinesPart([text, text], 10, 20, 30))
    return [
        report_page(records, NOW),
        report_page(records[:1], NOW),
        runs_page(content, [text], text),
        list_page(list_content(Path(printable(text)), Listing(listed, [], True, 0, True), NOW), text),
        list_page(lines, text),
    ]


def names(page: str) -> list[tuple[str, list[str]]]:
    """Return the elements of a page in order, each with the names of its attributes."""
    return [(name, sorted(attributes)) for name, attributes in Elements(page).elements]


@pytest.mark.parametrize("text", HOSTILE, ids=[f"{printable(each[:12])}" for each in HOSTILE])
def test_a_hostile_text_adds_no_element(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor an attribute, nor a control character; the data of the charts is read back."""
    monkeypatch.setattr("hexloop.app.pages.page.asset", lambda name: f"/* {name} */")
    for hostile, harmless in zip(pages(text), pages("harmless"), strict=True):
        assert names(hostile) == names(harmless)
        assert printable(hostile.replace("\n", "")) == hostile.replace("\n", "")
        data = hostile.partition('id="report-data">')[2].partition("</script>")[0]
        assert isinstance(json.loads(data)["charts"], list)
