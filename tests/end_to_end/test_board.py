"""The board: what it answers to requests, and to what it does not answer. A real service on loopback."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from hexloop.app.command_line import main
from hexloop.app.control.files import Action, CommandFolder, RunCommand
from tests.end_to_end.recorded_run import record_run
from tests.end_to_end.small.trainers import small_trainer

HOSTILE = "<script>window.attacked = 1</script>\x1b[31m"


@contextmanager
def board(folder: Path) -> Iterator[str]:
    """Start the command and return the address that it prints."""
    command = [sys.executable, "-m", "hexloop", "board", str(folder), "--port", "0"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert started.stdout is not None
        found = re.search(r"http://\S+", started.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        started.terminate()
        started.communicate(timeout=60)


def get(address: str, path: str = "", **headers: str) -> tuple[int, str, dict[str, str]]:
    """Request a page below the address; return the status, the text and the headers of the answer."""
    place = urlsplit(address)
    connection = HTTPConnection(place.netloc, timeout=60)
    connection.request("GET", path if path.startswith("/") else place.path + path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text, dict(answer.getheaders())


def note(folder: Path, **facts: Any) -> None:
    """Append a note to the journal in a folder, as a run does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write(f"{json.dumps({'time': time.time(), **facts})}\n")


def begin(folder: Path, name: str = "a", steps: int = 0) -> Path:
    note(folder, kind="began", run=name, step=0, total_steps=100, settings={"seed": 1, "board_control": True})
    for step in range(1, steps + 1):
        note(folder, kind="logged", step=step, values={"loss": 1 / step})
    return folder


def post(address: str, document: object, to: str = "commands", **headers: str) -> tuple[int, str]:
    """Give a command as the page does; return the status and the text of the answer. Underscores stand for hyphens."""
    place = urlsplit(address)
    given = {"Content_Type": "application/json", "Origin": f"http://{place.netloc}"} | headers
    connection = HTTPConnection(place.netloc, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in given.items() if value}
    connection.request("POST", f"{place.path}{to}", json.dumps(document), sent)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a trained run, and the board on it."""
    folder = tmp_path_factory.mktemp("runs")
    small_trainer(folder / "trained", max_steps=4, save_strategy="steps", save_steps=2, journal="events").train()
    with board(folder) as address:
        yield folder, address


@pytest.fixture(scope="module")
def with_lines(served: tuple[Path, str]) -> tuple[Path, str]:
    """The board on a run with a long journal, and on one with logs beside its journal."""
    folder, address = served
    begin(folder / "lines", steps=1_500)
    run = begin(folder / "printed", steps=1)
    (run / "slurm-1.out").write_bytes(
        HOSTILE.encode() + b"\n\xff\x00\n" + b"y" * 600_000 + b"\nhttps://user:hunter2secret@host/\nlast"
    )
    (run / "empty.log").touch()
    (run / "model.safetensors").touch()
    (run / "linked.log").symlink_to(folder / "lines" / "journal.jsonl")
    return folder, address


def test_the_list_shows_the_runs_of_the_folder(served: tuple[Path, str]) -> None:
    """With links to their pages; a run that starts later appears."""
    folder, address = served
    status, text, _ = get(address)
    assert status == 200
    assert 'href="runs?run=trained"' in text
    assert "finished" in text

    begin(folder / "later", steps=3)
    assert "later" in get(address)[1]


def test_the_page_of_a_run_has_its_sections(served: tuple[Path, str]) -> None:
    """Those of a report, with the checkpoints, which are not verified."""
    _, address = served
    status, text, _ = get(address, "runs?run=trained")
    assert status == 200
    for identifier in ("curves", "timeline", "checkpoints", "arguments", "reproduce"):
        assert f'<section id="{identifier}"' in text
    assert "checkpoint-4" in text


def test_runs_are_compared(served: tuple[Path, str]) -> None:
    """On one page; a run that is named twice is shown once."""
    folder, address = served
    begin(folder / "other", steps=5)
    status, text, _ = get(address, "runs?run=trained&run=other&run=other")
    assert status == 200
    assert "2 runs: trained, other" in text
    assert get(address, "runs?" + "&".join(f"run={number}" for number in range(21)))[0] == 404


def test_a_page_learns_what_is_new(served: tuple[Path, str]) -> None:
    """An update is empty until the run logs, and then has the points."""
    folder, address = served
    run = begin(folder / "live", steps=2)
    version = json.loads(get(address, "updates?run=live&version=")[1])["version"]
    assert get(address, f"updates?run=live&version={version}")[0] == 204

    note(run, kind="logged", step=3, values={"loss": 0.25})

    status, text, _ = get(address, f"updates?run=live&version={version}")
    update = json.loads(text)
    assert status == 200
    assert update["version"] != version
    assert update["document"]["charts"][0]["curves"][0]["points"][-1] == [3, 0.25]
    assert "3 of 100" in update["sections"]["runs"]


@pytest.mark.parametrize(
    "name", ["../outside", "..", "/etc", "trained/checkpoint-2", "none", "\0", "trained/../trained", "x" * 5000]
)
def test_only_runs_of_the_list_are_read(served: tuple[Path, str], name: str) -> None:
    """Names of other folders are refused with the same words, whether or not they exist."""
    folder, address = served
    begin(folder.parent / "outside")
    status, text, _ = get(address, f"runs?run={quote(name, safe='')}")
    assert status == 404
    assert text.startswith("There is no run '")
    assert len(text) < 1000


def test_a_link_is_not_followed(served: tuple[Path, str], tmp_path: Path) -> None:
    """Neither to a folder nor to a journal."""
    folder, address = served
    begin(tmp_path / "elsewhere", "secret")
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "journal-linked").mkdir()
    (folder / "journal-linked" / "journal.jsonl").symlink_to(tmp_path / "elsewhere" / "journal.jsonl")
    text = get(address)[1]
    assert 'run=linked"' not in text
    assert get(address, "runs?run=linked")[0] == 404
    assert "secret" not in text + get(address, "runs?run=journal-linked")[1]


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "127.0.0.1.evil.example:1"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_requests_of_other_sites_are_refused(served: tuple[Path, str], headers: dict[str, str]) -> None:
    """As a page that is open in the same browser could make them, or a name that leads to this machine."""
    assert get(served[1], **headers)[0] == 403


def test_the_token_is_needed(served: tuple[Path, str]) -> None:
    """For every address."""
    _, address = served
    for path in ("/", "/runs", "/wrong/", "/wrong/runs?run=trained", "/wrong/updates", "/wrong/assets/board.js"):
        assert get(address, path)[0] == 404, path
    assert get(address, "assets/board.js")[0] == 200
    assert get(address, "assets/../../../pyproject.toml")[0] == 404
    assert get(address, quote("assets/../page.py", safe=""))[0] == 404


def test_every_answer_has_the_headers(served: tuple[Path, str]) -> None:
    """Also a refusal: nothing of another site is loaded, and no site may show the board in a frame."""
    for path in ("", "runs", "runs?run=none", "assets/report.css", "/wrong/"):
        headers = get(served[1], path)[2]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"


def test_hostile_runs_are_shown_as_text(served: tuple[Path, str]) -> None:
    """HTML and control characters in names, values and lines that are no notes."""
    folder, address = served
    run = folder / "evil <img src=x>"
    begin(run, HOSTILE)
    note(run, kind="logged", step=1, values={HOSTILE: 1.0, "loss": 1.0})
    with (run / "journal.jsonl").open("ab") as journal:
        journal.write(b"\xff\x00garbage\n" * 100_000 + b"[" * 50_000 + b"\n")
    for path in ("", f"runs?run={quote(run.name)}", f"updates?run={quote(run.name)}"):
        status, text, _ = get(address, path)
        assert status == 200
        if path.startswith("updates"):  # JSON, whose texts are drawn and whose sections are HTML
            text = "".join(json.loads(text)["sections"].values())
        assert "<script>window" not in text
        assert "<img src=x" not in text
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], "there is no such folder"),
        (["s3://bucket/runs"], "folders of this machine only"),
        ([".", "--port", "99999"], "invalid _port value"),
    ],
)
def test_what_cannot_be_served_is_refused(
    words: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2 and one line."""
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["board", *words])
    except SystemExit as ended:
        code = int(str(ended.code))
    assert code == 2
    assert problem in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(served: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    """With the way out."""
    folder, address = served
    assert main(["board", str(folder), "--port", str(urlsplit(address).port)]) == 2
    assert "choose another one with --port" in capsys.readouterr().err


def test_the_points_of_a_zoom(with_lines: tuple[Path, str]) -> None:
    """All between two steps of a chart; nothing of other charts and runs, and no other numbers."""
    folder, address = with_lines
    record_run(folder / "zoomed", 5_000)
    get(address)
    status, text, headers = get(address, "points?run=zoomed&chart=loss&from=100&to=102")
    assert (status, headers["Content-Type"]) == (200, "application/json; charset=utf-8")
    (curve,) = json.loads(text)["curves"]
    assert (curve["run"], curve["name"]) == (0, "loss")
    assert [step for step, _ in curve["points"]] == [99, 100, 101, 102, 103]
    assert len(json.loads(get(address, "points?run=zoomed&chart=loss&all=1")[1])["curves"][0]["points"]) == 5_000
    assert json.loads(get(address, f"points?run=zoomed&chart={quote(HOSTILE)}&from=1&to=2")[1]) == {"curves": []}
    for wrong in ("from=1", "from=-1&to=3", "from=a&to=3", f"from=1&to={'9' * 30}", "from=%D9%A1&to=3"):
        assert get(address, f"points?run=zoomed&chart=loss&{wrong}")[0] == 400, wrong
    assert get(address, "points?run=..&chart=loss&from=1&to=2")[0] == 404
    assert get(address.rsplit("/", 2)[0], "/wrong/points?run=zoomed&chart=loss&from=1&to=2")[0] == 404


def test_a_command_is_written_into_the_folder_of_its_run(served: tuple[Path, str]) -> None:
    """The page has buttons for it, says how many the run has not taken, and lists what became of those that it has."""
    folder, address = served
    run = begin(folder / "commanded", "the run", steps=2)
    assert 'data-action="pause" data-folder="commanded" data-run="the%20run"' in get(address, "runs?run=commanded")[1]
    assert post(address, {"folder": "commanded", "run": "the run", "action": "pause"}) == (200, '{"sequence": 1}')
    assert CommandFolder(run, "the run").waiting() == [1]
    version = "old"
    text = json.loads(get(address, f"updates?run=commanded&version={version}")[1])["sections"]["control"]
    assert "1 given, not taken" in text

    (command,) = CommandFolder(run, "the run").take()
    note(run, kind="command", sequence=1, action="pause", by="<b>me", outcome="done", step=2)
    note(run, kind="paused", step=2)
    text = get(address, "runs?run=commanded")[1]
    assert command == RunCommand(1, Action.PAUSE, command.by)  # type: ignore[union-attr]
    assert "done at step 2" in text
    assert "&lt;b&gt;me" in text
    assert "paused at step 2" in text
    assert re.search(r'id="pause-0"[^>]* disabled', text)
    assert "paused at step 2" in get(address)[1]


@pytest.mark.parametrize(
    ("document", "status", "words"),
    [
        ({"folder": "trained", "run": "RUN", "action": "stop"}, 409, "it has ended"),
        ({"folder": "switched-off", "run": "a", "action": "stop"}, 409, "it was started with board_control=False"),
        ({"folder": "silent", "run": "a", "action": "stop"}, 409, "it has not reported since"),
        ({"folder": "early", "run": "a", "action": "stop"}, 409, "of an earlier release"),
        ({"folder": "commandable", "run": "b", "action": "stop"}, 409, "Another run has started"),
        ({"folder": "commandable", "run": "a", "action": "delete"}, 409, "one of the actions"),
        ({"folder": "../outside", "run": "a", "action": "stop"}, 409, "There is no run"),
        ({"folder": ["commandable"], "run": "a", "action": "stop"}, 409, "not an object of texts"),
        ([1], 409, "not an object of texts"),
        ({"folder": "x" * 20_000, "run": "a", "action": "stop"}, 413, ""),
    ],
)
def test_a_command_that_cannot_be_given_is_refused(
    served: tuple[Path, str], document: Any, status: int, words: str
) -> None:
    """With the reason; nothing is written."""
    folder, address = served
    begin(folder / "commandable")
    note(folder / "switched-off", kind="began", run="a", step=0, settings={"board_control": False})
    note(folder / "silent", time=1.0, kind="began", run="a", step=0, settings={"board_control": True})
    note(folder / "early", kind="began", run="a", step=0, settings={"seed": 1})
    get(address)
    if isinstance(document, dict) and document["run"] == "RUN":
        document = {
            **document,
            "run": json.loads((folder / "trained" / ".hexloop/journal.jsonl").read_text().splitlines()[0])["run"],
        }
    answer = post(address, document)
    assert answer[0] == status, answer
    assert words in answer[1]
    assert not list(folder.rglob("commands/*.json")) or document["folder"] not in ("commandable", "silent")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Host": "evil.example"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
    ],
)
def test_commands_of_other_sites_are_refused(served: tuple[Path, str], headers: dict[str, str]) -> None:
    """By their origin, and because a form of another site cannot send JSON. Without the token too."""
    folder, address = served
    begin(folder / "guarded")
    get(address)
    given = {"folder": "guarded", "run": "a", "action": "stop"}
    assert post(address, given, **headers)[0] in (403, 415)
    assert post(address.rpartition("/")[0] + "x/", given)[0] == 404
    assert not (folder / "guarded" / ".hexloop/commands").exists()


def test_the_table_of_runs_is_sent_once_and_then_what_changes(served: tuple[Path, str]) -> None:
    """With the steps that a run is to have, from its first moment."""
    folder, address = served
    begin(folder / "growing", steps=0)
    update = json.loads(get(address, "updates?version=")[1])
    while not update["document"]["table"]["complete"]:
        update = json.loads(get(address, "updates?version=")[1])
    table = update["document"]["table"]
    row = dict(zip(table["facts"], next(each for each in table["rows"] if each[0] == "growing"), strict=True))
    assert (row["state"], row["step"], row["total"]) == ("running", 0, 100)
    note(folder / "growing", kind="logged", step=7, values={"loss": 0.5})
    table = json.loads(get(address, f"updates?version={update['version']}")[1])["document"]["table"]
    assert (table["whole"], [each[0] for each in table["rows"]]) == (False, ["growing"])


def test_labels_are_written_into_the_folders_of_runs(served: tuple[Path, str]) -> None:
    """Of several at once; the table has them, and others stay as they are."""
    folder, address = served
    for name in ("labelled", "labelled-too"):
        begin(folder / name)
    given = {"folders": ["labelled", "labelled-too"], "add": ["<b>good"], "notes": HOSTILE}
    assert post(address, given, "labels") == (200, '{"changed": 2}')
    assert post(address, {"folders": ["labelled"], "remove": ["<b>good"], "add": ["better"]}, "labels")[0] == 200
    written = [
        json.loads((folder / name / ".hexloop/labels.json").read_text()) for name in ("labelled", "labelled-too")
    ]
    assert [each["tags"] for each in written] == [["better"], ["<b>good"]]
    assert {each["notes"] for each in written} == {HOSTILE}
    text = get(address, "updates?version=")[1]
    rows = {each[0]: each for each in json.loads(text)["document"]["table"]["rows"]}
    assert ["better"] in rows["labelled"]
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("document", "status", "words"),
    [
        ({"folders": ["../outside"], "add": ["a"]}, 409, "There is no run"),
        ({"folders": ["trained/checkpoint-2"], "add": ["a"]}, 409, "There is no run"),
        ({"folders": [], "add": ["a"]}, 409, "no list of folders"),
        ({"folders": "trained", "add": ["a"]}, 409, "no list of folders"),
        ({"folders": ["trained"], "add": ["a,b"]}, 409, "a comma"),
        ({"folders": ["trained"], "delete": True}, 409, "changed by"),
        ([1], 409, "no list of folders"),
        ({"folders": ["trained"], "notes": "x" * 20_000}, 413, ""),
    ],
)
def test_labels_that_cannot_be_written_are_refused(
    served: tuple[Path, str], document: Any, status: int, words: str
) -> None:
    """With the reason; nothing is written."""
    folder, address = served
    answer = post(address, document, "labels")
    assert answer[0] == status, answer
    assert words in answer[1]
    assert not (folder / "trained/.hexloop/labels.json").exists()
    assert post(address, {"folders": ["trained"], "add": ["a"]}, "labels", Origin="http://evil.example")[0] == 403
    assert post(address, {"folders": ["trained"], "add": ["a"]}, "labels", Content_Type="text/plain")[0] == 415
    assert not (folder / "trained/.hexloop/labels.json").exists()


def test_a_run_is_shared_as_one_file(served: tuple[Path, str]) -> None:
    """Which loads nothing; its page links it."""
    _, address = served
    assert 'href="report?run=trained"' in get(address, "runs?run=trained")[1]
    status, text, headers = get(address, "report?run=trained")
    assert (status, headers["Content-Disposition"]) == (200, 'attachment; filename="trained.html"')
    assert 'src="' not in text.partition("<script>")[0]
    assert "loss" in text
    assert get(address, "report?run=none")[0] == 404


def test_lines_are_read_from_the_last_to_the_first(with_lines: tuple[Path, str]) -> None:
    """The page of a run has its last notes; each page of a file links the one before, until all were shown once."""
    _, address = with_lines
    text = get(address, "runs?run=lines")[1]
    assert "logged step=1500 " in text
    assert "logged step=1 " not in text
    seen, path = list[str](), "lines?run=lines&file=journal.jsonl"
    while path:
        status, text, _ = get(address, path)
        assert status == 200
        seen = re.findall(r"logged step=(\d+) ", text) + seen
        assert len(text) < 200_000
        found = re.search(r'<a href="(lines[^"]*)" rel="prev"', text)
        path = found[1].replace("&amp;", "&") if found else ""
    assert seen == [str(step) for step in range(1, 1_501)]


def test_output_of_programs_is_shown_as_text(with_lines: tuple[Path, str]) -> None:
    """Logs beside the journal, with HTML, control characters, secrets, very long lines and no line at all."""
    _, address = with_lines
    text = get(address, "runs?run=printed")[1]
    assert 'file=slurm-1.out"' in text
    assert "linked.log" not in text
    status, text, _ = get(address, "lines?run=printed&file=slurm-1.out")
    assert status == 200
    assert "last</pre>" in text
    assert "hunter2secret" not in text
    assert len(text) < 20_000
    path = re.search(r'<a href="(lines[^"]*)" rel="prev"', text)
    while path is not None:
        text = get(address, path[1].replace("&amp;", "&"))[1]
        path = re.search(r'<a href="(lines[^"]*)" rel="prev"', text)
    assert "&lt;script&gt;window.attacked = 1&lt;/script&gt;\\x1b[31m" in text
    assert "There is no line yet" in get(address, "lines?run=printed&file=empty.log")[1]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("run=printed&file=../lines/journal.jsonl", 404),
        ("run=printed&file=linked.log", 404),
        ("run=printed&file=model.safetensors", 404),
        ("run=..&file=journal.jsonl", 404),
        ("run=printed", 404),
        ("run=lines&file=journal.jsonl&before=-1", 400),
        ("run=lines&file=journal.jsonl&before=99999999999999999999", 400),
        ("run=lines&file=journal.jsonl&before=999999999999999", 200),
        ("run=lines&file=journal.jsonl&before=0", 200),
    ],
)
def test_only_files_with_lines_are_read(with_lines: tuple[Path, str], query: str, status: int) -> None:
    """Those that the page of a run offers, and no others in its folder or elsewhere."""
    assert get(with_lines[1], f"lines?{query}")[0] == status
