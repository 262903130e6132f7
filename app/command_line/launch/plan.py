"""What is to be launched, from the words of the command line, with everything that is wrong told at once."""

from __future__ import annotations

import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from attrs import field, frozen

from hexloop.app.command_line.resuming import AUTO, RESUME, without
from hexloop.domain.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
SCRIPT = ".py"
Value = TypeVar("Value")


@frozen
class Plan:
    """What to start, and where.

    processes: on this machine. nodes: the fewest and the most machines. rendezvous: "host:port"; None on one machine,
    which finds a free port. node_rank: None where the order of machines does not matter. address: by which the others
    reach this one; None for its own name. grace, join_timeout: in seconds.
    """

    program: str
    words: tuple[str, ...] = ()
    processes: int = 1
    nodes: tuple[int, int] = (1, 1)
    node_rank: int | None = None
    rendezvous: str | None = None
    address: str | None = None
    restarts: int = 0
    grace: float = 30.0
    join_timeout: float = 600.0
    log_folder: str | None = None

    def command(self, again: bool) -> list[str]:
        """What follows the interpreter in each worker's command; `again`: it is to go on where others were stopped.

        A recipe then resumes from its newest checkpoint. A script is started as ever: it is to say
        `resume_from_checkpoint="auto"` itself.
        """
        if self.program.endswith(SCRIPT):
            return ["-u", self.program, *self.words]
        words = [*without(self.words, RESUME), "--resume", AUTO] if again else self.words
        return ["-u", "-P", "-m", "hexloop", "train", self.program, *words]

    @property
    def threads(self) -> int:
        """How many threads each process may compute with, so that all of them share the cores."""
        return max(1, cores() // self.processes)


@frozen
class _Reader:
    """Reads values that may be wrong, and keeps what is wrong with them."""

    problems: list[str] = field(factory=list)

    def number(self, option: str, text: str, kind: Callable[[str], Value], least: float, wanted: str) -> Value | None:
        """The value of `text`; None, with a problem, where it is none or less than `least`."""
        try:
            value = kind(text)
            if not least <= float(str(value)) < float("inf"):
                raise ValueError(text)
        except ValueError:
            self.problems.append(f"{option}: You chose {text!r}, but it has to be {wanted}.")
            return None
        return value


def read_plan(options: Namespace) -> Plan:
    """What the options say; warns where the machine has less than they take for granted.

    Raises ConfigurationError with everything that is wrong.
    """
    reader = _Reader()
    processes = _processes(options.processes, reader)
    nodes = _nodes(options.nodes, reader)
    node_rank = _node_rank(options.node_rank, nodes, reader)
    restarts = reader.number("--restarts", options.restarts, int, 0, "a whole number, 0 or more")
    grace = reader.number("--grace", options.grace, float, 0, "a number of seconds, 0 or more")
    join_timeout = reader.number("--join-timeout", options.join_timeout, float, 1, "a number of seconds, 1 or more")
    _check_rendezvous(options.rendezvous, nodes, reader.problems)
    _check_files(options.program, options.log_folder, reader.problems)
    if processes is None or nodes is None or restarts is None or grace is None or join_timeout is None:
        raise ConfigurationError(reader.problems)
    if reader.problems:
        raise ConfigurationError(reader.problems)
    _warn_of_too_many(processes)
    return Plan(
        program=options.program,
        words=tuple(options.words_of_program),
        processes=processes,
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=options.rendezvous,
        address=options.address,
        restarts=restarts,
        grace=grace,
        join_timeout=join_timeout,
        log_folder=options.log_folder,
    )


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _processes(text: str | None, reader: _Reader) -> int | None:
    if text is not None:
        return reader.number("--processes", text, int, 1, "a whole number, 1 or more")
    if gpus := _gpus():
        return gpus
    reader.problems.append("--processes is missing, and there is no GPU to count; say how many, as in --processes 2.")
    return None


def _nodes(text: str, reader: _Reader) -> tuple[int, int] | None:
    fewest, colon, most = text.partition(":")
    wanted = "a whole number, 1 or more, or a range such as 1:4"
    low = reader.number("--nodes", fewest, int, 1, wanted)
    high = reader.number("--nodes", most, int, 1, wanted) if colon and low is not None else low
    if low is None or high is None:
        return None
    if high < low:
        reader.problems.append(f"--nodes: You chose {text!r}, but a range is MIN:MAX; turn it round.")
        return None
    return low, high


def _node_rank(text: str | None, nodes: tuple[int, int] | None, reader: _Reader) -> int | None:
    if text is None:
        return None
    rank = reader.number("--node-rank", text, int, 0, "a whole number, 0 or more")
    if rank is not None and nodes is not None and rank >= nodes[1]:
        reader.problems.append(
            f"--node-rank: You chose {rank}, but of {nodes[1]} nodes the last is {nodes[1] - 1}, as they count from 0."
        )
    return rank


def _check_rendezvous(text: str | None, nodes: tuple[int, int] | None, problems: list[str]) -> None:
    if text is None:
        if nodes is not None and nodes[1] > 1:
            problems.append(
                "--rendezvous is missing: several nodes have to know where to meet; say the same on each of them, "
                "as in --rendezvous node0:29400."
            )
        return
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        problems.append(f"--rendezvous: You chose {text!r}, but it has to be HOST:PORT, as in node0:29400.")


def _check_files(program: str, log_folder: str | None, problems: list[str]) -> None:
    if not Path(program).is_file():
        problems.append(
            f"You chose {program!r}, but there is no such file; name a recipe, or a script that ends in .py."
        )
    if log_folder is not None and Path(log_folder).exists() and not Path(log_folder).is_dir():
        problems.append(f"--log-folder: You chose {log_folder!r}, but that is a file; name a folder.")


def _warn_of_too_many(processes: int) -> None:
    gpus = _gpus()
    have, what = (gpus, "GPUs") if gpus else (cores(), "cores")
    if processes > have:
        warnings.warn(
            f"You chose --processes {processes}, but there are {have} {what}, which they will have to share.",
            stacklevel=2,
        )


def words_of(command: Sequence[str]) -> list[str]:
    """The words of a command in the spelling of the agent, which would put values for what begins with a dollar."""
    return [word.replace("$", "$$") for word in command]
