"""Import times. Run as `python -m tests.bench.imports [ROUNDS]`; prints a table.

Each figure is the median over new, interleaved processes. The first round only compiles bytecode.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from statistics import median

STATEMENTS = ("import hexloop", "import torch", "from hexloop import Trainer", "from transformers import Trainer")
TIMED = """
import time
wall, processor = time.perf_counter(), time.process_time()
{statement}
print(time.perf_counter() - wall, time.process_time() - processor)
"""


def seconds(statement: str, bytecode: str) -> tuple[float, float]:
    """Return wall and CPU time of a statement in a new process with cached bytecode."""
    program = TIMED.format(statement=statement)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": bytecode}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    wall, processor = map(float, done.stdout.split()[-2:])
    return wall, processor


def main(rounds: int = 7) -> None:
    found: dict[str, list[tuple[float, float]]] = {statement: [] for statement in STATEMENTS}
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(rounds + 1):
            for statement in STATEMENTS:
                time = seconds(statement, bytecode)
                if turn > 0:
                    found[statement].append(time)
    print(f"{'':<34}{'wall s':>9}{'processor s':>13}")
    for statement, times in found.items():
        wall, processor = (median(each) for each in zip(*times, strict=True))
        print(f"{statement:<34}{wall:>9.3f}{processor:>13.3f}")
    pairs = zip(found["from hexloop import Trainer"], found["import torch"], strict=True)
    ratios = [[mine / torchs for mine, torchs in zip(*pair, strict=True)] for pair in pairs]
    wall, processor = (median(each) for each in zip(*ratios, strict=True))
    print(f"hexloop's Trainer over torch: {wall:.2f} by the wall, {processor:.2f} by the processor; goal: at most 1.2")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
