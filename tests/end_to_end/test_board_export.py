"""`hexloop board --export`: a static site of several runs, from a file system in a browser, with what it leaves out."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from hexloop.app.command_line import main
from tests.browser import Browser, needs_browser
from tests.end_to_end.test_board import HOSTILE, begin, note


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with three runs, one of which is hidden and one of which has a hostile name."""
    for name in ("one", "group/two", "hidden", "evil <img src=x>"):
        begin(tmp_path / "runs" / name, HOSTILE, steps=5)
    labels = tmp_path / "runs/hidden/.hexloop/labels.json"
    labels.parent.mkdir()
    labels.write_text(json.dumps({"schema": 1, "tags": ["secret-tag"], "notes": "", "hidden": True}))
    return tmp_path / "runs"


def pages(site: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in site.glob("*.html")}


def test_a_site_has_the_list_every_run_and_the_comparison(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its pages link each other; hidden runs are left out; nothing needs a server."""
    site = tmp_path / "site"
    assert main(["board", str(runs), "--export", str(site)]) == 0
    told = capsys.readouterr().out
    assert "1 hidden runs are left out" in told
    assert "site of 3 runs" in told
    found = pages(site)
    assert sorted(re.sub(r"-\d{4}", "", name) for name in found) == [
        "compare.html", "index.html", "run-evil-img-src-x.html", "run-group-two.html", "run-one.html",
    ]  # fmt: skip
    assert "hidden" not in found["index.html"].partition('id="report-data">')[2].partition("</script>")[0].replace(
        '"hidden"', ""
    )
    for name, text in found.items():
        for address in re.findall(r'(?:href|src)="([^"#]+)"', text):
            assert address == "data:," or (site / address).is_file(), (name, address)
        assert "<script>window" not in text
        assert "data-updates" not in text
        assert "secret-tag" not in text
    assert not [path for path in site.rglob("*") if path.is_symlink()]


def test_an_export_replaces_an_earlier_one_and_nothing_else(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages of runs that are gone are removed, other files are not; a folder of something else is refused."""
    site = tmp_path / "site"
    assert main(["board", str(runs), "--export", str(site)]) == 0
    (site / "mine.html").write_text("mine")
    marker = json.loads((site / "hexloop-board.json").read_text())
    marker["files"] += ["mine.html", "../outside.html", "assets/../../outside.html"]
    (site / "hexloop-board.json").write_text(json.dumps(marker))
    (tmp_path / "outside.html").write_text("outside")
    os.rename(runs / "one", tmp_path / "gone")
    assert main(["board", str(runs), "--export", str(site)]) == 0
    assert not [name for name in pages(site) if name.endswith("-one.html")]
    assert (site / "mine.html").read_text() == "mine"
    assert (tmp_path / "outside.html").read_text() == "outside"

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("text")
    capsys.readouterr()
    for target, problem in ((other, "something else"), (other / "thesis.tex", "is a file")):
        assert main(["board", str(runs), "--export", str(target)]) == 2
        assert problem in capsys.readouterr().err
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    assert main(["board", str(tmp_path / "empty"), "--export", str(tmp_path / "new")]) == 2
    assert "no run to export" in capsys.readouterr().err


@needs_browser
def test_a_site_works_from_files(one_browser: Browser, runs: Path, tmp_path: Path) -> None:
    """The table is drawn and leads to a run and to a comparison of the chosen runs; no address is requested."""
    note(runs / "one", kind="began", run="b", step=0, settings={"seed": 1})
    for step in (1, 2, 3):
        note(runs / "one", kind="logged", step=step, values={"loss": 1.0})
    assert main(["board", str(runs), "--export", str(tmp_path / "site")]) == 0
    one_browser.open("about:blank")
    one_browser.console(), one_browser.requests()
    one_browser.open(tmp_path / "site" / "index.html")
    one_browser.wait_for("document.getElementById('run-list')?.dataset.drawn === '3'")
    choose = "document.querySelector('input.choose[value=\"{}\"]').click();"
    one_browser.run(f"{choose.format('one')}{choose.format('group/two')} document.getElementById('compare').click()")
    one_browser.wait_for("location.pathname.endsWith('compare.html') && document.querySelector('.chart canvas')")
    assert one_browser.run("return document.querySelectorAll('.run-shown:checked').length") == 2
    one_browser.open(tmp_path / "site" / "index.html")
    one_browser.wait_for("document.querySelector('a.run-name')")
    one_browser.run("document.querySelector('a.run-name').click()")
    one_browser.wait_for("location.pathname.includes('/run-0000') && document.querySelector('.chart canvas')")
    assert one_browser.console() == []
    assert all(each.startswith(("file:", "data:", "about:")) for each in one_browser.requests())
