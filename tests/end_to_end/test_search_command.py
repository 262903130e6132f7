"""`hexloop search`: trials in processes of their own, which fail, die, are stopped and resumed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hexloop.domain.folders import Folder
from hexloop.domain.search.records import RecordedTrial, SearchRecord, read_search
from hexloop.domain.search.selection import best_trials
from hexloop.ports.search import TrialState

MODULE = '''
import os, signal, time

import torch

import hexloop


class Line(torch.nn.Module):
    """Squared error of a straight line."""

    def __init__(self, slope=0.0, act="train"):
        super().__init__()
        if act == "raise":
            raise ValueError("this act is wrong")
        if act == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        self.slope, self.diverges = torch.nn.Parameter(torch.tensor([slope])), act == "diverge"

    def forward(self, x, labels=None):
        loss = ((self.slope * x - labels) ** 2).mean()
        diverged = self.diverges and not self.training
        return {"loss": loss * float("inf") if diverged else loss, "logits": self.slope * x}


def points(count):
    return [{"x": float(number), "labels": 2.0 * number} for number in range(1, count + 1)]


def error(prediction):
    return {"distance": float(abs(prediction.predictions - prediction.label_ids).mean())}


class Slow(hexloop.TrainerCallback):
    def on_step_end(self, args, state, control, **named):
        time.sleep(float(os.environ.get("STEP_SECONDS", "0")))

    def on_train_end(self, args, state, control, model, **named):
        if model.diverges:
            os.kill(os.getpid(), signal.SIGKILL)
'''

RECIPE = """\
model: {call: project.Line}
train_dataset: {call: project.points, count: 8}
eval_dataset: {call: project.points, count: 4}
compute_metrics: project.error
callbacks: [{call: project.Slow}]
search:
  trials: 6
  backend: random
  objective: distance
  direction: minimize
  seed: 3
  space:
    learning_rate: {low: 1e-4, high: 1e-1, log: true}
    model.slope: {low: -1.0, high: 5.0}
arguments:
  output_dir: runs/search
  max_steps: 12
  per_device_train_batch_size: 4
  eval_strategy: steps
  eval_steps: 4
  save_strategy: steps
  save_steps: 4
  logging_steps: 4
  use_cpu: true
  disable_tqdm: true
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a recipe and its module."""
    (tmp_path / "project.py").write_text(MODULE)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hexloop", *arguments]


def run(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a project to its end."""
    return subprocess.run(
        command(*arguments),
        check=False,
        cwd=project,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=300,
    )


def search(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(project, "search", "recipe.yaml", *arguments, **environment)


def edit(project: Path, old: str, new: str) -> None:
    text = (project / "recipe.yaml").read_text()
    assert old in text
    (project / "recipe.yaml").write_text(text.replace(old, new))


def record_of(project: Path, folder: str = "runs/search") -> SearchRecord:
    found = read_search(Folder(str(project / folder)))
    assert found is not None
    assert found.skipped == 0
    return found


def facts(record: SearchRecord) -> dict[int, Any]:
    """Return what must not depend on how a search was run."""
    return {
        number: (each.name, dict(each.parameters), each.state, list(each.values or ()), each.checkpoint)
        for number, each in record.trials.items()
    }


def in_state(record: SearchRecord, state: TrialState) -> list[RecordedTrial]:
    return [each for each in record.trials.values() if each.state is state]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Return what becomes of the trials of the recipe, one after another."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "project.py").write_text(MODULE)
    (folder / "recipe.yaml").write_text(RECIPE)
    done = search(folder)
    assert done.returncode == 0, done.stderr
    return facts(record_of(folder))


@pytest.mark.matrix
def test_a_search_in_two_processes(project: Path, undisturbed: dict[int, Any]) -> None:
    """Has the trials and values of one in a single process, and says what is best and what to do next."""
    done = search(project, "--parallel", "2", "--report")
    assert done.returncode == 0, done.stderr
    record = record_of(project)
    assert facts(record) == undisturbed
    assert len(record.trials) == 6
    (best,) = best_trials(record.trials.values(), ["minimize"])
    lines = done.stdout.splitlines()
    assert len([each for each in lines if each.startswith("trial ") and " complete, objective " in each]) == 6
    assert lines[6] == "Done after 6 trials: 6 complete."
    assert lines[7].startswith(f"The best trial is {best.number} with distance ")
    assert f"its checkpoint is runs/search/{best.checkpoint}" in lines[7]
    assert "look at runs/search/report.html" in lines[8]
    assert lines[8].endswith("hexloop train recipe.yaml --trial runs/search --output_dir runs/search-best")
    assert "Search search" in (project / "runs/search/report.html").read_text()
    for number in range(6):
        output = (project / f"runs/search/run-{number}/output.log").read_text()
        assert "eval_distance" in output
        journal = (project / f"runs/search/run-{number}/.hexloop/journal.jsonl").read_text()
        assert '"hexloop search recipe.yaml' in journal
    again = run(project, "evaluate", "recipe.yaml", "--trial", "runs/search")
    assert again.returncode == 0, again.stderr
    metrics = json.loads(again.stdout)
    assert best.checkpoint is not None
    assert metrics["checkpoint"].endswith(best.checkpoint.rpartition("/")[0] + "/checkpoint-12")
    assert (project / "runs/search/run-0/output.log").stat().st_mode & 0o022 == 0


@pytest.mark.matrix
def test_pruning_and_a_resumed_search_of_more_trials(project: Path) -> None:
    """By optuna, whose proposals go on as if nothing had been; a finished search that is resumed only reports."""
    pytest.importorskip("optuna")
    edit(
        project,
        "  backend: random\n",
        "  backend: optuna\n  pruner: {call: optuna.pruners.MedianPruner, n_startup_trials: 2}\n",
    )
    edit(project, "runs/search", "runs/whole")
    whole = search(project, "--trials", "8")
    assert whole.returncode == 0, whole.stderr
    record = record_of(project, "runs/whole")
    assert in_state(record, TrialState.PRUNED)
    assert " pruned " in whole.stdout
    edit(project, "runs/whole", "runs/parts")
    assert search(project, "--trials", "3").returncode == 0
    done = search(project, "--trials", "8", "--resume")
    assert done.returncode == 0, done.stderr
    assert facts(record_of(project, "runs/parts")) == facts(record)
    again = search(project, "--trials", "8", "--resume")
    assert again.returncode == 0
    assert again.stdout.splitlines()[0].startswith("Done after 8 trials")
    assert facts(record_of(project, "runs/parts")) == facts(record)


def try_acts(project: Path, acts: str) -> None:
    """Let the search be one trial for each act of the model, in order."""
    edit(project, "    model.slope: {low: -1.0, high: 5.0}\n", f"    model.act: [{acts}]\n")
    edit(project, "  backend: random\n", "  backend: grid\n")
    edit(project, "  trials: 6\n", "")
    edit(project, "    learning_rate: {low: 1e-4, high: 1e-1, log: true}\n", "")


@pytest.mark.matrix
def test_trials_that_fail_or_die(project: Path) -> None:
    """Count as failed, with the reason; one that dies is started once more. The search goes on."""
    try_acts(project, "train, raise, die")
    done = search(project)
    assert done.returncode == 0, done.stderr
    record = record_of(project)
    states = {each.parameters["model.act"]: each for each in record.trials.values()}
    assert len(states) == 3
    assert states["train"].state is TrialState.COMPLETE
    assert (states["raise"].state, states["raise"].reason) == (TrialState.FAILED, "ValueError: this act is wrong")
    assert states["die"].state is TrialState.FAILED
    assert states["die"].reason == "its process was killed by SIGKILL, as happens when memory runs out"
    assert "Traceback" in (project / f"runs/search/{states['raise'].name}/output.log").read_text()
    assert "Done after 3 trials: 1 complete, 2 failed." in done.stdout
    edit(project, "[train, raise, die]", "[raise]")
    failed = search(project, "--output_dir", "runs/failed")
    assert failed.returncode == 1
    assert "No trial of the search in runs/failed was complete" in failed.stderr
    assert "this act is wrong" in failed.stderr


@pytest.mark.matrix
def test_a_trial_that_diverged_and_whose_process_dies_is_not_trained_further(project: Path) -> None:
    """It was found to have diverged, and is not started from its checkpoint again."""
    try_acts(project, "train, diverge")
    done = search(project)
    assert done.returncode == 0, done.stderr
    train, diverge = record_of(project).trials.values()
    assert train.state is TrialState.COMPLETE
    assert (diverge.state, diverge.reason) == (TrialState.FAILED, "it diverged at step 4")
    lines = map(json.loads, (project / "runs/search/search.jsonl").read_text().splitlines())
    reported = [line["step"] for line in lines if line["kind"] == "reported" and line["trial"] == diverge.number]
    assert reported == [4]


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[Any]) -> None:
    """Wait until a file has so many lines, or the process has ended."""
    until = time.monotonic() + 120
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < count):
        assert time.monotonic() < until
        time.sleep(0.02)


def workers_of(process: subprocess.Popen[Any]) -> Iterator[int]:
    """Yield the processes that a process has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == process.pid:
                yield int(folder.name)
        except (OSError, IndexError, ValueError):
            continue


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.matrix
@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_a_signal_saves_and_stops(project: Path, undisturbed: dict[int, Any]) -> None:
    """The trials save a checkpoint, from which they resume. The exit code is 3, and no process is left."""
    process = subprocess.Popen(
        command("search", "recipe.yaml", "--parallel", "2"),
        cwd=project, env={**os.environ, "STEP_SECONDS": "0.1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_lines(project / "runs/search/search.jsonl", 4, process)
    workers = list(workers_of(process))
    assert len(workers) == 2
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 3, err
    assert "SIGINT: saving and stopping the trials; a second one stops immediately" in err
    assert "Stopped after " in out
    assert out.strip().endswith("resume with: hexloop search recipe.yaml --parallel 2 --resume")
    assert not any(map(is_running, workers))
    before = record_of(project)
    running = [each for each in before.trials.values() if each.state is None]
    assert running
    assert all(list((project / "runs/search" / each.name).glob("checkpoint-*")) for each in running)
    done = search(project, "--resume", "--parallel", "2")
    assert done.returncode == 0, done.stderr
    found = facts(record_of(project))
    assert {number: each[:4] for number, each in found.items()} == {n: each[:4] for n, each in undisturbed.items()}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(2))
def test_killed_searches_end_as_undisturbed_ones(project: Path, undisturbed: dict[int, Any], seed: int) -> None:
    """Killed three times each at any moment, the process of the search or a worker; no worker outlives the search."""
    draws = random.Random(seed)
    for _ in range(3):
        exists = (project / "runs/search/search.json").exists()
        process = subprocess.Popen(
            command("search", "recipe.yaml", "--parallel", "2", *(["--resume"] if exists else [])),
            cwd=project, env={**os.environ, "STEP_SECONDS": "0.05"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        lines = project / "runs/search/search.jsonl"
        wait_for_lines(lines, 1 + (lines.read_bytes().count(b"\n") if exists else 0), process)
        time.sleep(draws.uniform(0, 1.5))
        workers = list(workers_of(process))
        os.kill(draws.choice([process.pid, process.pid, *workers]), signal.SIGKILL)
        time.sleep(0.2)
        process.kill()
        process.wait()
        until = time.monotonic() + 30
        while any(map(is_running, workers)):
            assert time.monotonic() < until
            time.sleep(0.02)
    done = search(project, "--resume", "--parallel", "2")
    assert done.returncode == 0, done.stderr
    assert facts(record_of(project)) == undisturbed


def test_bad_input(project: Path) -> None:
    """One message for all problems, with exit code 2, and nothing is written."""
    edit(project, "  objective: distance\n", "  objektive: distance\n")
    edit(project, "eval_dataset: {call: project.points, count: 4}\n", "")
    done = search(project)
    assert done.returncode == 2
    assert (
        "You chose search.objektive='distance', but the section has no such key; did you mean objective?" in done.stderr
    )
    assert "The recipe has no eval_dataset" in done.stderr
    assert not (project / "runs").exists()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("old", "new", "arguments", "words", "code"),
    [
        ("  seed: 3\n", "  seed: 3\n", ["--resume"], "There is no search in runs/search; leave --resume out", 2),
        ("backend: random", "backend: sigopt", [], "SigOpt's service has ended", 2),
        ("backend: random", "backend: optima", [], "did you mean 'optuna'?", 2),
        ("backend: random", "sampler: {call: project.Slow}\n  backend: random", [], "no option 'sampler'", 2),
        ("  objective: distance\n", "  objective: distnce\n", [], "did you mean eval_distance", 1),
        ("  max_steps: 12\n", "  max_steps: 12\n", ["--output_dir", "s3://bucket/a"], "a folder of this machine", 2),
    ],
)
def test_what_cannot_be_searched(
    project: Path, old: str, new: str, arguments: list[str], words: str, code: int
) -> None:
    """Each says what is wrong, and the way out."""
    edit(project, old, new)
    done = search(project, *arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.matrix
def test_an_earlier_search_is_not_overwritten(project: Path) -> None:
    """Nor resumed unasked, nor as another one; nor by several launched processes. What was given is kept."""
    assert search(project, "--trials", "1").returncode == 0
    before = (project / "runs/search/search.jsonl").read_bytes()
    done = search(project)
    assert done.returncode == 2
    assert "There is a search in runs/search already; continue it with --resume" in done.stderr
    edit(project, "high: 5.0", "high: 6.0")
    done = search(project, "--resume")
    assert done.returncode == 1
    assert "is another one: space was" in done.stderr
    done = search(project, "--output_dir", "runs/other", WORLD_SIZE="2", RANK="0", MASTER_ADDR="x", MASTER_PORT="1")
    assert "several were launched" in done.stderr
    assert (project / "runs/search/search.jsonl").read_bytes() == before


@pytest.mark.matrix
def test_a_check_trains_nothing(project: Path) -> None:
    """It prints what would be tried, with the first trial."""
    edit(
        project,
        "    model.slope:",
        "    optim: [sgd, adamw_torch]\n    optim_args: {choices: [a], when: {optim: sgd}}\n    model.slope:",
    )
    edit(
        project,
        "    optim_args: {choices: [a], when: {optim: sgd}}\n",
        "    warmup_steps: {low: 0, high: 4, step: 2, when: {optim: sgd}}\n",
    )
    done = search(project, "--check", "--trials", "9")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("9 trials by random, compared by distance, less is better; they go to ")
    assert lines[1:5] == [
        "  learning_rate: 0.0001 to 0.1, logarithmic",
        "  optim: sgd, adamw_torch",
        "  warmup_steps: 0 to 4 in steps of 2, if optim is sgd",
        "  model.slope: -1.0 to 5.0",
    ]
    assert lines[5].startswith("The first trial would have learning_rate=")
    assert not (project / "runs/search/search.json").exists()


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.mark.matrix
def test_the_search_among_the_examples(tmp_path: Path) -> None:
    """Twenty trials, some of which are stopped early, and a best one as good as the table of examples says."""
    pytest.importorskip("optuna")
    done = run(tmp_path, "search", str(EXAMPLES / "digits_search.yaml"), "--parallel", "2", "--report")
    assert done.returncode == 0, done.stderr
    record = record_of(tmp_path, "runs/digits_search")
    assert len(record.trials) == 20
    assert len(in_state(record, TrialState.PRUNED)) >= 4
    (best,) = best_trials(record.trials.values(), ["maximize"])
    assert (best.values or [0.0])[0] >= 0.98
    kept = [each for each in record.trials.values() if list((tmp_path / "runs/digits_search" / each.name).glob("ch*"))]
    assert len(kept) <= 3
    assert best in kept
