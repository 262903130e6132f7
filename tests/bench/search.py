"""The overhead of a trial over a plain run of the same arguments, and the memory of a search of many trials.

`python -m tests.bench.search --trials 1000` prints both. The model is a regression of 4 features, a trial 4 steps.
"""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hexloop import Trainer
from hexloop.adapters.search import SearchOptions
from hexloop.app.assembly import searches
from hexloop.testing import ScriptedSearch
from tests.end_to_end.small.models import net, rows
from tests.end_to_end.small.trainers import small_trainer

STEPS = 4


def trainer_in(folder: Path, **given: Any) -> Trainer:
    parts = {"model_init": lambda: net(), "train_dataset": rows(16), "eval_dataset": rows(8, seed=1)}  # noqa: PLW0108
    found: Trainer = small_trainer(
        folder, parts=parts, **{"max_steps": STEPS, "eval_strategy": "steps", "eval_steps": 2, **given}
    )
    return found


def scripted(parameters: list[dict[str, Any]]) -> None:
    """Let backend="scripted" propose these parameters."""

    def make(_options: SearchOptions) -> ScriptedSearch:
        return ScriptedSearch(parameters)

    searches.find_plugin = lambda port, name: make if name == "scripted" else None  # type: ignore[attr-defined]


def seconds_of_runs(folder: Path, runs: int) -> float:
    """Return the median seconds of a run of a Trainer, which makes a new model each time."""
    trainer = trainer_in(folder)
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        trainer.train()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def resident() -> float:
    """Return the resident memory in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def search_of(folder: Path, trials: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each trial of a search, with all that is between two of them, and the memory after it."""
    ends, memory = [time.perf_counter()], []
    trainer = trainer_in(folder)
    release = trainer._forget_run

    def note() -> None:
        release()
        ends.append(time.perf_counter())
        if len(ends) % 50 == 0:
            memory.append(resident())

    trainer._forget_run = note  # type: ignore[method-assign]
    scripted([{"seed": number} for number in range(trials)])
    trainer.hyperparameter_search(n_trials=trials, backend="scripted")
    return [later - earlier for earlier, later in pairwise(ends)], memory


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds_of_runs(Path(folder, "warm"), 5)
        plain = seconds_of_runs(Path(folder, "plain"), 50)
        trials, memory = search_of(Path(folder, "search"), options.trials)
    trial = statistics.median(trials)
    print(
        f"a run of {STEPS} steps: {1e3 * plain:.1f} ms; a trial: {1e3 * trial:.1f} ms, {1e3 * (trial - plain):.1f} more"
    )
    if len(memory) > 3:
        print(f"memory after each 50 trials, in MB: {', '.join(f'{each:.1f}' for each in memory)}")


if __name__ == "__main__":
    main()
