"""Runs that are stopped by signals and resumed: exit codes, last lines, and bitwise equal weights."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest

from tests.unit.command_line.commands import NOISY, Commands


def weights(folder: str, step: int) -> bytes:
    """Return the bytes of a checkpoint's weights."""
    return Path(folder, f"checkpoint-{step}", "model.safetensors").read_bytes()


def evaluated_steps(folder: str) -> list[int]:
    """Return the steps at which the log has an evaluation."""
    lines = map(json.loads, Path(folder, "log.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "eval_loss" in line]


@pytest.fixture
def uninterrupted(commands: Commands) -> bytes:
    """The final weights of an uninterrupted run."""
    outcome = commands("train", commands.write("whole.yaml", NOISY), "--output_dir", "whole")
    assert outcome.code == 0
    return weights("whole", 9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_saves_and_the_printed_command_resumes_bitwise(
    commands: Commands, uninterrupted: bytes, name: str
) -> None:
    """A signal saves after the step, and the printed command resumes bitwise."""
    outcome = commands("train", commands.stopping(step=4, names=[name]))
    assert outcome.code == 3
    assert f"signal {name}: saving and stopping" in outcome.errors
    assert f"Stopped by signal {name} after 4 of 9 steps." in outcome.output
    sentence, command = outcome.last_line.split("; resume with: ")
    assert sentence == "Checkpoints are in out; look at out/log.jsonl"
    assert command == "hexloop train stopping.yaml --resume"
    resumed = commands(*shlex.split(command)[1:])
    assert resumed.code == 0
    assert "Done after 9 of 9 steps." in resumed.output
    assert weights("out", 9) == uninterrupted
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_interrupted_evaluation_is_repeated_on_resume(commands: Commands, uninterrupted: bytes) -> None:
    """The interrupted evaluation runs from its start on resume, and the results are the same."""
    assert commands("train", commands.stopping(step=6, names=["SIGTERM"], evaluating=True)).code == 3
    assert evaluated_steps("out") == [3]
    assert commands("train", commands.write("whole.yaml", NOISY), "--resume").code == 0
    assert evaluated_steps("out") == [3, 6, 9]
    assert weights("out", 9) == uninterrupted


def test_second_interrupt_ends_the_run_immediately(commands: Commands) -> None:
    """Two Ctrl-C within a step exit with 130, save nothing, and print the previous checkpoint."""
    outcome = commands("train", commands.stopping(step=5, names=["SIGINT", "SIGINT"]), "--save_steps", "2")
    assert outcome.code == 130
    assert outcome.errors.splitlines()[-2:] == [
        "hexloop: interrupted.",
        "The run ended after step 5. Checkpoints are in out; resume with: "
        "hexloop train stopping.yaml --save_steps 2 --resume",
    ]
    assert sorted(path.name for path in Path("out").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]


def test_failed_save_on_stop_is_a_failure(commands: Commands) -> None:
    """If the checkpoint cannot be written, the exit code is 1 and the lost steps are reported."""
    recipe = commands.stopping(step=4, names=["SIGTERM"], instead_of_folder="out")
    with pytest.warns(UserWarning, match="checkpoint-4 was not saved"):
        outcome = commands("train", recipe, "--report_to", "none")
    assert outcome.code == 1
    assert "Stopped by signal SIGTERM after 4 of 9 steps; the steps after the last checkpoint are not saved." in (
        outcome.output
    )


def test_signal_after_the_last_step_saves(commands: Commands) -> None:
    """A run stopped at its last step is saved, and resuming ends it without another step."""
    assert commands("train", commands.stopping(step=9, names=["SIGTERM"])).code == 3
    saved = weights("out", 9)
    outcome = commands("train", "stopping.yaml", "--resume")
    assert outcome.code == 0
    assert "Done after 9 of 9 steps." in outcome.output
    assert weights("out", 9) == saved


def test_finished_run_can_be_extended(commands: Commands) -> None:
    """The last line of a finished run doubles its length by the argument that decides it."""
    recipe = commands.write("whole.yaml", NOISY)
    outcome = commands("train", recipe, "--max_steps", "4", "--seed", "3")
    assert outcome.last_line.endswith("; train longer with: hexloop train whole.yaml --seed 3 --resume --max_steps 8")
    longer = commands(*shlex.split(outcome.last_line.split(" with: ")[1])[1:])
    assert longer.code == 0
    assert "Done after 8 of 8 steps." in longer.output
    assert longer.last_line.endswith("--seed 3 --resume --max_steps 16")
    by_epochs = commands("train", recipe, "--max_steps", "-1", "--num_train_epochs=0.5", "--output_dir", "epochs")
    assert by_epochs.last_line.endswith(
        "train longer with: hexloop train whole.yaml --max_steps -1 --output_dir epochs --resume --num_train_epochs 1"
    )


def test_resume_is_not_proposed_where_it_does_nothing(commands: Commands) -> None:
    """A run that a callback ended ends at the same step when it is resumed: the last line names another command."""
    patient = "{call: hexloop.EarlyStoppingCallback, early_stopping_patience: 1, early_stopping_threshold: 1e9}"
    best = "  load_best_model_at_end: true\n  save_steps: 3\n"
    recipe = commands.write("early.yaml", f"{NOISY.replace('  save_steps: 100', best)}\ncallbacks: [{patient}]\n")
    outcome = commands("train", recipe, "--report", "--seed", "3")
    assert "Done early, after 6 of 9 steps" in outcome.output
    assert "resume" not in outcome.last_line
    assert "train longer" not in outcome.last_line
    assert outcome.last_line.startswith("Checkpoints are in out; look at out/log.jsonl")
    assert outcome.last_line.endswith("; evaluate with: hexloop evaluate early.yaml --seed 3")
    assert "after 6 of 9 steps" in commands("train", recipe, "--seed", "3", "--resume").output, "it would do nothing"
    assert commands(*shlex.split(outcome.last_line.partition("evaluate with: ")[2])[1:]).code == 0


def test_resume_is_not_proposed_without_a_checkpoint(commands: Commands) -> None:
    """A run that fails before its first save has nothing to resume, also with `--resume auto`."""
    recipe = commands.write("buggy.yaml", f"{NOISY}\ncallbacks: [signalling.Fails]\n")
    outcome = commands("train", recipe, "--resume", "auto")
    assert outcome.code == 1
    assert outcome.errors.splitlines()[-1] == "The run ended after step 3. No checkpoint was written"


def test_checkpoint_of_another_run_is_not_used(commands: Commands) -> None:
    """The command names this run's checkpoint even if another run's has a higher step."""
    assert commands("train", commands.write("whole.yaml", NOISY)).code == 0
    outcome = commands("train", commands.stopping(step=4, names=["SIGTERM"]))
    assert outcome.last_line.endswith("resume with: hexloop train stopping.yaml --resume out/checkpoint-4")


def test_resume_from_checkpoint_equals_the_resume_option(commands: Commands, uninterrupted: bytes) -> None:
    """`resume_from_checkpoint`, in a recipe or as an option, equals `--resume` with a folder."""
    assert commands("train", commands.stopping(step=4, names=["SIGTERM"])).code == 3
    outcome = commands("train", "whole.yaml", "--resume_from_checkpoint", "out/checkpoint-4")
    assert outcome.code == 0
    assert weights("out", 9) == uninterrupted


def test_run_without_checkpoints_is_not_resumable(commands: Commands) -> None:
    """If nothing was saved, the last line does not offer to resume."""
    outcome = commands("train", commands.write("whole.yaml", NOISY), "--save_strategy", "no")
    assert outcome.last_line == "No checkpoint was written; look at out/log.jsonl"
