"""The process's environment: the variables that arguments read, the launcher that started it, and its device."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from hexloop.domain.errors import ConfigurationError
from hexloop.domain.wording import variable_truth

VARIABLES = {
    "ACCELERATE_USE_CPU": "trains on the CPU, as use_cpu does",
    "ACCELERATE_TORCH_DEVICE": "device to train on, as torch spells it, unless use_cpu is set",
    "USE_TORCH_XLA": "false: train on another device although torch_xla is installed",
    "ACCELERATE_MIXED_PRECISION": "no, bf16, fp16 or fp8: the training precision if the arguments set none",
    "ACCELERATE_FP8_BACKEND": "ao (torchao) or te (Transformer Engine), for that precision fp8",
    "ACCELERATE_FP8_PAD_INNER_DIM": "torchao: pad products whose inner dimension is not a multiple of 16",
    "ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER": "torchao: gather the weights that FSDP 2 shards in 8 bits",
    "ACCELERATE_FP8_FORMAT": "Transformer Engine: HYBRID, E4M3 or E5M2",
    "ACCELERATE_FP8_MARGIN": "Transformer Engine: powers of 2 that scales leave free above the largest value",
    "ACCELERATE_FP8_INTERVAL": "Transformer Engine: steps between new scales",
    "ACCELERATE_FP8_AMAX_HISTORY_LEN": "Transformer Engine: steps whose maxima decide a scale",
    "ACCELERATE_FP8_AMAX_COMPUTE_ALGO": "Transformer Engine: max or most_recent, of these maxima",
    "ACCELERATE_FP8_OVERRIDE_FPROP": "Transformer Engine: true: forward products in higher precision",
    "ACCELERATE_FP8_OVERRIDE_DGRAD": "Transformer Engine: true: gradients of inputs in higher precision",
    "ACCELERATE_FP8_OVERRIDE_WGRAD": "Transformer Engine: true: gradients of weights in higher precision",
    "ACCELERATE_FP8_USE_AUTOCAST_DURING_EVAL": "Transformer Engine: true: evaluate in fp8 as well",
    "ACCELERATE_FP8_USE_MXFP8_BLOCK_SCALING": "Transformer Engine: true: a scale for each block of 32 values",
    "ACCELERATE_DYNAMO_BACKEND": "compiles the model, as torch_compile_backend does, if the arguments do not",
    "ACCELERATE_DYNAMO_MODE": "mode of that compilation, as torch_compile_mode",
    "TENSORBOARD_LOGGING_DIR": "folder that report_to='tensorboard' writes to",
    "WORLD_SIZE": "number of processes that a launcher started",
    "RANK": "this process's number among all of them, from 0",
    "LOCAL_RANK": "this process's number on its machine, from 0, which selects its GPU",
    "LOCAL_WORLD_SIZE": "number of processes on this machine",
    "MASTER_ADDR": "host name or address of the process of rank 0, to which the others connect",
    "MASTER_PORT": "port on that host",
    "ACCELERATE_USE_DEEPSPEED": "turns DeepSpeed on, configured by the launcher's variables, unless deepspeed is set",
    "ACCELERATE_USE_FSDP": "turns FSDP on, as fsdp does, configured by the variables FSDP_... of `accelerate launch`",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "asks for multi-dimensional meshes; refused, as parallelism_config is",
    "SM_FRAMEWORK_PARAMS": "SageMaker's options; its data parallelism becomes DDP, of which a message tells",
    "SM_HP_MP_PARAMETERS": "asks for SageMaker's model parallelism, together with the former; refused",
    "SM_HOSTS": "SageMaker's machines; the first is that of rank 0 if MASTER_ADDR is not set",
    "SM_TRAINING_ENV": "set on SageMaker, whose files beside a checkpoint are then named in the .gitignore of a push",
}
"""The variables that take the place of arguments, by the names that transformers and accelerate use."""

LAUNCHER_VARIABLES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "torch_xla.launch": (
        "PJRT_LOCAL_PROCESS_RANK",
        "PJRT_LOCAL_PROCESS_COUNT",
        "PJRT_LOCAL_PROCESS_RANK",
        "PJRT_LOCAL_PROCESS_COUNT",
    ),
}
"""For each launcher: rank, world size, local rank, local world size. accelerate and deepspeed set torchrun's.

Those of torch_xla.launch, which transformers' xla_spawn calls, count the processes of one machine.
"""

LAUNCHED_ALONE = frozenset({"ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT"})
"""What `accelerate launch` sets in the one process that it starts when it was asked for several on the CPU."""


def is_on(name: str) -> bool:
    """Return the truth value of a variable, False if it is unset. Raises ConfigurationError for any other text."""
    return variable_truth(name, os.environ.get(name, ""))


def lower_variable(name: str, default: str) -> str:
    """Return the value of a variable in lower case, or `default` if it is unset or empty."""
    return os.environ.get(name, "").strip().lower() or default


def sagemaker_data_parallel() -> bool:
    """Return whether SageMaker was asked for its data parallelism."""
    return _sagemaker("SM_FRAMEWORK_PARAMS").get("sagemaker_distributed_dataparallel_enabled") is True


def sagemaker_model_parallel() -> bool:
    """Return whether SageMaker was asked for its model parallelism."""
    by_mpi = _sagemaker("SM_FRAMEWORK_PARAMS").get("sagemaker_mpi_enabled") is True
    return by_mpi and "partitions" in _sagemaker("SM_HP_MP_PARAMETERS")


def _sagemaker(name: str) -> Mapping[str, Any]:
    """Return the mapping in a variable of SageMaker; an empty one if it is unset or anything else."""
    try:
        found = json.loads(os.environ.get(name) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@frozen
class Launched:
    """A process among those that a launcher started together.

    launcher: the launcher whose variables were found. address, port: where the other processes reach rank 0.
    """

    launcher: str = "none"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 29500


def launched(environment: Mapping[str, str] | None = None) -> Launched:
    """Return this process's rank and world size, from the first launcher in the table whose variables are set.

    Raises ConfigurationError if the variables are inconsistent, or those of accelerate ask for further processes.
    """
    environment = os.environ if environment is None else environment
    for launcher, (rank, size, local_rank, local_size) in LAUNCHER_VARIABLES.items():
        if environment.get(size, "").strip() in ("", "1") and launcher != "torchrun":
            continue
        if rank in environment or environment.get(size, "1").strip() not in ("", "1"):
            numbers = _Numbers(environment)
            found = Launched(
                launcher,
                numbers.read(rank),
                numbers.read(size),
                # Without a local rank all processes are assumed to run on this machine.
                numbers.read(local_rank, unset=numbers.read(rank) if {rank, size} <= environment.keys() else None),
                numbers.read(local_size, unset=0),
                _address(environment, launcher),
                _port(numbers, environment, launcher),
            )
            return _checked(found, numbers.problems, (rank, size, local_rank))
    if environment.keys() >= LAUNCHED_ALONE:
        raise ConfigurationError(
            "`accelerate launch` was asked for several processes, but it started this one only: MASTER_ADDR is set and "
            "no rank. On the CPU, it starts several if the environment variable ACCELERATE_USE_CPU is "
            "true and --multi_gpu takes the place of --cpu, or with --mpirun_hostfile. Do so, use torchrun or hexloop "
            "launch, or pass --num_processes 1."
        )
    return Launched()


class _Numbers:
    """Reads numbers from variables and collects the problems."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def read(self, name: str, unset: int | None = None) -> int:
        """Return the number that a variable starts with: srun writes "4(x2)" for four on each of two machines."""
        text = self._environment.get(name, "").strip()
        if text == "" and unset is not None:
            return unset
        number = re.match(r"\d+", text)
        if number is None:
            found = f"is {text!r}" if text else "is not set"
            self.problems.append(
                f"The environment variable {name} {found}, but a launcher of several processes sets it to a number; "
                "start the script with torchrun, or set it."
            )
            return 0
        return int(number.group())


def _address(environment: Mapping[str, str], launcher: str) -> str:
    """Return MASTER_ADDR, or the first host in SageMaker's list, or in srun's: node03 for "node[03-05,09],other"."""
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    if listed := re.match(r'\s*\[\s*"([^"]+)"', environment.get("SM_HOSTS", "")):
        return listed.group(1)
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", "")) if launcher == "srun" else ""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", hosts)
    return "127.0.0.1" if match is None else match.group(1) + (match.group(2) or "")


def _port(numbers: _Numbers, environment: Mapping[str, str], launcher: str) -> int:
    """Return MASTER_PORT, or a port derived from the job, so that two jobs on one machine do not collide."""
    job = numbers.read("SLURM_JOB_ID", unset=0) if launcher == "srun" else 0
    return numbers.read("MASTER_PORT", unset=29500 + job % 1000 if "MASTER_PORT" not in environment else None)


def _checked(found: Launched, problems: list[str], names: tuple[str, str, str]) -> Launched:
    rank, size, local_rank = names
    if not problems and found.rank >= found.world_size:
        problems.append(
            f"The environment has {rank}={found.rank} and {size}={found.world_size}, but ranks count from 0 and are "
            "lower than the number of processes; start the script with a launcher, or unset both."
        )
    if not problems and found.local_world_size and found.local_rank >= found.local_world_size:
        problems.append(
            f"The environment has {local_rank}={found.local_rank}, but this machine has {found.local_world_size} "
            "processes, whose numbers count from 0; start the script with a launcher."
        )
    if problems:
        raise ConfigurationError(problems)
    return found


def _no_barrier() -> None:
    return None


@frozen
class DistributedEnvironment:
    """What arguments derive from the process's environment.

    world_size: number of processes in the run.
    process_index: rank of this process among all of them.
    local_process_index: rank of this process on its machine.
    barrier: returns once every process of the run has called it.
    device: name of the device, as torch spells it; None to detect it.
    local_world_size: number of processes on this machine; 0 if the launcher does not state it.
    n_gpu: number of GPUs that this process trains on; None to detect it: all visible ones if the process is alone.
    """

    world_size: int = 1
    process_index: int = 0
    local_process_index: int = 0
    barrier: Callable[[], None] = _no_barrier
    device: str | None = None
    n_gpu: int | None = None
    local_world_size: int = 0
