"""`hexloop run`: a program has the process, output, traceback and exit code that it has with `python`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.end_to_end import console
from tests.end_to_end.takeover.programs import RUN, SCRIPTS, python

PROCESS = SCRIPTS / "process.py"


def without_noise(text: str) -> str:
    """Return an error output without what torchao and bitsandbytes, which transformers imports, say of a CPU."""
    noise = "torchao", "KernelPreference", "ScaleCalculationMode", "gemm_4bit_forward"
    return "".join(line for line in text.splitlines(keepends=True) if not any(word in line for word in noise))


@pytest.mark.matrix
@pytest.mark.parametrize("how", ["code", pytest.param("raise", marks=pytest.mark.matrix)])
def test_the_process_is_that_of_python(how: str, tmp_path: Path) -> None:
    """Arguments, path, main module, exit code and traceback are those of `python SCRIPT`, with hexloop's Trainer."""
    plain = python(PROCESS, how, "--x", "--", "y", folder=tmp_path)
    ours = python(*RUN, PROCESS, how, "--x", "--", "y", folder=tmp_path)
    assert ours.returncode == plain.returncode != 0
    assert ours.stdout == plain.stdout.replace("transformers\n", "hexloop\n")
    assert "hexloop\n" in ours.stdout
    assert without_noise(ours.stderr) == without_noise(plain.stderr)
    assert ("second" in ours.stderr) == (how == "raise")


@pytest.mark.matrix
def test_the_command_is_no_part_of_the_path(tmp_path: Path) -> None:
    """The console script replaces its own folder in the path by that of the script."""
    done = console.hexloop("run", PROCESS, folder=tmp_path, installed=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"[] {SCRIPTS} __main__ {PROCESS}")


@pytest.mark.parametrize(
    ("how", "code", "errors"),
    [
        ("none", 0, ""),
        ("text", 1, "a text\n"),
        ("interrupt", 130, "KeyboardInterrupt\n"),
    ],
)
@pytest.mark.matrix
def test_exit_codes(how: str, code: int, errors: str, tmp_path: Path) -> None:
    """Every way to end has the exit code that a shell sees with `python`."""
    done = python(*RUN, PROCESS, how, folder=tmp_path)
    assert done.returncode == code
    assert done.stderr.endswith(errors)
    assert "hexloop" not in done.stderr


@pytest.mark.matrix
def test_accelerate_between_arguments_and_trainer(tmp_path: Path) -> None:
    """Loggers and functions of accelerate work as soon as there are training arguments."""
    done = python(*RUN, SCRIPTS / "before_trainer.py", "--use_cpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hexloop gathered [0]\n"
    assert "WARNING:before:[RANK 0] one line of all processes\n" in done.stderr


@pytest.mark.matrix
def test_an_error_during_training(tmp_path: Path) -> None:
    """The traceback starts at the script, and the exit code is 1."""
    script = shutil.copy(SCRIPTS / "line.py", tmp_path)
    options = ("--output_dir", "out", "--max_steps", "4", "--report_to", "none", "--use_cpu", "--disable_tqdm", "true")
    done = python(*RUN, script, *options, "--fail_at", "2", folder=tmp_path)
    assert done.returncode == 1
    first, *rest = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert first == "Traceback (most recent call last):"
    assert re.match(r'  File ".*line\.py", line \d+, in <module>', rest[0])
    assert rest[-1] == "ArithmeticError: the script's own error"


def test_programs_that_do_not_exist(tmp_path: Path) -> None:
    """The message names the script, module or package, and the exit code is 2."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for words, text in {
        ("missing.py",): "'missing.py', but there is no such file",
        ("-m", "missing_module"): "'missing_module', but there is no such module",
        ("-m", "package.missing"): "'package.missing', but there is no such module",
        ("-m", "package"): "'package', but that is a package without __main__.py",
    }.items():
        done = python(*RUN, *words, folder=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        assert text in done.stderr


@pytest.mark.matrix
def test_modules(tmp_path: Path) -> None:
    """`-m` runs a module of the working directory, and one whose package fails shows the package's own error."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import os\nif os.environ.get('FAILS'):\n    import nowhere_at_all\n")
    shutil.copy(PROCESS, package / "program.py")
    done = python(*RUN, "-m", "package.program", "code", folder=tmp_path)
    assert done.returncode == 7, done.stderr
    words = done.stdout.splitlines()[0]
    assert words == f"['code'] {tmp_path} __main__ {package / 'program.py'} package True"
    failed = python(*RUN, "-m", "package.program", folder=tmp_path, FAILS="1")
    assert failed.returncode == 1
    assert "No module named 'nowhere_at_all'" in failed.stderr
    assert "hexloop" not in failed.stderr


@pytest.mark.matrix
def test_invalid_syntax(tmp_path: Path) -> None:
    """A script that Python cannot parse is reported as with `python`."""
    (tmp_path / "broken.py").write_text("x = (1,\n")
    plain = python("broken.py", folder=tmp_path)
    ours = python(*RUN, "broken.py", folder=tmp_path)
    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.matrix
def test_spawned_processes(tmp_path: Path) -> None:
    """Processes that the script spawns use hexloop too, and unpickle the script's own classes."""
    done = python(*RUN, SCRIPTS / "spawns.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True hexloop True\n" * 2


ORDERS = {
    "takeover first": """
import hexloop
hexloop.takeover()
from transformers.trainer_seq2seq import Seq2SeqTrainer
from transformers.training_args_seq2seq import Seq2SeqTrainingArguments
import transformers, transformers.trainer, transformers.integrations.integration_utils as trackers
""",
    "transformers first": """
import transformers, transformers.trainer
import hexloop
hexloop.takeover()
import transformers.integrations.integration_utils as trackers
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
""",
    "models first": """
from transformers import AutoModel, AutoTokenizer, DataCollatorForSeq2Seq
import hexloop
hexloop.takeover()
import transformers, transformers.trainer
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.integrations import integration_utils as trackers
""",
}
IDENTITIES = """
from transformers import HfArgumentParser, TrainerCallback, EvalPrediction, IntervalStrategy, AutoModelForCausalLM
from transformers.trainer_utils import EvalLoopOutput, get_last_checkpoint
from transformers.trainer_pt_utils import AcceleratorConfig, LabelSmoother
from transformers.utils.notebook import NotebookProgressCallback
names = ("Seq2SeqTrainer", "Seq2SeqTrainingArguments", "HfArgumentParser", "TrainerCallback", "EvalPrediction",
         "IntervalStrategy", "EvalLoopOutput", "get_last_checkpoint", "AcceleratorConfig", "NotebookProgressCallback")
assert [name for name in names if globals()[name] is not getattr(hexloop, name)] == []
assert transformers.Trainer is transformers.trainer.Trainer is hexloop.Trainer
assert issubclass(trackers.WandbCallback, hexloop.TrainerCallback)
assert LabelSmoother.__module__ == "transformers.trainer_pt_utils"
import sys
assert sys.modules["transformers"].TrainingArguments is hexloop.TrainingArguments
"""


@pytest.mark.matrix
@pytest.mark.parametrize(
    "order",
    [order if order == "models first" else pytest.param(order, marks=pytest.mark.matrix) for order in ORDERS],
)
def test_the_order_of_imports_does_not_matter(order: str, tmp_path: Path) -> None:
    """Names are hexloop's from the takeover on, whatever of transformers was imported before."""
    done = python("-W", "error::UserWarning", "-c", ORDERS[order] + IDENTITIES, folder=tmp_path)
    assert done.returncode == 0, done.stderr
