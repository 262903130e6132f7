"""What trackers cost a run: a slow, failing and hanging one, and three real ones, beside transformers.

`python -m tests.bench.trackers faults` compares a run of 2,000 steps with a tracker that sleeps a second in every call,
raises in every call, or hangs for ever, with one without a tracker. `python -m tests.bench.trackers real` does the same
with TensorBoard, wandb offline and MLflow at once, logging every 10 steps, and with transformers' Trainer; it needs
their packages. Each figure is the time from the first step to the last, of a new process; rounds are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
REAL = ("tensorboard", "wandb", "mlflow")
CLOCKS = ("wall", "processor", "loop")
"""The time that passed, the processor time of the process, and that of the thread of the loop."""

FAULTS = ("", "sleep 1", "raise", "hang")


def run_steps(library: str, workload: str, steps: int, trackers: Sequence[str]) -> dict[str, float]:
    """Train, and return the seconds from the first step to the last by each clock, and those of the end."""
    import torch

    from tests.bench.libraries import trainer_arguments
    from tests.bench.workloads import BATCH, WORKLOADS, collate

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if library == "transformers":
        import transformers as chosen
    else:
        import hexloop as chosen  # type: ignore[no-redef]
    times: dict[str, tuple[float, float, float]] = {}

    class Watch(chosen.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            now = time.perf_counter(), time.process_time(), time.thread_time()
            if state.global_step == steps // 10:
                times["first"] = now
            elif state.global_step == steps:
                times["last"] = now

    made = WORKLOADS[workload]
    with tempfile.TemporaryDirectory() as folder:
        given = {**trainer_arguments(folder, steps), "report_to": list(trackers) or "none", "logging_steps": 10}
        if library == "hexloop":
            given["logger_grace"] = 2.0
        trainer = chosen.Trainer(
            made.model(), chosen.TrainingArguments(**given), data_collator=collate,
            train_dataset=made.dataset((steps + 1) * BATCH), callbacks=[Watch()],
        )  # fmt: skip
        trainer.train()
    spent = [last - first for first, last in zip(times["first"], times["last"], strict=True)]
    return {**dict(zip(CLOCKS, spent, strict=True)), "end": time.perf_counter() - times["last"][0]}


def measure(folder: str, library: str, workload: str, steps: int, trackers: Sequence[str], fault: str) -> Any:
    """Return the figures of a new process."""
    from tests.end_to_end.trackers.stand_in import install

    packages = Path(folder, "packages")
    if not packages.exists():
        install(packages)
    paths = [str(ROOT / "src"), str(ROOT), str(packages), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "STAND_IN_FAULT": fault,
        "STAND_IN_FILE": str(Path(folder, "kept.jsonl")), "WANDB_MODE": "offline", "WANDB_SILENT": "true",
        "WANDB_DIR": folder, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.bench.trackers", "one", library, workload, str(steps), ",".join(trackers)]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{library} with {trackers} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compare(cases: dict[str, tuple[str, Sequence[str], str]], workload: str, steps: int, rounds: int) -> None:
    """Measure, and print a table. cases: library, trackers and fault by name; the first of a library is without any."""
    found: dict[str, list[Any]] = {name: [] for name in cases}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            names = list(cases)[turn % len(cases) :] + list(cases)[: turn % len(cases)]
            for name in names:
                library, trackers, fault = cases[name]
                found[name].append(measure(folder, library, workload, steps, trackers, fault))
            print(f"{workload}: round {turn + 1} of {rounds}", file=sys.stderr)
    print(f"\n{workload}, {steps:,} steps, {rounds} rounds")
    print(f"{'':<34}{'us a step':>10}{'ratio':>8}{'CPU':>8}{'loop':>8}{'end, s':>8}")
    for name, (library, _, _) in cases.items():
        base = next(found[each] for each, (other, trackers, _) in cases.items() if other == library and not trackers)
        own, counted = found[name], steps - steps // 10
        ratios = {
            clock: median(one[clock] / other[clock] for one, other in zip(own, base, strict=True)) for clock in CLOCKS
        }
        micro, end = 1e6 * median(one["wall"] for one in own) / counted, median(one["end"] for one in own)
        shown = "".join(f"{ratios[clock]:>8.3f}" for clock in CLOCKS)
        print(f"{name:<34}{micro:>10.1f}{shown}{end:>8.2f}")


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        library, workload, steps, trackers = sys.argv[2:]
        print(json.dumps(run_steps(library, workload, int(steps), [name for name in trackers.split(",") if name])))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["faults", "real"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--workload", default="TinyMLP", choices=["TinyMLP", "GPT"])
    parser.add_argument("--libraries", nargs="+", default=["hexloop", "transformers"])
    options = parser.parse_args()
    cases: dict[str, tuple[str, Sequence[str], str]]
    if options.what == "faults":
        cases = {f"hexloop, {fault or 'none'}": ("hexloop", ["standin"] if fault else [], fault) for fault in FAULTS}
    else:
        cases = {
            f"{library}, {name}": (library, trackers, "")
            for library in options.libraries
            for name, trackers in (("none", ()), ("all three", REAL))
        }
    compare(cases, options.workload, options.steps, options.rounds)


if __name__ == "__main__":
    main()
