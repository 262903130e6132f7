"""The command line's help, usage errors, bad recipes, failures and exit codes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

import hexloop
from hexloop.app.arguments import TrainingArguments
from hexloop.domain.limits import limits
from tests.unit.command_line.commands import NOISY, Commands


def test_version_is_printed(commands: Commands) -> None:
    """`hexloop --version` prints the version."""
    outcome = commands("--version")
    assert (outcome.code, outcome.output) == (0, f"hexloop {hexloop.__version__}\n")


def test_help_lists_commands_and_exit_codes(commands: Commands) -> None:
    """`hexloop --help` lists every command and every exit code."""
    outcome = commands("--help")
    assert outcome.code == 0
    for word in ("train", "evaluate", "predict", "launch", "doctor", "  0 ", "  1 ", "  2 ", "  3 ", "  130 "):
        assert f"\n  {word.strip()} " in outcome.output or f"\n    {word.strip()} " in outcome.output


def test_help_of_train_lists_every_argument(commands: Commands) -> None:
    """`hexloop train --help all` shows a recipe, examples, each argument once by group, and exit codes."""
    shown = commands("train", "--help", "all").output
    for field in dataclasses.fields(TrainingArguments):
        assert shown.count(f"  --{field.name} ") + shown.count(f"  --{field.name}\n") == 1, field.name
    for part in ("\nCheckpoints:\n", "\nhexloop's own:\n", "call: my_project.MyModel", "examples:", "exit codes:"):
        assert part in shown


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_help_of_other_commands_omits_the_arguments(commands: Commands, command: str) -> None:
    """Commands on checkpoints list only their own options and refer to the arguments."""
    shown = commands(command, "--help").output
    assert "--checkpoint FOLDER" in shown
    assert "--learning_rate" not in shown
    assert "hexloop train --help" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "usage: hexloop"),
        (["tran", "recipe.yaml"], "there is no command tran; did you mean hexloop train?"),
        (["train"], "train needs a recipe; put it right after the command, as in 'hexloop train recipe.yaml'; 'hexl"),
        (["runs"], "runs needs a command: list, show or diff; `hexloop runs --help` describes them"),
        (["train", "recipe.yaml", "--measure", "-1"], "it takes a whole number, 0 or more, not '-1'"),
        (["train", "--resume", "recipe.yaml"], "train needs a recipe; put it right after the command"),
        (["launch", "--processes", "2"], "the following arguments are required: RECIPE-or-SCRIPT.py"),
        (["launch", "--procs", "2", "recipe.yaml"], "launch has no option --procs; did you mean --processes?"),
        (["doctor", "--jsn"], "doctor has no option --jsn; did you mean --json?"),
        (["predict", "recipe.yaml"], "the following arguments are required: --output"),
        (["evaluate", "recipe.yaml", "--checkpoint", "x", "--no-checkpoint"], "not allowed with argument"),
        (["train", "train.py"], "train.py is a script; did you mean hexloop run train.py?"),
        (["train", "."], ". is a folder; name the YAML file in it, as in ./recipe.yaml"),
        (["run", "list"], "there is no command run list; did you mean hexloop runs list?"),
        (["train", "nowhere.yaml"], "The file 'nowhere.yaml' cannot be read"),
        (["train", "recipe.yaml", "--max_stps", "3"], "You gave --max_stps 3, but there is no option of that name"),
        (["train", "recipe.yaml", "--resume"], "there is none in trainer_output; leave --resume out"),
        (["train", "recipe.yaml", "--resume", "nowhere"], "'nowhere', but there is no such folder"),
        (["train", "recipe.yaml", "--eval_strategy", "epoch"], "eval_strategy='epoch', but the recipe has no eval_dat"),
        (["evaluate", "recipe.yaml"], "eval_dataset is missing"),
        (["evaluate", "recipe.yaml", "--checkpoint", "nowhere"], "'nowhere', but there is no such folder"),
        (
            ["predict", "recipe.yaml", "--output", "x.pkl"],
            "is unknown; use a name ending in .npz or .jsonl",
        ),
        (["predict", "recipe.yaml", "--output", "x.npz"], "test_dataset and eval_dataset are both missing"),
    ],
)
def test_usage_errors_are_reported(commands: Commands, words: list[str], expected: str) -> None:
    """Wrong usage and configuration print the problem without a traceback and exit with 2."""
    outcome = commands(*words)
    assert outcome.code == 2
    assert expected in outcome.errors + outcome.output
    assert "Traceback" not in outcome.errors


def test_problems_of_recipe_and_command_line_are_reported_together(commands: Commands) -> None:
    """One error lists a misspelt option, a misspelt key with its line, and a missing checkpoint."""
    recipe = commands.write("bad.yaml", "modle: {call: project.Line}\ntrain_dataset: {call: project.pionts}\n")
    outcome = commands("train", recipe, "--sede", "1", "--resume")
    assert outcome.code == 2
    assert outcome.errors.startswith("hexloop: 5 problems in the configuration:\n  1. You gave --sede 1")
    for expected in ("line 1: You chose modle=", "model is missing", "did you mean points?", "there is none in"):
        assert expected in outcome.errors


def test_error_in_user_code_shows_its_traceback(commands: Commands) -> None:
    """An error in user code prints its traceback and the part being built, and exits with 1."""
    recipe = commands.write(
        "fails.yaml", "model: {call: project.fails}\ntrain_dataset: {call: project.points, count: 3}\n"
    )
    outcome = commands("train", recipe, "--use_cpu")
    assert outcome.code == 1
    assert 'raise LookupError("no such file")' in outcome.errors
    assert outcome.errors.endswith(
        "LookupError: no such file\nfails.yaml, line 1: This was raised while model was being made.\n"
    )


def test_error_of_hexloop_shows_only_its_message(commands: Commands) -> None:
    """An error of hexloop exits with 1 and its message; --traceback prints the traceback."""
    text = "model: {call: project.Line}\ntrain_dataset: {call: project.points, count: 3}\ndata_collator: project.take\n"
    commands.project.write(
        "project.py", f"{(commands.project.folder / 'project.py').read_text()}\ndef take(rows): return len(rows)\n"
    )
    recipe = commands.write("collate.yaml", text)
    outcome = commands("train", recipe, "--use_cpu", "--disable_tqdm")
    assert outcome.code == 1
    assert outcome.errors.startswith("hexloop: The data_collator returned a value of type int, but")
    assert "Traceback" not in outcome.errors
    assert "Traceback" in commands("train", recipe, "--use_cpu", "--disable_tqdm", "--traceback").errors


def test_failing_run_prints_how_to_resume(commands: Commands) -> None:
    """After an exception, the last lines name the saved step and the command that resumes."""
    recipe = commands.write("buggy.yaml", f"{NOISY}\ncallbacks: [signalling.Fails]\n")
    outcome = commands("train", recipe, "--save_steps", "2")
    assert outcome.code == 1
    assert outcome.errors.splitlines()[-2:] == [
        "ArithmeticError: a bug of the user's own",
        "The run ended after step 3. Checkpoints are in out; resume with: "
        "hexloop train buggy.yaml --save_steps 2 --resume",
    ]


def test_limits_are_changed_for_one_command(commands: Commands) -> None:
    """`--limit` holds while the command runs. An unknown name or an invalid value is refused."""
    recipe = commands.write("small.yaml", NOISY)
    before = limits()
    outcome = commands("train", recipe, "--limit", "recipe_bytes=100")
    assert (outcome.code, limits()) == (2, before)
    assert f"it has {len(NOISY)} bytes, more than 100; recipe_bytes raises this limit" in outcome.errors
    outcome = commands("train", recipe, "--limit", "recipe_bites=100", "--limit", "note_bytes")
    assert outcome.code == 2
    assert "There is no limit 'recipe_bites'" in outcome.errors
    assert "You chose the limit 'note_bytes'; write it as NAME=VALUE" in outcome.errors


def test_parsing_imports_neither_torch_nor_numpy() -> None:
    """Neither torch nor numpy is imported before a command needs it."""
    code = """
import sys
from hexloop.app.command_line import main
assert main(["train", "--help", "all"]) == 0
assert not {"torch", "numpy", "accelerate", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
