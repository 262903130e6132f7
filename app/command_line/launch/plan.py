"""The plan of a launch, parsed from the options, with all problems reported at once."""

from __future__ import annotations

import math
import os
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from attrs import frozen

from hexloop.app.command_line.launch.function import has_function
from hexloop.app.command_line.options import AUTO, RESUME, without_options
from hexloop.app.devices import count_accelerators, missing_launched
from hexloop.domain.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
SCRIPT = ".py"
CALLER = "hexloop.app.command_line.launch.function"
"""The module that calls the function of a script that is made for transformers' xla_spawn."""

RUN = "run"
"""The program that stands for the command `hexloop run`, unless there is a recipe of that name."""
Value = TypeVar("Value", int, float)


@frozen
class LaunchPlan:
    """What to start, and where.

    arguments: those of the program. processes: the number on this machine. nodes: the minimum and maximum number of
    machines. rendezvous: "host:port"; None for a single machine, which uses a free port. node_rank: None if the order
    of machines does not matter. address: the address of this machine for the others; None for its host name. grace,
    join_timeout: in seconds. on_tpu: whether each process has a device of XLA.
    """

    program: str
    arguments: tuple[str, ...] = ()
    processes: int = 1
    nodes: tuple[int, int] = (1, 1)
    node_rank: int | None = None
    rendezvous: str | None = None
    address: str | None = None
    restarts: int = 0
    grace: float = 30.0
    join_timeout: float = 600.0
    log_folder: str | None = None
    on_tpu: bool = False

    def command(self, again: bool) -> list[str]:
        """Return a worker's command without the interpreter. again: whether it is a restart.

        A restarted recipe resumes from its newest checkpoint. A script is always started the same way and should use
        `resume_from_checkpoint="auto"` itself.
        """
        if self.program.endswith(SCRIPT):
            if self.on_tpu and has_function(self.program):
                return ["-u", "-P", "-m", CALLER, str(self.processes), self.program, *self.arguments]
            return ["-u", self.program, *self.arguments]
        if _is_run(self.program):
            return ["-u", "-P", "-m", "hexloop", RUN, *self.arguments]
        arguments = [*without_options(self.arguments, RESUME), "--resume", AUTO] if again else self.arguments
        return ["-u", "-P", "-m", "hexloop", "train", self.program, *arguments]

    @property
    def threads(self) -> int:
        """The number of compute threads of each process, so that all processes share the cores."""
        return max(1, cores() // self.processes)


def read_plan(options: Namespace) -> LaunchPlan:
    """Parse the options. Warns if the machine has fewer GPUs or cores than processes.

    Raises ConfigurationError with all problems.
    """
    problems: list[str] = []
    nodes = _nodes(options.nodes, problems)
    plan = LaunchPlan(
        program=options.program,
        arguments=tuple(options.program_arguments),
        processes=_processes(options.processes, options.tpu, problems),
        nodes=nodes or (1, 1),
        node_rank=_node_rank(options.node_rank, nodes, problems),
        rendezvous=options.rendezvous,
        address=options.address,
        restarts=_number("--restarts", options.restarts, int, 0, "a whole number, 0 or more", problems),
        grace=_number("--grace", options.grace, float, 0.0, "a number of seconds, 0 or more", problems),
        join_timeout=_number(
            "--join-timeout", options.join_timeout, float, 1.0, "a number of seconds, 1 or more", problems
        ),
        log_folder=options.log_folder,
        on_tpu=options.tpu is not None,
    )
    _check_rendezvous(plan.rendezvous, plan.nodes, problems)
    _check_files(plan.program, plan.log_folder, problems)
    if problems:
        raise ConfigurationError(problems)
    if plan.on_tpu:
        return plan
    gpus = count_accelerators()
    have, what = (gpus, "GPUs") if gpus else (cores(), "cores")
    if plan.processes > have:
        warnings.warn(
            f"You chose --processes {plan.processes}, but there are only {have} {what}, which the processes share.",
            stacklevel=2,
        )
    return plan


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _number(
    option: str, text: str, kind: Callable[[str], Value], least: Value, wanted: str, problems: list[str]
) -> Value:
    """Return the value of `text`; `least`, with a problem added, if it is invalid or less than that."""
    try:
        value = kind(text)
        if least <= value < math.inf:
            return value
    except ValueError:
        pass
    problems.append(f"{option}: You chose {text!r}, but it must be {wanted}.")
    return least


def _processes(text: str | None, tpu: str | None, problems: list[str]) -> int:
    if tpu is not None:
        if text is not None:
            problems.append(
                f"--processes: You chose {text!r} and --tpu {tpu!r}, which starts a process for each device; leave one "
                "of them out."
            )
        if (missing := missing_launched("tpu")) is not None:
            problems.append(f"--tpu: You chose {tpu!r}, but {missing}.")
        return _number("--tpu", tpu, int, 1, "a whole number, 1 or more", problems)
    if text is not None:
        return _number("--processes", text, int, 1, "a whole number, 1 or more", problems)
    gpus = count_accelerators()
    if not gpus:
        problems.append("--processes is missing, and there is no GPU to count; set it, as in --processes 2.")
    return gpus


def _nodes(text: str, problems: list[str]) -> tuple[int, int] | None:
    fewest, colon, most = text.partition(":")
    found, wanted = len(problems), "a whole number, 1 or more, or a range such as 1:4"
    low = _number("--nodes", fewest, int, 1, wanted, problems)
    high = _number("--nodes", most, int, 1, wanted, problems) if colon else low
    if high < low and len(problems) == found:
        problems.append(f"--nodes: You chose {text!r}, but a range is MIN:MAX; swap the two numbers.")
    return (low, high) if len(problems) == found else None


def _node_rank(text: str | None, nodes: tuple[int, int] | None, problems: list[str]) -> int | None:
    if text is None:
        return None
    rank = _number("--node-rank", text, int, 0, "a whole number, 0 or more", problems)
    if nodes is not None and rank >= nodes[1]:
        problems.append(
            f"--node-rank: You chose {rank}, but node ranks start at 0, so the last of {nodes[1]} is {nodes[1] - 1}."
        )
    return rank


def _check_rendezvous(text: str | None, nodes: tuple[int, int], problems: list[str]) -> None:
    if text is None:
        if nodes[1] > 1:
            problems.append(
                "--rendezvous is missing, and several nodes need it to connect; set the same value on each of them, "
                "as in --rendezvous node0:29400."
            )
        return
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        problems.append(f"--rendezvous: You chose {text!r}, but it must be HOST:PORT, as in node0:29400.")


def _check_files(program: str, log_folder: str | None, problems: list[str]) -> None:
    if not Path(program).is_file() and not _is_run(program):
        problems.append(
            f"You chose {program!r}, but there is no such file; name a recipe, or a script that ends in .py."
        )
    if log_folder is not None and Path(log_folder).exists() and not Path(log_folder).is_dir():
        problems.append(f"--log-folder: You chose {log_folder!r}, but that is a file; name a folder.")


def _is_run(program: str) -> bool:
    return program == RUN and not Path(program).is_file()


def escaped(command: Sequence[str]) -> list[str]:
    """Escape a command's arguments for torch's agent, which substitutes variables after a dollar sign."""
    return [argument.replace("$", "$$") for argument in command]
