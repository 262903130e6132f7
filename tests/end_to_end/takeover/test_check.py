"""`hexloop run --check`: both libraries run a script, and the first difference is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hexloop.app.takeover.checking import differences
from hexloop.app.takeover.recording import OutputFolders
from tests.end_to_end.takeover.programs import RUN, SCRIPTS, python

OPTIONS = (
    *("--output_dir", "out", "--max_steps", "6", "--per_device_train_batch_size", "4", "--use_cpu"),
    *("--report_to", "none", "--disable_tqdm", "true", "--eval_strategy", "steps", "--eval_steps", "3"),
    *("--logging_steps", "500", "--save_steps", "3"),
)
CHECK: tuple[str | Path, ...] = (*RUN, "--check", SCRIPTS / "line.py", *OPTIONS)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


@pytest.mark.matrix
def test_a_script_that_agrees(tmp_path: Path) -> None:
    """Sequential samples: every loss, rate, norm and metric and all weights agree; nothing is left in the folder."""
    done = python(*CHECK, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained with transformers" in done.stdout
    assert "trained with hexloop" in done.stdout
    # Each step: loss, norm, rate, epoch. Three evaluations: loss, metric, epoch. Training and prediction: two.
    summary = "37 values at 6 steps, and 2 tensors of final weights"
    assert last_line(done.stdout).endswith(f"agrees with transformers to the last bit: {summary}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.matrix
def test_a_script_with_samples_in_random_order_agrees(tmp_path: Path) -> None:
    """The check reproduces transformers' order."""
    done = python(*CHECK, "--random_order", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agrees with transformers to the last bit" in last_line(done.stdout)


DIFFERS = """
from transformers import TrainerCallback, TrainingArguments
import line

class Shrinks(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2 and TrainingArguments.__module__.startswith("hexloop"):
            model.layer.bias.data.mul_(1.001)

class Shrinking(line.InOrder):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_callback(Shrinks())

line.InOrder, original = Shrinking, line.InOrder
line.main()
"""


@pytest.mark.matrix
def test_a_script_that_differs(tmp_path: Path) -> None:
    """A change of the weights after the second step with one library is found in the third step's loss."""
    (tmp_path / "differs.py").write_text(DIFFERS)
    (tmp_path / "line.py").write_text((SCRIPTS / "line.py").read_text())
    done = python(*RUN, "--check", "differs.py", *OPTIONS, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "differs.py first differs at step 3: loss is " in last_line(done.stdout)


FOLLOWS_SETS = """
import torch
import line

class FromSet(line.Line):
    def __init__(self):
        super().__init__()
        order = [int(word) for word in {str(number) for number in range(100)}]
        self.layer.weight.data = torch.tensor([order[:4]]) / 100

line.Line = FromSet
line.main()
"""


@pytest.mark.matrix
def test_a_script_that_follows_the_order_of_a_set(tmp_path: Path) -> None:
    """Python orders a set of texts differently in each process, unless the seed of its hashes is set."""
    (tmp_path / "program.py").write_text(FOLLOWS_SETS)
    (tmp_path / "line.py").write_text((SCRIPTS / "line.py").read_text())
    done = python(*RUN, "--check", "program.py", *OPTIONS, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


OWN_EVENTS = """
import sys
import line

class OwnEvents(line.InOrder):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        handler = self.callback_handler

        def call_event(event, args, state, control, **kwargs):
            for callback in handler.callbacks:
                getattr(callback, event)(args, state, control, model="a model of the library's own", **kwargs)
            return control

        handler.call_event = call_event

    def train(self):
        super().train()
        self.model.layer.reset_parameters()
        return super().train(resume_from_checkpoint=f"{self.args.output_dir}/checkpoint-3")

line.InOrder, original = OwnEvents, line.InOrder
line.main()
"""


@pytest.mark.matrix
def test_a_script_that_calls_callbacks_itself_and_resumes(tmp_path: Path) -> None:
    """The weights are those of the Trainer's model; the mean loss of the second run covers other steps."""
    (tmp_path / "program.py").write_text(OWN_EVENTS)
    (tmp_path / "line.py").write_text((SCRIPTS / "line.py").read_text())
    done = python(*RUN, "--check", "program.py", *OPTIONS, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert last_line(done.stdout).endswith("and 4 tensors of final weights")


@pytest.mark.matrix
@pytest.mark.parametrize("path", ["notes.txt", pytest.param("out/notes.txt", marks=pytest.mark.matrix)])
def test_a_script_that_writes_elsewhere(path: str, tmp_path: Path) -> None:
    """It is refused, with the file and the line of the script, before it writes; its own output folder is elsewhere."""
    (tmp_path / "out").mkdir()
    done = python(*CHECK, "--write", path, folder=tmp_path)
    assert done.returncode == 2
    assert f"it writes to {tmp_path / path}" in last_line(done.stderr)
    assert not (tmp_path / path).exists()


@pytest.mark.matrix
def test_a_script_that_fails(tmp_path: Path) -> None:
    """Its traceback is shown, and the library with which it failed is named."""
    done = python(*CHECK, "--fail_at", "2", folder=tmp_path)
    assert done.returncode == 1
    assert "ArithmeticError: the script's own error" in done.stderr
    assert last_line(done.stderr).endswith("failed with transformers (exit code 1)")


def test_programs_that_do_not_exist(tmp_path: Path) -> None:
    """They are named in one line, before anything runs."""
    for words in (("missing.py",), ("-m", "missing_module")):
        done = python(*RUN, "--check", *words, folder=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert f"{words[-1]!r}, but there is no such" in done.stderr


@pytest.mark.matrix
def test_a_script_that_trains_nothing(tmp_path: Path) -> None:
    """There is nothing to compare, which is an error."""
    (tmp_path / "empty.py").write_text("import transformers\n")
    done = python(*RUN, "--check", "empty.py", folder=tmp_path)
    assert done.returncode == 2
    assert "no Trainer" in last_line(done.stderr)


@pytest.mark.parametrize(
    "write",
    [
        "open('x.txt', 'a')",
        "os.open('x.txt', os.O_RDWR | os.O_CREAT)",
        "os.mkdir('new')",
        "os.rename('kept.txt', 'other.txt')",
        "pathlib.Path('kept.txt').unlink()",
        "torch.save(torch.zeros(1), 'x.pt')",
        "safetensors.torch.save_file({'x': torch.zeros(1)}, 'x.safetensors')",
        "shutil.rmtree('folder')",
    ],
)
@pytest.mark.matrix
def test_every_kind_of_write_is_seen(write: str, tmp_path: Path) -> None:
    """Each ends the program before it happens, also inside of `except Exception`; reading is allowed."""
    (tmp_path / "kept.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "program.py").write_text(
        "import os, pathlib, shutil, tempfile\nimport safetensors.torch, torch\n"
        "open('kept.txt').close(); os.makedirs('folder', exist_ok=True)\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x')\nopen(os.devnull, 'w').close()\n"
        f"try:\n    {write}\nexcept Exception:\n    pass\n"
    )
    records = tmp_path.parent / f"{tmp_path.name}-records"
    records.mkdir()
    command = ("-m", "hexloop.app.takeover.recording", records, "transformers", tmp_path / "program.py")
    done = python(*command, folder=tmp_path, TMPDIR=str(records))
    assert done.returncode == 2, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "kept.txt", "program.py"]
    record = json.loads((records / "transformers.jsonl").read_text().splitlines()[-1])
    assert record["kind"] == "elsewhere"
    assert record["line"] == 7


def logged(step: int, **values: float) -> dict[str, Any]:
    return {"kind": "log", "trainer": 1, "step": step, "values": values}


def test_differences_are_in_the_order_of_the_run() -> None:
    """Values, missing values, missing steps; readings of the clock are not compared, and NaN equals NaN."""
    one = [logged(1, loss=1.0, x=float("nan")), logged(2, loss=0.5, train_runtime=1.0), logged(3, loss=0.25)]
    assert list(differences(one, one)) == []
    assert list(differences(one, [*one[:1], logged(2, loss=0.5, train_runtime=2.0), one[2]])) == []
    (found,) = differences(one, [*one[:2], logged(3, loss=0.5)])
    assert str(found) == "at step 3: loss is 0.25 with transformers, 0.5 with hexloop"
    (found,) = differences([logged(1, loss=1.0, grad_norm=2.0)], [logged(1, loss=1.0)])
    assert (found.name, found.one, found.other) == ("grad_norm", 2.0, None)
    (found,) = differences(one, one[:2])
    assert str(found) == (
        "at step 3: what happens is a log at step 3 with transformers, the end of the run with hexloop"
    )


def test_output_folders_are_redirected(tmp_path: Path) -> None:
    """A folder has one redirected folder, however it is written; one that is redirected already stays."""
    folders = OutputFolders(tmp_path)
    (option, folder, joined, other) = folders.in_arguments(["--output_dir", "a/out", "--output_dir=./a/out", "x"])
    assert (option, joined, other) == ("--output_dir", f"--output_dir={folder}", "x")
    assert folder == folders.redirect(Path("a/out")) == folders.redirect(folder) == str(tmp_path / "1-out")
    assert folders.redirect("b/out") == str(tmp_path / "2-out")
    assert folders.redirect(None) == str(tmp_path / "3-trainer_output")


@pytest.mark.matrix
def test_two_processes(tmp_path: Path) -> None:
    """Under a launcher, the processes run both libraries together, and the first reports."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = python(*launcher, *CHECK, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trained with transformers in 2" in done.stdout
    assert "trained with hexloop in 2" in done.stdout
    assert "agrees with transformers to the last bit" in last_line(done.stdout)
    assert done.stdout.count("hexloop: ") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.matrix
def test_several_machines_are_refused(tmp_path: Path) -> None:
    """Machines share no folder; the error says so."""
    done = python(*RUN, "--check", SCRIPTS / "line.py", folder=tmp_path, WORLD_SIZE="2", LOCAL_WORLD_SIZE="1")
    assert done.returncode == 2
    assert "on one machine" in done.stderr
