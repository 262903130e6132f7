"""The page that shows runs: what real runs leave behind is on it, and nothing in their files becomes part of it."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from hexloop import TrainerCallback
from hexloop.app.command_line import main
from hexloop.app.pages.page import RUN_SCRIPTS
from hexloop.domain.run_folder import JOURNAL
from tests.end_to_end.report_page import ReportPage
from tests.end_to_end.small.models import rows
from tests.end_to_end.small.trainers import small_trainer

SAVING: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "num_train_epochs": 3, "logging_steps": 1}
"""A run of 12 steps with three checkpoints."""

EVALUATED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 4}

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202e"


class Stops(TrainerCallback):
    """Stops the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == self.step


def trained(folder: Path, parts: dict[str, Any] | None = None, **given: Any) -> Any:
    trainer = small_trainer(folder, parts={"eval_dataset": rows(8, 1), **(parts or {})}, **{**SAVING, **given})
    trainer.train()
    return trainer


def reported(*arguments: str | Path, code: int = 0) -> None:
    assert main(["report", *map(str, arguments)]) == code


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the folder of a run that is finished, and its Trainer."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    return folder, trained(folder, **EVALUATED)


@pytest.fixture
def folder(finished: tuple[Path, Any], tmp_path: Path) -> Path:
    """Return a copy of the finished run that a test may change."""
    return Path(shutil.copytree(finished[0], tmp_path / "first"))


def test_page_shows_what_was_logged(
    folder: Path, finished: tuple[Path, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every value of the history, in charts and, for readers without a script, in tables; the output names the page."""
    reported(folder)
    assert capsys.readouterr().out.splitlines()[-1] == f"The report is in {folder / 'report.html'}"
    page = ReportPage(folder / "report.html")
    page.check_policy()
    assert page.title == "Run first - hexloop"
    assert page.headings[0] == "Run first"
    sections = [
        "Progress",
        "Curves",
        "Time line",
        "Checkpoints",
        "What saving cost",
        "The run",
        "Arguments",
        "Reproduce and resume",
    ]
    assert [each for each in page.headings if each in sections] == sections

    history = finished[1].state.log_history
    for name in ("loss", "learning_rate", "grad_norm", "eval_loss"):
        logged = [[entry["step"], pytest.approx(entry[name], rel=1e-5)] for entry in history if name in entry]
        assert page.curve(name) == logged, name
    assert len(page.curve("steps per second")) == 11
    assert page.row("loss", "first: eval_loss")[5] == "3"
    assert page.row("The run", "steps")[1] == "12 of 12 (100%)"
    assert page.row("The run", "state")[1] == "finished"


def test_page_lists_checkpoints_and_the_cost_of_saves(folder: Path) -> None:
    """With step, size, metric and condition; every save with the time that training waited."""
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert page.column("Checkpoints", "checkpoint") == ["checkpoint-4", "checkpoint-8", "checkpoint-12"]
    assert page.column("Checkpoints", "step") == ["4", "8", "12"]
    assert page.column("Checkpoints", "state") == ["verified"] * 3
    assert all(cell.startswith("eval_loss ") for cell in page.column("Checkpoints", "metric"))
    assert all(cell.endswith(("kB", " B")) for cell in page.column("Checkpoints", "size"))
    assert page.column("What each save cost", "result") == ["published"] * 3
    assert all(cell.endswith("s") for cell in page.column("What each save cost", "training waited"))
    assert "3 saves; training waited" in page.text


def test_damaged_checkpoint_is_shown_as_damaged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason, on the page and by the command, which still succeeds. --quick does not read it."""
    path = folder / "checkpoint-8" / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    reported(folder)
    page = ReportPage(folder / "report.html")
    states = page.column("Checkpoints", "state")
    assert (states[0], states[2]) == ("verified", "verified")
    assert states[1].startswith("damaged: ")
    assert "model.safetensors" in states[1]
    assert page.row("The run", "checkpoints")[1] == "2 verified, 1 damaged"
    assert "first: checkpoint-8 is damaged: model.safetensors has" in capsys.readouterr().out
    reported(folder, "--quick")
    assert ReportPage(folder / "report.html").column("Checkpoints", "state")[:2] == ["not verified"] * 2


def test_resumed_run_is_shown_on_the_time_line(tmp_path: Path) -> None:
    """Two sessions, with how the first one ended; curves continue, and steps that were repeated are counted."""
    trained(tmp_path, parts={"callbacks": [Stops(6)]})
    small_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    reported(tmp_path)
    page = ReportPage(tmp_path / "report.html")
    caption = "Starts, restarts and preemptions"
    assert page.column(caption, "steps") == ["0 to 6", "4 to 12"]
    assert page.column(caption, "repeated steps") == ["-", "2"]
    assert page.column(caption, "then")[1] == "finished"
    assert page.row("The run", "restarts")[1] == "1"
    assert [step for step, _ in page.curve("loss")] == list(range(1, 13))
    assert len([name for name, attributes in page.elements if attributes.get("class") == "session finished"]) == 2


def test_planned_steps_are_known_from_the_first_note(folder: Path) -> None:
    """Also of a run whose steps follow from its epochs."""
    first = json.loads((folder / ".hexloop/journal.jsonl").read_text().splitlines()[0])
    assert (first["kind"], first["total_steps"], first["settings"]["max_steps"]) == ("began", 12, -1)


def test_a_finished_run_that_is_resumed_has_no_restart(tmp_path: Path) -> None:
    """It had nothing left to train."""
    trained(tmp_path)
    small_trainer(tmp_path, **SAVING).train(resume_from_checkpoint=True)
    reported(tmp_path)
    page = ReportPage(tmp_path / "report.html")
    assert page.row("The run", "restarts")[1] == "0"
    assert page.row("The run", "state")[1] == "finished"


def test_killed_run_is_said_to_be_lost(folder: Path) -> None:
    """It did not report its end; one that reported a moment ago is running."""
    journal = folder / ".hexloop/journal.jsonl"
    notes = [json.loads(line) for line in journal.read_text().splitlines()][:-1]
    journal.write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    reported(folder)
    assert ReportPage(folder / "report.html").row("The run", "state")[1] == "running"
    old = [{**note, "time": note["time"] - 3600} for note in notes]
    journal.write_text("".join(f"{json.dumps(note)}\n" for note in old))
    reported(folder)
    assert ReportPage(folder / "report.html").row("The run", "state")[1].startswith("lost: no report for")


def test_several_runs_share_charts_and_show_what_differs(folder: Path, tmp_path: Path) -> None:
    """Each curve has a run; of the arguments, those that differ come first."""
    trained(tmp_path / "second", learning_rate=0.1, **EVALUATED)
    reported(folder, tmp_path / "second", "--out", tmp_path / "both.html")
    page = ReportPage(tmp_path / "both.html")
    page.check_policy()
    assert page.headings[0] == "2 runs: first, second"
    assert page.data["runs"] == ["first", "second"]
    assert page.curve("loss", 0) != page.curve("loss", 1)
    assert page.tables["Arguments that differ"] == [["argument", "first", "second"], ["learning_rate", "0.01", "0.1"]]
    assert [attributes["data-run"] for _, attributes in page.elements if attributes.get("class") == "run-shown"] == [
        "0",
        "1",
    ]
    assert page.tables["Runs"][0] == ["", "first", "second"]


def test_only_arguments_that_were_changed_are_listed(tmp_path: Path) -> None:
    """Not those that are derived from others or from the machine, and no secret that is not set."""
    changed = {**SAVING, "learning_rate": 0.5, "use_cpu": True, "debug": "underflow_overflow"}
    changed |= {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 5}
    changed |= {**EVALUATED, "metric_for_best_model": "loss", "load_best_model_at_end": True}
    trained(tmp_path / "run", **changed)
    reported(tmp_path / "run", "--out", tmp_path / "page.html")
    page = ReportPage(tmp_path / "page.html")
    (caption,) = (each for each in page.tables if each.startswith("Arguments that differ from the defaults"))
    listed = {row[0]: row[1:] for row in page.tables[caption][1:]}
    assert listed["learning_rate"] == ["0.5", "5e-05"]
    assert listed["debug"][0] != listed["debug"][1]
    assert {"eval_strategy", "load_best_model_at_end"} < {*listed}
    untouched = {"resume_despite", "include_for_metrics", "accelerator_config", "report_to", "loss_weighting"}
    untouched |= {"checkpoint_key", "hub_token", "gradient_checkpointing", "activation_checkpointing"}
    untouched |= {"train_batch_size", "eval_batch_size", "do_eval", "greater_is_better"}
    assert not {*listed} & (untouched - {"report_to"})
    assert "_MISSING_TYPE" not in page.text
    assert page.row("All arguments", "checkpoint_key") == ["checkpoint_key", "None"]
    assert page.row("All arguments", "hub_token") == ["hub_token", "None"]
    assert all(value != default for value, default in listed.values())


def test_a_signed_run_looks_signed(tmp_path: Path) -> None:
    """Its key is named without its value."""
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_bytes(b"x" * 32)
    trained(tmp_path / "run", checkpoint_key=str(key), hub_token="hf_" + "a" * 20)
    reported(tmp_path / "run", "--out", tmp_path / "page.html")
    page = ReportPage(tmp_path / "page.html")
    (caption,) = (each for each in page.tables if each.startswith("Arguments that differ from the defaults"))
    listed = {row[0]: row[1:] for row in page.tables[caption][1:]}
    assert listed["checkpoint_key"] == ["<CHECKPOINT_KEY>", "None"]
    assert listed["hub_token"] == ["<HUB_TOKEN>", "None"]


@pytest.mark.parametrize("changed", [{}, {"learning_rate": 0.25}])
def test_arguments_of_a_journal_without_defaults(folder: Path, tmp_path: Path, changed: dict[str, Any]) -> None:
    """They are compared with the defaults on this machine; a secret that earlier releases wrote as if set is not."""
    lines = (folder / JOURNAL).read_text().splitlines()
    began = json.loads(lines[0])
    del began["defaults"]
    began["settings"] |= {"checkpoint_key": "***", "hub_token": "<HUB_TOKEN>", **changed}
    (folder / JOURNAL).write_text("\n".join([json.dumps(began), *lines[1:]]) + "\n")
    reported(folder, "--out", tmp_path / "page.html")
    page = ReportPage(tmp_path / "page.html")
    (caption,) = (each for each in page.tables if each.startswith("Arguments that differ from the defaults"))
    listed = {row[0]: row[1:] for row in page.tables[caption][1:]}
    assert not {*listed} & {"checkpoint_key", "hub_token", "resume_despite", "include_for_metrics", "debug"}
    assert ("learning_rate" in listed, listed.get("learning_rate", ["0.25"])[0]) == (
        True,
        "0.25" if changed else "0.01",
    )


def test_runs_of_equal_names_are_told_apart(folder: Path, tmp_path: Path) -> None:
    """By the folder above; one that is named twice, by a number."""
    other = shutil.copytree(folder, tmp_path / "elsewhere" / "first")
    reported(folder, other, other, "--out", tmp_path / "all.html")
    labels = ReportPage(tmp_path / "all.html").data["runs"]
    assert labels[0] == f"{tmp_path.name}/first"
    assert len(set(labels)) == 3


def test_one_run_of_a_shared_folder_is_chosen_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the start of its name; otherwise it is the last one."""
    for rate in (0.01, 0.02):
        trained(tmp_path, learning_rate=rate)
    journal = [json.loads(line) for line in (tmp_path / ".hexloop/journal.jsonl").read_text().splitlines()]
    first, second = (note["run"] for note in journal if note["kind"] == "began")
    reported(tmp_path)
    assert ReportPage(tmp_path / "report.html").row("The run", "run")[1] == second
    reported(f"{tmp_path}@{first[:9]}")
    page = ReportPage(tmp_path / "report.html")
    assert page.row("The run", "run")[1] == first
    assert page.row("The run", "other runs in the folder")[1] == second
    assert [cell.startswith("checkpoint-") for cell in page.column("Checkpoints", "checkpoint")] == [False] * 3
    reported(f"{tmp_path}@nothing", code=2)
    assert f"the runs in {tmp_path} are {first}, {second}; name one." in capsys.readouterr().err


def test_runs_without_a_journal_are_read_from_logs_and_checkpoints(folder: Path) -> None:
    """The log of json_lines, or else the state in the newest checkpoint, as transformers writes it too."""
    reported(folder)
    from_journal = ReportPage(folder / "report.html").curve("loss")
    (folder / ".hexloop/journal.jsonl").unlink()
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert page.row("The run", "curves from")[1] == "trainer_state.json"
    assert page.curve("loss") == from_journal

    records = [{"step": step, "epoch": 1.0, "loss": 5.0} for step in (1, 2, 3)]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert page.row("The run", "curves from")[1] == "log.jsonl"
    assert page.curve("loss") == [[1, 5.0], [2, 5.0], [3, 5.0]]


def test_what_was_logged_before_the_journal_starts_is_shown(folder: Path) -> None:
    """A run that was resumed in another folder has it in its checkpoint only."""
    journal = folder / ".hexloop/journal.jsonl"
    notes = [json.loads(line) for line in journal.read_text().splitlines()]
    later = [{**notes[0], "step": 6}, *(note for note in notes[1:] if note.get("step", 0) > 6)]
    journal.write_text("".join(f"{json.dumps(note)}\n" for note in later))
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert [step for step, _ in page.curve("loss")] == list(range(1, 13))
    assert page.column("Starts, restarts and preemptions", "steps") == ["6 to 12"]


def test_curves_are_those_of_the_log_if_the_journal_has_none(folder: Path) -> None:
    """Starts and saves are still those of the journal."""
    journal = folder / ".hexloop/journal.jsonl"
    kept = [line for line in journal.read_text().splitlines() if '"logged"' not in line]
    journal.write_text("\n".join(kept) + "\n")
    run = json.loads(kept[0])["run"]
    lines = [{"event": "started", "run": run, "step": 0, "total_steps": 12}, {"step": 3, "loss": 7.0}]
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert page.row("The run", "curves from")[1] == "log.jsonl"
    assert page.curve("loss") == [[3, 7.0]]
    assert len(page.column("What each save cost", "checkpoint")) == 3


def test_run_without_logs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the page and in the output; what else is known is shown."""
    trained(tmp_path / "silent", logging_strategy="no", system_metrics=False)
    journal = tmp_path / "silent" / ".hexloop/journal.jsonl"
    kept = [line for line in journal.read_text().splitlines() if '"logged"' not in line]
    journal.write_text("\n".join(kept) + "\n")
    for state in (tmp_path / "silent").glob("checkpoint-*/trainer_state.json"):
        state.unlink()
    reported(tmp_path / "silent")
    assert "silent: no values were logged, so there are no curves." in capsys.readouterr().out
    page = ReportPage(tmp_path / "silent" / "report.html")
    assert "No values were logged, so there are no curves." in page.text
    assert page.data["charts"] == []
    assert len(page.column("Checkpoints", "state")) == 3


def test_wrong_names_are_refused_together(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing folder, one without a run, and a checkpoint: exit code 2, one line each, and no page."""
    (tmp_path / "empty").mkdir()
    reported(tmp_path / "missing", tmp_path / "empty", folder / "checkpoint-4", "--out", tmp_path / "x.html", code=2)
    problems = capsys.readouterr().err.splitlines()[1:]
    assert problems == [
        f"  1. You chose the run {tmp_path}/missing, but there is no such folder; check its name.",
        f"  2. You chose the run {folder}/checkpoint-4, which is one checkpoint; name the folder it is in, {folder}.",
        f"  3. You chose the run {tmp_path}/empty, but it has no journal (.hexloop/journal.jsonl), no log "
        "(log.jsonl) and no checkpoint; name the output_dir of a run.",
    ]
    assert not (tmp_path / "x.html").exists()


def test_run_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that is a pipe would block, and there is nothing else."""
    (tmp_path / JOURNAL).parent.mkdir()
    os.mkfifo(tmp_path / JOURNAL)
    reported(tmp_path, code=2)
    assert capsys.readouterr().err == (
        f"hexloop: You chose the run {tmp_path}, but journal.jsonl cannot be read: it is not a regular file, and only "
        "regular files are used.\n"
    )


def test_page_is_written_completely_or_not_at_all(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that was there stays if the next one cannot be written; a folder is no file."""
    reported(folder, "--out", folder, code=2)
    assert "which is a folder" in capsys.readouterr().err
    (folder / "file").write_text("")
    reported(folder, "--out", folder / "file" / "report.html", code=2)
    assert "choose another file with --out" in capsys.readouterr().err
    reported(folder, "--out", folder / "new" / "page.html")
    assert os.listdir(folder / "new") == ["page.html"]
    assert (folder / "new" / "page.html").stat().st_mode & 0o777 == 0o600, "it shows the arguments of the run"


def test_nothing_in_a_run_becomes_part_of_the_page(folder: Path, tmp_path: Path) -> None:
    """HTML and scripts in names of folders, runs, values, arguments, reasons and files are shown as text."""
    name = ATTACK.replace("/", "")
    evil = folder.rename(tmp_path / name)
    notes = [
        {
            "kind": "began",
            "run": ATTACK,
            "step": 0,
            "time": 1e9,
            "settings": {ATTACK: ATTACK, "seed": ATTACK},
            "command": ATTACK,
        },
        {"kind": "logged", "step": 1, "time": 1e9 + 1, "values": {ATTACK: 1.0, "loss": 2.0, "text": ATTACK}},
        {"kind": "logged", "step": 2, "time": 1e9 + 2, "values": {ATTACK: 2.0, "loss": 1.0}},
        {"kind": "save", "phase": "failed", "step": 2, "error": ATTACK, "time": 1e9 + 3},
        {"kind": "ended", "step": 2, "time": 1e9 + 4, "stopped": True, "reasons": [ATTACK]},
    ]
    (evil / ".hexloop/journal.jsonl").write_text("".join(f"{json.dumps(note)}\n" for note in notes))
    (evil / f"predictions {name}.txt").write_text(f"{ATTACK}\n")
    (evil / "eval_results.json").write_text(json.dumps({ATTACK: ATTACK, "eval_loss": 1.0}))
    manifest = evil / "checkpoint-8" / "manifest.json"
    manifest.write_text(
        json.dumps({**json.loads(manifest.read_text()), "run": ATTACK, "environment": {ATTACK: ATTACK}})
    )
    reported(evil)
    page = ReportPage(evil / "report.html")
    page.check_policy()
    assert len(page.scripts) == len(RUN_SCRIPTS) + 2  # the chart library, and the data
    assert [name for name, _ in page.elements if name == "img"] == []
    assert "\x1b" not in page.source
    assert "\u202e" not in page.source
    shown = ATTACK.replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert page.row("All arguments", shown)[1] == shown
    assert shown in page.column("What each save cost", "result")[0]
    assert shown in page.column("Starts, restarts and preemptions", "then")[0]
    assert shown in [curve["name"] for chart in page.data["charts"] for curve in chart["curves"]]


def test_secrets_are_not_on_the_page(folder: Path) -> None:
    """Neither as arguments, nor in texts of the run."""
    secret = "hf_abcdefghijklmnopqrstuvwxyz"
    lines = (folder / ".hexloop/journal.jsonl").read_text().splitlines()
    began = json.loads(lines[0])
    began["settings"] |= {"hub_token": "plainsecretvalue", "run_name": f"run with {secret}"}
    began["command"] = f"python train.py --key {secret}"
    (folder / ".hexloop/journal.jsonl").write_text("\n".join([json.dumps(began), *lines[1:]]) + "\n")
    (folder / "samples.txt").write_text(f"password=verysecretword and {secret}")
    reported(folder)
    source = (folder / "report.html").read_text()
    for each in (secret, "plainsecretvalue", "verysecretword"):
        assert each not in source
    assert "run with ***" in source


def test_results_in_the_folder_are_shown(folder: Path, tmp_path: Path) -> None:
    """Pictures, metrics of splits, and the first lines of predictions; links and what is not a picture are not."""
    pixel = bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c63f8cfc0f01f0005000176e5e4f00000000049454e44ae426082"
    )
    (folder / "confusion.png").write_bytes(pixel)
    (folder / "fake.png").write_text("<svg onload=alert(1)>")
    (tmp_path / "outside.png").write_bytes(pixel)
    (folder / "link.png").symlink_to(tmp_path / "outside.png")
    (folder / "all_results.json").write_text('{"eval_accuracy": 0.75, "note": "fine"}')
    (folder / "generated_text.txt").write_text("\n".join(f"line {number}" for number in range(100)))
    reported(folder)
    page = ReportPage(folder / "report.html")
    page.check_policy()
    assert [attributes["alt"] for name, attributes in page.elements if name == "img"] == ["confusion.png"]
    assert page.tables["all_results.json"][1:] == [["eval_accuracy", "0.75"], ["note", "fine"]]
    (generated,) = (text for text in page.preformatted if text.startswith("line 0"))
    assert generated.splitlines()[-1] == "line 19"
    for remark in ("fake.png is not shown", "link.png is not shown", "Only the first 20 lines of generated_text.txt"):
        assert f"first: {remark}" in page.text


def test_page_says_how_to_reproduce_and_resume(folder: Path) -> None:
    """The command of a recipe with --resume; for a script, the line that resumes from the newest good checkpoint."""
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert f"trainer.train(resume_from_checkpoint='{folder}/checkpoint-12')" in page.preformatted
    lines = (folder / ".hexloop/journal.jsonl").read_text().splitlines()
    began = {**json.loads(lines[0]), "command": "hexloop train a.yaml --seed 3"}
    (folder / ".hexloop/journal.jsonl").write_text("\n".join([json.dumps(began), *lines[1:]]) + "\n")
    (folder / "checkpoint-12" / "model.safetensors").unlink()
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert "hexloop train a.yaml --seed 3" in page.preformatted
    assert "hexloop train a.yaml --seed 3 --resume" in page.preformatted
    assert "With more steps or epochs, it resumes from checkpoint-8 with:" in page.text
    assert "seed=42" in page.text
    shutil.rmtree(folder / "checkpoint-4")
    (folder / "checkpoint-8" / "manifest.json").unlink()
    reported(folder)
    assert "it has no good checkpoint" in ReportPage(folder / "report.html").text


@pytest.mark.matrix
def test_a_million_lines_of_garbage_are_cut_with_a_note(folder: Path) -> None:
    """Among the lines of a run. The page stays small, and what the run logged is on it."""
    journal = folder / ".hexloop/journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    garbage = b"".join(
        b'{"garbage": %d, "<b>": [' % number if number % 2 else b"noise %d" % number for number in range(100)
    )
    with journal.open("wb") as file:
        file.writelines(lines[:5])
        for number in range(1_000_000):
            file.write(b'{"noise": "<script>", %d\n' % number if number % 2 else garbage[:30] + b"\n")
        file.writelines(lines[5:])
    started = time.monotonic()
    reported(folder, "--quick")
    assert time.monotonic() - started < 120
    page = ReportPage(folder / "report.html")
    assert "first: 1,000,000 lines of journal.jsonl are left out" in page.text
    assert len(page.curve("loss")) == 12
    assert len(page.source) < 2_000_000


def test_curves_of_many_points_are_reduced(folder: Path) -> None:
    """At most 2,000 points are in the page, among them the extremes; the table counts all."""
    lines = (folder / ".hexloop/journal.jsonl").read_text().splitlines()
    logged = [
        {"kind": "logged", "step": step, "time": 1e9 + step, "values": {"loss": 9.0 if step == 5_555 else 1.0}}
        for step in range(1, 20_001)
    ]
    (folder / ".hexloop/journal.jsonl").write_text("\n".join([lines[0], *map(json.dumps, logged)]) + "\n")
    reported(folder)
    page = ReportPage(folder / "report.html")
    assert len(page.curve("loss")) <= 2_000
    assert [5_555, 9.0] in page.curve("loss")
    assert page.row("loss", "first")[4:] == ["9 at step 5,555", "20,000"]
