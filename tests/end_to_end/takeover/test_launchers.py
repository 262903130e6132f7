"""Scripts written for transformers, run in two processes by each launcher."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.end_to_end.takeover.programs import SCRIPTS, python


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


LAUNCHERS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hexloop", "run"),
    "hexloop launch": ("-m", "hexloop", "launch", "--processes", "2", "run"),
    "accelerate launch": (
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
        *(
            "--mixed_precision",
            "no",
            "--dynamo_backend",
            "no",
            "--main_process_port",
            str(free_port()),
            "-m",
            "hexloop",
            "run",
        ),
    ),
}
OPTIONS = (
    *("--output_dir", "out", "--max_steps", "4", "--per_device_train_batch_size", "4", "--use_cpu"),
    *("--report_to", "none", "--disable_tqdm", "true", "--random_order"),
)


@pytest.mark.matrix
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes(launcher: str, tmp_path: Path) -> None:
    """Both processes train with hexloop, and the first writes the results once."""
    done = python(*LAUNCHERS[launcher], SCRIPTS / "line.py", *OPTIONS, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained with hexloop in 2") == 1, done.stdout
    assert (tmp_path / "out" / "summary.txt").read_text() == "4 8\n"
    assert (tmp_path / "out" / "checkpoint-4" / "manifest.json").exists()


@pytest.mark.matrix
def test_accelerate_between_arguments_and_trainer(tmp_path: Path) -> None:
    """The processes meet when the arguments are made, and accelerate's functions gather from both."""
    done = python(*LAUNCHERS["torchrun"], SCRIPTS / "before_trainer.py", "--use_cpu", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hexloop gathered [0, 1]") == 2, done.stdout
    assert done.stderr.count("WARNING:before:[RANK 0] one line of all processes") == 1, done.stderr
