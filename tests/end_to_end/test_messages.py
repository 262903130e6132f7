"""What a run reports at `log_level="info"`, on a terminal and in a file."""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path
from typing import Any

import pytest

from hexloop import EarlyStoppingCallback, Trainer
from tests.end_to_end.small.models import Stream, net, rows
from tests.end_to_end.small.trainers import small_trainer
from tests.terminals import screen_of
from tests.warm_python import warm_python


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The messages of the logger at the level INFO."""
    caplog.set_level(logging.INFO, "hexloop")
    return caplog


def facts(log: pytest.LogCaptureFixture, title: str) -> dict[str, str]:
    """Return the facts below the first line with this title, by name."""
    found, lines = {}, iter(log.messages)
    assert any(line == f"***** {title} *****" for line in lines), log.messages
    for line in lines:
        if (fact := re.fullmatch(r"  +(.*?) = (.*)", line)) is None:
            break
        found[fact[1]] = fact[2]
    return found


def warnings_in(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.WARNING]


def trained(folder: Path, resume: Any = None, **given: Any) -> Trainer:
    """Train the small model on 16 samples, and return its Trainer."""
    trainer: Trainer = small_trainer(folder, **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_the_start_of_a_run(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The header states data, batches, steps, parameters, hardware and checkpoints."""
    given = {"num_train_epochs": 3, "gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 3}
    model = net()
    model.layers[0].bias.requires_grad_(False)
    trained(tmp_path, parts={"model": model}, save_total_limit=2, **given)
    assert facts(messages, "Running training") == {
        "Num examples": "16",
        "Num Epochs": "3",
        "Num update steps per epoch": "2",
        "Instantaneous batch size per device": "4",
        "Total train batch size (w. parallel, distributed & accumulation)": "8",
        "Gradient Accumulation steps": "2",
        "Total optimization steps": "6",
        "Number of trainable parameters": "41",
        "Number of steps set by": "num_train_epochs",
        "Model": "Net",
        "Number of parameters": "49",
        "Device": "cpu",
        "Precision": "fp32",
        "Engine": "single",
        "Number of processes": "1",
        "Checkpoints": f"in {tmp_path}, every 3 steps, of which 2 are kept",
    }


def test_a_stream_for_a_number_of_steps(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """What is not known is not invented."""
    trained(tmp_path, parts={"train_dataset": Stream(64)}, max_steps=5)
    found = facts(messages, "Running training")
    assert found["Num examples"] == "20"
    assert found["Length of the data"] == "not known, so that the examples are those of all steps"
    assert found["Num Epochs"] == found["Num update steps per epoch"] == "not known"
    assert (found["Total optimization steps"], found["Number of steps set by"]) == ("5", "max_steps")
    assert found["Checkpoints"] == "none are saved (save_strategy='no')"


LIBRARIES = {
    "from hexloop import Trainer, TrainingArguments": "hexloop",
    "from transformers import Trainer, TrainingArguments": "transformers.trainer",
    "import hexloop; hexloop.takeover(); from transformers import Trainer, TrainingArguments": "transformers.trainer",
}
LOGGED = """
    import logging, sys
    {imported}
    from tests.end_to_end.small.models import Stream, net, rows
    logging.getLogger("transformers").propagate = True
    logging.basicConfig(stream=sys.stdout, format="%(name)s|%(message)s")
    common = dict(
        output_dir=sys.argv[1], use_cpu=True, disable_tqdm=True, report_to="none", save_strategy="steps", save_steps=3,
        per_device_train_batch_size=4, per_device_eval_batch_size=4, eval_strategy="epoch", log_level="info",
        gradient_accumulation_steps=2,
    )
    long = rows(1200)
    arguments = TrainingArguments(**common, max_steps=3)
    Trainer(net(), arguments, train_dataset=long, eval_dataset=long).train()
    trainer = Trainer(net(), TrainingArguments(**common, max_steps=6), train_dataset=long, eval_dataset=long)
    trainer.train(resume_from_checkpoint=sys.argv[1] + "/checkpoint-3")
    trainer.evaluate(Stream(5))
    trainer.predict(rows(6))
"""


@pytest.mark.matrix
def test_lines_of_facts_are_those_of_transformers(tmp_path: Path) -> None:
    """Each line of facts that transformers logs is logged, unchanged; in a takeover through the same logger."""
    found = {}
    for number, (imported, name) in enumerate(LIBRARIES.items()):
        script = textwrap.dedent(LOGGED.format(imported=imported))
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / str(number))], capture_output=True, text=True, check=True
        )
        assert f"{name}|***** Running training *****\n" in done.stdout.replace("|\n", "|"), done.stdout
        found[imported] = [
            line.rpartition("|")[2] for line in done.stdout.splitlines() if re.search(r"\|  |\*{5}", line)
        ]
    own, theirs, taken_over = found.values()
    facts_of_both = [line for line in theirs if "Fast-forwarding" not in line]
    assert len(facts_of_both) >= 30
    for lines in (own, taken_over):
        assert [line for line in lines if line in facts_of_both] == facts_of_both


def test_evaluations_and_predictions(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Each states its examples and batch size."""
    trainer = small_trainer(tmp_path, per_device_eval_batch_size=3)
    trainer.evaluate(rows(5))
    assert facts(messages, "Running Evaluation") == {"Num examples": "5", "Batch size": "3"}
    trainer.predict(rows(7))
    assert facts(messages, "Running Prediction") == {"Num examples": "7", "Batch size": "3"}
    messages.clear()
    trainer.evaluate(Stream(5))
    assert "  Num examples: Unknown" in messages.messages


@pytest.mark.parametrize("save_async", [False, True])
def test_each_save_with_its_size_and_duration(
    messages: pytest.LogCaptureFixture, tmp_path: Path, save_async: bool
) -> None:
    """The size is that of the published files; what rotation deletes is reported."""
    trained(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=1, save_async=save_async)
    saved = [line for line in messages.messages if line.startswith("Saved the checkpoint")]
    steps = [re.findall(r"checkpoint-\d+", line)[0] for line in saved]
    assert steps == [f"checkpoint-{step}" for step in (1, 2, 3, 4)]
    size = sum(path.stat().st_size for path in (tmp_path / "checkpoint-4").iterdir() if path.name != "manifest.json")
    unit = rf"{size / 1000:.3g} kB in [\d.]+ m?s"
    waited = r", of which training waited [\d.e-]+ m?s" if save_async else ""
    assert re.fullmatch(rf"Saved the checkpoint {tmp_path}/checkpoint-4 \({unit}{waited}\)\.", saved[-1]), saved[-1]
    assert "Deleted checkpoint-3, because of save_total_limit." in messages.messages


def test_what_is_loaded(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """The checkpoint that a run resumes from with its position, and the best model with its metric."""
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    given |= {"load_best_model_at_end": True, "parts": {"eval_dataset": rows(4)}}
    trained(tmp_path, max_steps=3, **given)
    messages.clear()
    trainer = trained(tmp_path, resume=True, max_steps=6, **given)
    assert "  Resuming training from checkpoint with epoch 0 and global step 3" in messages.messages
    assert f"  Checkpoint resumed from = {tmp_path}/checkpoint-3, after 0.75 epochs" in messages.messages
    (loaded,) = [line for line in messages.messages if line.startswith("Loading the best model")]
    best = trainer.state
    assert loaded == f"Loading the best model, {best.best_model_checkpoint} (loss: {best.best_metric:.6g})."


def test_how_a_run_ends(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Completed, stopped on request, by early stopping, or by another callback."""
    trained(tmp_path)
    completed = r"Training completed after 4 optimization steps \(4 in .*, .* per second\)\."
    assert re.fullmatch(completed, messages.messages[-1])
    trainer = small_trainer(tmp_path)
    for _ in trainer.stream():
        trainer.request_stop("the queue is full")
    assert messages.messages[-1].startswith("Training stopped after ")
    assert "): the queue is full" in messages.messages[-1]
    patient = EarlyStoppingCallback(1, early_stopping_threshold=100.0)
    parts = {"eval_dataset": rows(4), "callbacks": [patient]}
    given = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "save_strategy": "steps"}
    trained(tmp_path, parts=parts, save_steps=1, **given)
    assert re.match(r"Training stopped after 2 of 4 optimization steps \(2 in", messages.messages[-1])
    assert messages.messages[-1].endswith(": loss has not improved in the last evaluation.")


def test_a_finished_run_has_nothing_to_train(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A warning says so and what to do, except where the caller asked for what is left."""
    trained(tmp_path, save_strategy="epoch")
    messages.clear()
    trained(tmp_path, resume=True, save_strategy="epoch")
    assert warnings_in(messages) == [
        f"Nothing is left to train: {tmp_path}/checkpoint-4 is the state after step 4, and the run has 4 steps. To "
        "train longer, increase num_train_epochs or max_steps; to train from the start, do not resume."
    ]
    messages.clear()
    trained(tmp_path, resume="auto", save_strategy="epoch")
    assert not warnings_in(messages)
    assert any("Nothing is left to train" in message for message in messages.messages)


def test_overwriting_says_what_stays(messages: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """`overwrite_output_dir` deletes nothing: the checkpoints of the earlier run are named, and renamed if needed."""
    trained(tmp_path, save_strategy="epoch")
    messages.clear()
    with pytest.warns(FutureWarning, match="overwrite_output_dir"):
        trained(tmp_path, save_strategy="epoch", overwrite_output_dir=True)
    start, replaced = warnings_in(messages)
    assert f"deletes nothing: {tmp_path} holds checkpoints of other runs (up to checkpoint-4)" in start
    assert "checkpoint-4 is that of another run, and is set aside" in replaced
    assert (tmp_path / ".hexloop" / "replaced-1-checkpoint-4").is_dir(), "as the message says"
    messages.clear()
    with pytest.warns(FutureWarning, match="overwrite_output_dir"):
        trained(tmp_path / "new", save_strategy="epoch", overwrite_output_dir=True)
    assert not warnings_in(messages)


def test_a_quiet_run_says_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """At the default level nothing is logged."""
    trained(tmp_path, save_strategy="epoch", eval_strategy="epoch", parts={"eval_dataset": rows(4)})
    assert not caplog.messages


# A whole run, seen from outside

SCRIPT = """
    import sys
    from hexloop import EarlyStoppingCallback, Trainer, TrainingArguments
    from tests.end_to_end.small.models import net, rows

    arguments = TrainingArguments(
        sys.argv[1], use_cpu=True, num_train_epochs=5, per_device_train_batch_size=4, logging_steps=4, save_steps=4,
        eval_strategy="steps", eval_steps=4, load_best_model_at_end=True, metric_for_best_model="accuracy",
        log_level="info",
    )
    best = iter([0.5, 0.75, 0.25, 0.25])
    trainer = Trainer(
        net(), arguments, train_dataset=rows(16), eval_dataset=rows(8),
        compute_metrics=lambda _: {"accuracy": next(best)}, callbacks=[EarlyStoppingCallback(1)],
    )
    trainer.train()
"""
ROOT = Path(__file__).parents[2]
COMMAND = ["-c", textwrap.dedent(SCRIPT)]
SIZE = ("COLUMNS", "LINES")
"""Variables that would replace the size of the terminal."""
INHERITED = {name: value for name, value in os.environ.items() if name not in SIZE}
ENVIRONMENT = {**INHERITED, "OMP_NUM_THREADS": "1", "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_run_on_a_terminal(tmp_path: Path) -> None:
    """Messages stay above one bar, which ends complete; evaluations are rows below one header."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    command = [warm_python(), *COMMAND, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = [row for row in screen_of(ours) if row]
    os.close(ours)
    assert process.returncode == 0, shown
    assert sum("%|" in row for row in shown) == 1, shown
    assert re.match(r"100%\|.*\| 12/12 \[.*ended before step 20\]$", shown[-1])
    (header,) = (row for row in shown if row.split()[:3] == ["step", "epoch", "eval_loss"])
    rows = [row for row in shown if row.startswith(" ") and row != header]
    for row, step, accuracy in zip(rows, (4, 8, 12), ("0.5", "0.75", "0.25"), strict=True):
        assert shown.index(row) > shown.index(header)
        assert row.split()[0] == str(step)
        assert row[: header.index("eval_accuracy") + len("eval_accuracy")].endswith(f" {accuracy}")
    torn = [row for row in shown if not row.startswith(("[INFO] hexloop: ", "{'", " ", "100%"))]
    assert not torn


def test_a_run_in_a_file(tmp_path: Path) -> None:
    """Standard error and output in one file have plain lines, without carriage returns or escape sequences."""
    with (tmp_path / "log").open("wb") as log:
        command = [warm_python(), *COMMAND, str(tmp_path / "out")]
        subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, stdout=log, stderr=log, check=True)
    text = (tmp_path / "log").read_text()
    assert "\r" not in text
    assert "\x1b" not in text
    lines = text.splitlines()
    (progress,) = [line for line in lines if line.startswith("Training: ")]
    assert re.match(r"Training: step 12 of 12 \(100%\), .*, ended before step 20$", progress)
    assert sum(line.startswith("{'eval_loss'") for line in lines) == 3
