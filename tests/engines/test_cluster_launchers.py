"""Real cluster launchers start a user's script, where they are installed: srun, Open MPI and MPICH."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engines.processes import free_port
from tests.engines.test_launchers import LIMIT, Launch, alone, check

SERVERS = ("munged", "slurmctld", "slurmd")
PATIENCE = 30
"""Seconds to wait for Slurm to start."""

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
"""A Slurm cluster of one node, this machine."""


@pytest.fixture
def slurm() -> Iterator[str]:
    """Return the configuration of a Slurm whose daemons listen on loopback."""
    if os.geteuid() != 0 or not all(map(shutil.which, (*SERVERS, "srun", "sinfo"))):
        pytest.skip("needs Slurm and munge, and root to start them")
    folder = Path("/tmp", f"hexloop-slurm-{secrets.token_hex(4)}")  # the paths of sockets must be short
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    (folder / "key").chmod(0o400)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=folder, host=socket.gethostname().partition(".")[0], controller=free_port(), daemon=free_port(),
            processors=len(os.sched_getaffinity(0)),
        )
    )  # fmt: skip
    files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "seed", "log")]
    options = [*files, f"--socket={folder / 'munge.socket'}"]
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    commands = (["munged", "--foreground", "--force", *options], ["slurmctld", "-D"], ["slurmd", "-D"])
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as output:
                server = stack.enter_context(
                    subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                )
            stack.callback(server.terminate)
            time.sleep(0.5)
        until = time.monotonic() + PATIENCE
        while (
            "idle"
            not in subprocess.run(
                ["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True, check=False
            ).stdout
        ):
            assert time.monotonic() < until, [file.read_text()[-2000:] for file in folder.glob("*.out")]
            time.sleep(0.2)
        yield environment["SLURM_CONF"]


@pytest.mark.matrix
@pytest.mark.timeout(3 * LIMIT)
def test_srun(slurm: str, tmp_path: Path) -> None:
    """Two tasks of a job step rendezvous through Slurm's variables alone, and match training in one process."""
    launch = Launch(tmp_path / "launch")
    words = ["srun", "--ntasks", "2", "--overcommit", sys.executable, "train.py"]
    check(launch.end(launch.start(words, 2, SLURM_CONF=slurm)), alone(tmp_path))


@pytest.mark.matrix
@pytest.mark.timeout(3 * LIMIT)
@pytest.mark.parametrize("words", [("mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"), ("mpiexec.hydra",)])
def test_mpi(words: tuple[str, ...], tmp_path: Path) -> None:
    """Two processes of mpirun on one machine, with an explicit port, match training in one process."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    launch = Launch(tmp_path / "launch")
    command = [*words, "-n", "2", sys.executable, "train.py"]
    check(launch.end(launch.start(command, 2, MASTER_PORT=str(free_port()))), alone(tmp_path))
