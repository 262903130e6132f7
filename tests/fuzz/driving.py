"""Driving a target for some time: with cases that coverage chose, if atheris is installed, or else with random ones."""

from __future__ import annotations

import json
import os
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from random import Random

from tests.fuzz.processes import LARGEST, Counts, RunCase, run_all, supervise
from tests.fuzz.targets import Target

LONGEST = 1 << 13
"""Bytes of a case that coverage chooses, or twice those of the longest seed."""


def fuzz(target: Target, seconds: float, seed: int, guided: bool = True) -> Counts:
    """Run random cases of a target for some seconds, or less if a process cannot be made, and return what came of it.

    guided: use atheris if it is there.
    """
    counts, deadline = Counts(), time.monotonic() + seconds
    seeds, number = target.seeds(), 0
    with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as kept:
        for index, data in enumerate(seeds):
            Path(kept, f"seed-{index}").write_bytes(data)
        while time.monotonic() < deadline:
            number += 1
            is_guided = guided and find_spec("atheris") is not None and number % 4 != 0
            drive = partial(_guided if is_guided else _random, target, seeds, f"{seed}-{number}", Path(kept), deadline)
            supervise(target.name, target.run, drive, deadline, counts)
    return counts


def _random(target: Target, seeds: list[bytes], seed: str, kept: Path, deadline: float, run: RunCase) -> None:
    """Run cases that are random changes of seeds, of cases that coverage chose, and of each other."""
    random = Random(seed)
    cases = [*seeds, *(path.read_bytes() for path in sorted(kept.iterdir())[:500] if path.stat().st_size <= LARGEST)]
    for _ in range(target.cases_per_process):
        if time.monotonic() > deadline:
            return
        made = target.mutate(random.choice(cases), random, cases)
        run(made)
        if random.random() < 0.1:
            cases.append(made)
            del cases[len(seeds) + 600 :]


def _guided(target: Target, seeds: list[bytes], seed: str, kept: Path, deadline: float, run: RunCase) -> None:
    """Let atheris choose the cases; it keeps those that reach new code, and ends this process."""
    import atheris

    def mutated(data: bytes, longest: int, number: int) -> bytes:
        random = Random(number)
        if not target.structured and random.random() < 0.5:
            return bytes(atheris.Mutate(data, longest))
        return target.mutate(bytes(data), random, seeds)[:longest]

    left = max(1, round(min(deadline - time.monotonic(), 60.0)))
    options = {
        "max_total_time": left,
        "runs": 20 * target.cases_per_process,
        "max_len": max(LONGEST, 2 * max(map(len, seeds))),
        "seed": Random(seed).getrandbits(31),
        "artifact_prefix": f"{kept}-",
        "timeout": 100_000,
        "rss_limit_mb": 0,
        "verbosity": 0,
        **{f"handle_{name}": 0 for name in ("segv", "abrt", "bus", "ill", "fpe", "int", "term")},
    }
    os.chdir(tempfile.gettempdir())
    atheris.Setup(
        ["fuzz", *(f"-{name}={value}" for name, value in options.items()), str(kept)], run, custom_mutator=mutated
    )
    atheris.Fuzz()


def replay(target: Target) -> Counts:
    """Run the cases of the corpus of a target."""
    return run_all(target.name, target.run, target.seeds())


def report(target: Target, counts: Counts, seconds: float) -> str:
    """Return a line about a target."""
    rate = counts.cases / seconds if seconds else 0.0
    more = f" ({counts.repeated} more of the same)" if counts.repeated else ""
    return f"{target.name:16} {counts.cases:>9} cases {rate:>8.0f}/s {len(counts.findings):>4} findings{more}"


def save(counts: Counts, folder: Path) -> list[str]:
    """Write the findings to a folder, and return a line with how to repeat each."""
    lines = []
    for key, finding in counts.findings.items():
        path = folder / finding.target / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(finding.data)
        Path(f"{path}.json").write_text(json.dumps({"kind": finding.kind, "detail": finding.detail}, indent=2) + "\n")
        lines += [f"  {finding.kind}: {finding.detail}", f"    python -m tests.fuzz --target {finding.target} {path}"]
    return lines
