"""Which processes a launcher started, read off the environment that it gave this one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from attrs import frozen

from hexloop.domain.errors import ConfigurationError


@frozen
class Launched:
    """A process among those that were started together.

    launcher: who is thought to have started them. address, port: where rank 0 is found by the others.
    """

    launcher: str = "nobody"
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    address: str = "127.0.0.1"
    port: int = 29500


ALONE = Launched()

VARIABLES = {
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
}
"""For each launcher: rank, world size, local rank, local world size. accelerate and deepspeed set torchrun's."""


def launched(environment: Mapping[str, str] | None = None) -> Launched:
    """The processes that this one belongs to; the first launcher of the table that names a rank counts.

    Raises ConfigurationError where what it says makes no sense.
    """
    environment = os.environ if environment is None else environment
    for launcher, (rank, size, local_rank, local_size) in VARIABLES.items():
        if environment.get(size, "").strip() in ("", "1") and launcher != "torchrun":
            continue
        if rank in environment or environment.get(size, "1").strip() not in ("", "1"):
            numbers = _Numbers(environment)
            found = Launched(
                launcher,
                numbers.of(rank),
                numbers.of(size),
                numbers.of(local_rank, unset=_local_rank(numbers, rank, size)),
                numbers.of(local_size, unset=0),
                _address(environment, launcher),
                _port(numbers, environment, launcher),
            )
            return _checked(found, numbers, (rank, size, local_rank))
    return ALONE


class _Numbers:
    """Reads numbers, and keeps what is wrong with them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def of(self, name: str, unset: int | None = None) -> int:
        """The number that a variable begins with: "4(x2)" is how srun says four on each of two machines."""
        text = self._environment.get(name, "").strip()
        if text == "" and unset is not None:
            return unset
        number = re.match(r"\d+", text)
        if number is None:
            said = f"is {text!r}" if text else "is not set"
            self.problems.append(f"The environment variable {name} {said}, but a launcher of several processes sets it "
                                 "to a number; start the script with torchrun, or set it.")  # fmt: skip
            return 0
        return int(number.group())


def _local_rank(numbers: _Numbers, rank: str, size: str) -> int | None:
    """Where nobody says, all processes are taken to be on this machine, unless their number says otherwise."""
    return None if rank not in numbers._environment or size not in numbers._environment else numbers.of(rank)


def _address(environment: Mapping[str, str], launcher: str) -> str:
    if environment.get("MASTER_ADDR"):
        return environment["MASTER_ADDR"]
    if launcher == "srun":
        return first_host(environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST", "")))
    return "127.0.0.1"


def _port(numbers: _Numbers, environment: Mapping[str, str], launcher: str) -> int:
    """The port that was said, else one that follows from the job, so that two jobs on a machine do not meet."""
    job = numbers.of("SLURM_JOB_ID", unset=0) if launcher == "srun" else 0
    return numbers.of("MASTER_PORT", unset=29500 + job % 1000 if "MASTER_PORT" not in environment else None)


def first_host(hosts: str) -> str:
    """The first name of a list as srun writes it: "node[03-05,09],other" begins with node03."""
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", hosts)
    return "127.0.0.1" if match is None else match.group(1) + (match.group(2) or "")


def _checked(found: Launched, numbers: _Numbers, names: tuple[str, str, str]) -> Launched:
    rank, size, local_rank = names
    problems = numbers.problems
    if not problems and found.rank >= found.world_size:
        problems.append(
            f"The environment says {rank}={found.rank} and {size}={found.world_size}, but ranks count from 0 and end "
            "before the number of processes; start the script with a launcher, or unset both."
        )
    if not problems and found.local_world_size and found.local_rank >= found.local_world_size:
        problems.append(
            f"The environment says {local_rank}={found.local_rank}, but there are {found.local_world_size} processes "
            "on this machine, whose numbers count from 0; start the script with a launcher."
        )
    if problems:
        raise ConfigurationError(problems)
    return found
