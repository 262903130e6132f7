"""One library's cost per step in a process. Run as `python -m tests.bench.one_run LIBRARY WORKLOAD CORE`.

Prints wall and CPU microseconds per step: the slope between a short and a long run, after a warm-up run.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings

import torch

from tests.bench.libraries import LIBRARIES, silence
from tests.bench.workloads import WORKLOADS, make


def timed(library: str, workload: str, steps: int) -> tuple[float, float]:
    """Return wall and CPU seconds of a run."""
    model, dataset = make(workload)
    gc.collect()
    wall, processor = time.perf_counter(), time.process_time()
    LIBRARIES[library](model, dataset, steps)
    return time.perf_counter() - wall, time.process_time() - processor


def main(library: str, workload: str, core: str) -> None:
    if core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(core)})
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    lengths = WORKLOADS[workload]
    with silence():
        timed(library, workload, max(2, lengths.short // 4))
        short = timed(library, workload, lengths.short)
        long = timed(library, workload, lengths.long)
    slopes = [1e6 * (more - less) / (lengths.long - lengths.short) for less, more in zip(short, long, strict=True)]
    print(json.dumps(slopes))


if __name__ == "__main__":
    main(*sys.argv[1:])
