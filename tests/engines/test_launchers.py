"""A user's script trains under common launchers, with the number of processes and the engine that they request.

A launcher may fall back to one process, or to another engine, and exit with 0. So each process reports its rank and
its engine, and the weights are compared with those of one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engines.processes import free_port
from tests.warm_python import warm_python

SCRIPT = """
import json, os, sys
import torch
from hexloop import Trainer, TrainingArguments
from tests.engines.several.training import Reader, Sentences, padded

torch.set_num_threads(1)
size = int(os.environ["SIZE"])
arguments = TrainingArguments(
    "run", max_steps=4, per_device_train_batch_size=8 // size, learning_rate=0.01, report_to=[], disable_tqdm=True,
    use_cpu=os.environ.get("ASKS") != "deepspeed", save_strategy="no", ddp_timeout=60,
)
assert arguments.world_size == size, arguments.world_size
trainer = Trainer(Reader(), arguments, padded, Sentences(48))
trainer.train()
trainer.save_model("weights")
said = {
    "rank": arguments.process_index, "local": arguments.local_process_index, "size": arguments.world_size,
    "engine": type(trainer.model_wrapped).__name__, "loss": trainer.state.log_history[-1]["train_loss"],
}
with open(f"said-{arguments.process_index}.json", "w") as file:
    json.dump(said, file)
"""

OWN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
QUIET = {"OMP_NUM_THREADS": "1"}
LIMIT = 150
"""Time limit of a launch in seconds."""


class Launch:
    """A script in a folder, and the reports of its processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(SCRIPT)

    def start(self, words: Sequence[str], size: int, **variables: str) -> subprocess.Popen[str]:
        """Start a command in the folder."""
        kept = {name: value for name, value in os.environ.items() if name not in OWN}
        return subprocess.Popen(
            list(words),
            cwd=self.folder,
            env={**kept, **QUIET, "SIZE": str(size), "PYTHONPATH": os.pathsep.join(sys.path), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self, *processes: subprocess.Popen[str]) -> list[dict[str, Any]]:
        """Return the report of each rank, in order, after checking that all succeeded."""
        for process in processes:
            try:
                output, _ = process.communicate(timeout=LIMIT)
            finally:
                process.kill()
            assert process.returncode == 0, output
        said = [json.loads(file.read_text()) for file in sorted(self.folder.glob("said-*.json"))]
        return said


def alone(folder: Path) -> float:
    """Return the loss of one process."""
    launch = Launch(folder / "alone")
    (said,) = launch.end(launch.start([warm_python(), "train.py"], 1))
    loss: float = said["loss"]
    return loss


def check(said: Sequence[Mapping[str, Any]], loss: float, engine: str = "DistributedDataParallel") -> None:
    """Check that two processes used the engine and match one process."""
    assert [(each["rank"], each["local"], each["size"], each["engine"]) for each in said] == [
        (rank, rank, 2, engine) for rank in range(2)
    ]
    assert [each["loss"] for each in said] == [pytest.approx(loss, rel=1e-5)] * 2


ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: "no"
num_machines: 1
num_processes: 2
main_process_port: {port}
machine_rank: 0
"""
"""A configuration file in the format of `accelerate config`."""

MODULES = {"accelerate": ["accelerate.commands.accelerate_cli", "launch"], "deepspeed": ["deepspeed.launcher.runner"]}


def words_of(launcher: str, *options: str) -> list[str]:
    """Return the command that runs a launcher given as a Python module."""
    return [sys.executable, "-m", *MODULES[launcher], *options, "train.py"]


@pytest.mark.matrix
def test_accelerate_launch_with_a_configuration_file(tmp_path: Path) -> None:
    """`accelerate launch --config_file` starts two processes under DistributedDataParallel, which match one process."""
    launch = Launch(tmp_path / "launch")
    (launch.folder / "accelerate.yaml").write_text(ACCELERATE.format(port=free_port()))
    words = words_of("accelerate", "--config_file", "accelerate.yaml")
    check(launch.end(launch.start(words, 2, ACCELERATE_USE_CPU="true")), alone(tmp_path))


@pytest.mark.matrix
@pytest.mark.parametrize(("version", "engine"), [("1", "FullyShardedDataParallel"), ("2", "FSDPReader")])
def test_accelerate_launch_with_fsdp(version: str, engine: str, tmp_path: Path) -> None:
    """It uses FSDP on the CPU, too, where accelerate itself silently falls back to DistributedDataParallel."""
    launch = Launch(tmp_path / "launch")
    words = words_of(
        "accelerate", "--num_processes", "2", "--main_process_port", str(free_port()), "--use_fsdp",
        "--fsdp_version", version, "--fsdp_auto_wrap_policy", "NO_WRAP",
    )  # fmt: skip
    check(launch.end(launch.start(words, 2, ACCELERATE_USE_CPU="true")), alone(tmp_path), engine)


@pytest.mark.matrix
@pytest.mark.parametrize("option", ["--cpu", "--num_machines=1"])
def test_accelerate_launch_that_starts_one_process_of_two_is_refused(option: str, tmp_path: Path) -> None:
    """With or without --cpu, accelerate starts one process on a machine without GPUs; one is right if asked for one."""
    if torch.cuda.is_available():
        pytest.skip("accelerate starts two processes on GPUs")
    launch = Launch(tmp_path / "launch")
    process = launch.start(words_of("accelerate", option, "--num_processes", "2"), 2)
    output, _ = process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    assert "ConfigurationError: `accelerate launch` was asked for several processes, but it started this one" in output
    (said,) = launch.end(launch.start(words_of("accelerate", option, "--num_processes", "1"), 1))
    assert said["size"] == 1


@pytest.mark.matrix
def test_accelerate_launch_with_deepspeed(tmp_path: Path) -> None:
    """`accelerate launch --use_deepspeed` trains under DeepSpeed's engine."""
    pytest.importorskip("deepspeed")
    launch = Launch(tmp_path / "launch")
    words = words_of(
        "accelerate", "--num_processes", "2", "--main_process_port", str(free_port()), "--use_deepspeed",
        "--zero_stage", "2",
    )  # fmt: skip
    started = launch.start(words, 2, ASKS="deepspeed", DS_ACCELERATOR="cpu")
    check(launch.end(started), alone(tmp_path), "DeepSpeedEngine")


@pytest.mark.matrix
def test_the_launcher_of_deepspeed(tmp_path: Path) -> None:
    """`deepspeed` starts a script that does not ask for DeepSpeed, too."""
    pytest.importorskip("deepspeed")
    launch = Launch(tmp_path / "launch")
    words = words_of("deepspeed", "--num_gpus", "2", "--no_local_rank", "--master_port", str(free_port()))
    check(launch.end(launch.start(words, 2, DS_ACCELERATOR="cpu")), alone(tmp_path))


def slurm(rank: int, port: int) -> dict[str, str]:
    """The variables that srun sets."""
    return {
        "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "4711",
        "MASTER_PORT": str(port),
    }  # fmt: skip


def open_mpi(rank: int, port: int) -> dict[str, str]:
    """The variables that Open MPI's mpirun sets."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def by_hand(rank: int, port: int) -> dict[str, str]:
    """The variables that a user sets to start processes by hand in two shells."""
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


@pytest.mark.matrix
@pytest.mark.parametrize("variables", [slurm, open_mpi, by_hand])
def test_variables_of_other_launchers_are_used(variables: Any, tmp_path: Path) -> None:
    """Processes started by a launcher that is not written in Python use its variables to rendezvous."""
    launch, port = Launch(tmp_path / "launch"), free_port()
    command = [sys.executable, "train.py"]
    check(launch.end(*[launch.start(command, 2, **variables(rank, port)) for rank in range(2)]), alone(tmp_path))
