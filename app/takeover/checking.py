"""The check that a program trains alike with transformers and with hexloop: both runs, and the first difference."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from attrs import define, frozen

from hexloop.app.printing import print_lines
from hexloop.app.takeover.recording import HEXLOOP, TEMPORARY, TRANSFORMERS
from hexloop.app.takeover.scripts import Program
from hexloop.domain.errors import ConfigurationError
from hexloop.domain.evaluation import CLOCK_READINGS
from hexloop.domain.installation import how_to_install

AGREED, DIFFERENT = 0, 1

LONGEST_RUN = timedelta(days=7)
"""How long processes of a launch wait for each other; a launcher ends them all when one dies."""

NOT_COMPARED = (*CLOCK_READINGS, "_time", "time_", "(s/it)", "mem_", "(GiB)", "total_flos")
"""Parts of the names of logged values that measure the machine: readings of the clock and of memory, and estimates."""

EPISODES_PER_SECOND = "eps"
"""What trl's PPOTrainer calls them; as part of a name it may mean something else."""

Record: TypeAlias = dict[str, Any]


@frozen
class Difference:
    """The first difference of two runs: at a step of the program's Trainer of that number, in the value of a name.

    one, other: its value with transformers and with hexloop; None if there is none.
    """

    trainer: int
    step: int
    name: str
    one: object
    other: object

    def __str__(self) -> str:
        where = f"step {self.step}" if self.trainer == 1 else f"step {self.step} of Trainer {self.trainer}"
        return f"at {where}: {self.name} is {_shown(self.one)} with transformers, {_shown(self.other)} with hexloop"


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)


def check(program: Program) -> int:
    """Run a program with both libraries, print whether they agree, and return 0 if they do, else 1.

    In a process of a launch, all processes of the launch run the program together, and the first prints.
    Raises ConfigurationError if the libraries cannot be compared: the program writes elsewhere than into its output
    folder, it uses no Trainer, the launch uses several machines, or there is no such program.
    """
    program.refuse_missing()
    if find_spec(TRANSFORMERS) is None:
        raise ConfigurationError(
            "hexloop run --check needs transformers, which is not installed; run "
            f"{how_to_install('transformers', 'transformers')}."
        )
    launch = Launch.of_environment()
    with launch.shared_folder() as folder:
        runs = []
        for library in (TRANSFORMERS, HEXLOOP):
            if launch.rank == 0:
                print_lines(f"hexloop: running {program.name} with {library}", to=sys.stderr)
            environment = {**_environment(folder), **launch.environment(library)}
            code = subprocess.run(_command(program, folder, library), env=environment, check=False).returncode
            codes = launch.gathered(library, code)
            records = _read(Path(folder, f"{library}.jsonl"))
            _refuse_writes_elsewhere(program, records)
            if any(codes):
                if launch.rank == 0:
                    code = next(filter(None, codes))
                    print_lines(f"hexloop: {program.name} failed with {library} (exit code {code})", to=sys.stderr)
                return DIFFERENT
            runs.append(records)
        return _report(program, *runs) if launch.rank == 0 else AGREED


@define
class Launch:
    """The processes of a launch on one machine, which share a folder and exchange exit codes; or a single process.

    rank, size: of this process, and the number of all. store: what they share; None if there is one process. prefix: of
    its keys.
    """

    rank: int = 0
    size: int = 1
    store: Any = None
    prefix: str = ""

    @classmethod
    def of_environment(cls) -> Launch:
        """Return the launch that torchrun's environment variables describe.

        Raises ConfigurationError if it uses several machines, which share no folder.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        if int(os.environ.get("LOCAL_WORLD_SIZE", size)) != size:
            raise ConfigurationError("hexloop run --check compares runs on one machine; launch it on one.")
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
        serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        store = TCPStore(os.environ["MASTER_ADDR"], port, is_master=serves, wait_for_workers=False)
        return cls(rank, size, store, f"hexloop-check-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")

    @contextmanager
    def shared_folder(self) -> Iterator[str]:
        """Make a folder for all processes, which the first removes when all are done with it."""
        if self.rank > 0:
            yield self.store.get(f"{self.prefix}-folder").decode()
            self.gathered("end", 0)
            return
        with tempfile.TemporaryDirectory(prefix="hexloop-check-") as folder:
            Path(folder, TEMPORARY).mkdir()
            if self.store is not None:
                self.store.set(f"{self.prefix}-folder", folder)
            yield folder
            self.gathered("end", 0)

    def environment(self, library: str) -> dict[str, str]:
        """Return the variables with which the processes of one run meet: at a port of its own."""
        if self.store is None:
            return {}
        key = f"{self.prefix}-{library}-port"
        if self.rank == 0:
            with socket.socket() as listening:
                listening.bind(("", 0))
                self.store.set(key, str(listening.getsockname()[1]))
        return {"MASTER_PORT": self.store.get(key).decode(), "TORCHELASTIC_USE_AGENT_STORE": "False"}

    def gathered(self, moment: str, code: int) -> list[int]:
        """Return the exit codes of all processes at a moment of the check, when all have reached it."""
        if self.store is None:
            return [code]
        self.store.set(f"{self.prefix}-{moment}-{self.rank}", str(code))
        keys = [f"{self.prefix}-{moment}-{rank}" for rank in range(self.size)]
        self.store.wait(keys, LONGEST_RUN)
        return [int(self.store.get(key)) for key in keys]


def _command(program: Program, folder: str, library: str) -> list[str]:
    module = ["-m"] if program.is_module else []
    start = [sys.executable, "-m", "hexloop.app.takeover.recording", folder, library]
    return [*start, *module, program.name, *program.arguments]


def _environment(folder: str) -> dict[str, str]:
    """Return the variables of both runs. The order of Python's sets of texts follows from the seed of their hashes."""
    own = {"TMPDIR": str(Path(folder, TEMPORARY)), "WANDB_MODE": "disabled"}
    return {"PYTHONHASHSEED": "0", **os.environ, **own}


def _read(path: Path) -> list[Record]:
    """Return the records of a run; none if it did not start."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _refuse_writes_elsewhere(program: Program, records: Sequence[Record]) -> None:
    for record in records:
        if record["kind"] == "elsewhere":
            line = f", line {record['line']}" if record["line"] is not None else ""
            raise ConfigurationError(
                f"{program.name} cannot be checked: it writes to {record['path']}{line}, and a second run would "
                "overwrite that; write to training_args.output_dir only, which a check redirects."
            )


def _report(program: Program, ours: Sequence[Record], theirs: Sequence[Record]) -> int:
    """Print whether the records of transformers, `ours`, and of hexloop agree, and return the exit code."""
    one, other = ([record for record in run if record["kind"] not in NOT_COMPARED_KINDS] for run in (ours, theirs))
    if not one and not other:
        raise ConfigurationError(
            f"{program.name} cannot be checked: no Trainer of transformers logged, predicted or trained anything."
        )
    for line in _groups(theirs):
        print_lines(line)
    difference = next(differences(one, other), None)
    if difference is None:
        print_lines(f"hexloop: {program.name} agrees with transformers to the last bit: {_summary(one)}")
        return AGREED
    print_lines(f"hexloop: {program.name} first differs {difference}")
    return DIFFERENT


NOT_COMPARED_KINDS = ("start", "groups")
"""The kinds of records that say what a program does, and are not results."""

USUAL_GROUPS = 2
"""Parameter groups that a Trainer makes by itself."""


def _groups(records: Sequence[Record]) -> Iterator[str]:
    """Yield a line for each parameter group of Trainers that have others than the usual ones."""
    for record in records:
        groups = record["values"] if record["kind"] == "groups" else ()
        for number, group in enumerate(groups if len(groups) > USUAL_GROUPS else ()):
            rate, decay = (group.get(name, "unknown") for name in ("learning_rate", "weight_decay"))
            yield (
                f"hexloop: parameter group {number}: {group['tensors']} tensors, learning rate {rate} at the peak, "
                f"weight decay {decay}"
            )


def differences(one: Sequence[Record], other: Sequence[Record]) -> Iterator[Difference]:
    """Yield the differences between the records of transformers and of hexloop, in the order of the run."""
    for left, right in zip_longest(one, other):
        places = [None if each is None else (each["kind"], each["trainer"], each["step"]) for each in (left, right)]
        if places[0] != places[1]:
            record = left or right
            yield Difference(record["trainer"], record["step"], "what happens", *map(_described, places))
            return
        values, others = left["values"], right["values"]
        for name in [*values, *(name for name in others if name not in values)]:
            if _is_compared(name) and not _equal(values.get(name), others.get(name)):
                yield Difference(left["trainer"], left["step"], name, values.get(name), others.get(name))


def _is_compared(name: str) -> bool:
    return name != EPISODES_PER_SECOND and not any(part in name for part in NOT_COMPARED)


def _described(place: tuple[str, int, int] | None) -> str:
    if place is None:
        return "the end of the run"
    return f"a {place[0]} at step {place[2]}" if place[0] != "weights" else f"the end of training at step {place[2]}"


def _equal(one: object, other: object) -> bool:
    both_nan = all(isinstance(each, float) and math.isnan(each) for each in (one, other))
    return both_nan or one == other


def _summary(records: Sequence[Record]) -> str:
    """Say how much was compared."""
    steps = {(record["trainer"], record["step"]) for record in records if record["step"]}
    values = Counter(
        "weights" if record["kind"] == "weights" else "values"
        for record in records
        for name in record["values"]
        if _is_compared(name)
    )
    return f"{values['values']:,} values at {len(steps):,} steps, and {values['weights']:,} tensors of final weights"
