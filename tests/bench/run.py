"""Runs every benchmark in turn, each in new processes. Run as `python tests/bench/run.py [PART ...]`.

Figures of a busy machine mean little. Tests do not assert times.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PARTS = {
    "imports": "tests.bench.imports",
    "first_batch": "tests.bench.first_batch",
    "order": "tests.bench.order",
    "packing": "tests.bench.packing",
    "resume_cost": "tests.bench.resume_cost",
    "domain_loop": "tests.bench.domain_loop",
    "host_cost": "tests.bench.host_cost",
    "two_processes": "tests.bench.two_processes",
    "save_stall": "tests.bench.save_stall",
    "save_often": "tests.bench.save_often",
    "adapters": "tests.bench.adapters",
    "evaluation": "tests.bench.evaluation",
    "chunked_loss": "tests.bench.chunked_loss",
    "search": "tests.bench.search",
}


def main(*parts: str) -> int:
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        print(f"There is no benchmark {', '.join(unknown)}; there are {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    failed = []
    for part in parts or PARTS:
        print(f"\n== {part}", flush=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if subprocess.run([sys.executable, "-m", PARTS[part]], check=False, cwd=ROOT, env=environment).returncode:
            failed.append(part)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
