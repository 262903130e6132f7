"""Resealed mutations of a good checkpoint: `python -m tests.fuzz.resealed --cases 1000` prints what came of them.

Each is refused with an error of hexloop, or trains. What is printed is JSON: how many were refused, how many trained,
how many of these for all the steps asked for, and the findings.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import struct
import sys
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")

CASES_PER_PROCESS = 20

_COUNTS = struct.Struct("<QQQ")


def main() -> int:
    """Run the cases, and print the counts; return 1 if there are findings."""
    parser = argparse.ArgumentParser("python -m tests.fuzz.resealed", description=__doc__)
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    from tests.fuzz.doors import STEPS, resumed
    from tests.fuzz.everything import TARGETS
    from tests.fuzz.good_folders import KINDS
    from tests.fuzz.processes import run_all

    target, random = TARGETS["resume"], Random(options.seed)
    seeds = target.seeds()
    cases = [target.mutate(b"[]", random, seeds) for _ in range(options.cases)]
    unchanged = [json.dumps([{"checkpoint": kind}]).encode() for kind in KINDS]
    shared = mmap.mmap(-1, _COUNTS.size)

    def run(data: bytes) -> None:
        steps = resumed(data)
        refused, trained, fully = _COUNTS.unpack_from(shared)
        is_trained = steps is not None
        _COUNTS.pack_into(shared, 0, refused + (not is_trained), trained + is_trained, fully + (steps == STEPS))

    findings = []
    run_all("resume", run, unchanged)
    if _COUNTS.unpack_from(shared) != (0, len(unchanged), len(unchanged)):
        print(f"A checkpoint without changes does not train: {_COUNTS.unpack_from(shared)}.", file=sys.stderr)
        return 2
    _COUNTS.pack_into(shared, 0, 0, 0, 0)
    for start in range(0, len(cases), CASES_PER_PROCESS):
        counts = run_all("resume", run, cases[start : start + CASES_PER_PROCESS])
        findings += [[each.kind, each.detail, each.data.decode()] for each in counts.findings.values()]
    refused, trained, fully = _COUNTS.unpack_from(shared)
    print(json.dumps({"refused": refused, "trained": trained, "all_steps": fully, "findings": findings}, indent=2))
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
