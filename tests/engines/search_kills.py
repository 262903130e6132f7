"""Kills searches at random times, and compares the trials, values and best trial with those of undisturbed searches.

`python -m tests.engines.search_kills --kills 30` prints the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from hexloop.domain.folders import Folder
from hexloop.domain.search.records import read_search
from tests.engines.processes import CONTEXT

TRIALS = 12

STATES: Counter[str] = Counter()
"""What the record ended with at each kill."""


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("rate", 1e-4, 0.5, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("batch", [2, 4]),
    }


def live(folder: str, seed: int) -> None:
    """Start or resume the search in `folder`/run, and write its best trial to `folder`/best.json.

    Warnings are errors: nothing that a killed process leaves may cause one.
    """
    errors = os.open(f"{folder}/errors.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(errors, 2)
    import optuna
    import torch

    from tests.end_to_end.small.models import net, rows
    from tests.end_to_end.small.trainers import small_trainer

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    trainer = small_trainer(
        Path(folder, "run"),
        parts={"model_init": lambda: net(dropout=0.1), "eval_dataset": rows(8, seed=1), "train_dataset": rows(24)},
        max_steps=24,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        save_total_limit=2,
        seed=seed,
    )
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)
    best = trainer.hyperparameter_search(
        space, n_trials=TRIALS, backend="optuna", sampler=sampler, pruner=pruner, resume="auto"
    )
    Path(folder, "best.json").write_text(json.dumps(best[:3]))


def started(folder: Path, seed: int) -> Any:
    folder.mkdir(exist_ok=True)
    process = CONTEXT.Process(target=live, args=(str(folder), seed))
    process.start()
    return process


def finish(folder: Path, seed: int) -> None:
    """Search to the end."""
    process = started(folder, seed)
    process.join(280)
    assert process.exitcode == 0, (folder / "errors.txt").read_text()


def lines_of(folder: Path) -> list[str]:
    path = folder / "run" / "search.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def end(folder: Path) -> tuple[Any, ...]:
    """Return everything that a search found, clock readings aside, and where the best trial's checkpoint is."""
    record = read_search(Folder(str(folder / "run")))
    assert record is not None
    trials = [
        (each.number, each.name, each.drawn, each.parameters, each.reports, each.state, each.values, each.checkpoint)
        for each in record.trials.values()
    ]
    marks = sorted(str(each.relative_to(folder)) for each in folder.glob("run/run-*/checkpoint-*/protected"))
    return trials, json.loads((folder / "best.json").read_text()), record.sampler, marks


def kill_once(folder: Path, seed: int, moments: random.Random) -> bool:
    """Start the search and kill it at random; return whether the kill came before its end."""
    process, before = started(folder, seed), len(lines_of(folder))
    wanted = before + moments.choice((0, 1, 1, 2, 3, 5, 8))
    until = time.monotonic() + 280
    while process.is_alive() and len(lines_of(folder)) < max(wanted, 1):
        assert time.monotonic() < until
        time.sleep(0.001)
    time.sleep(moments.random() * 0.08)
    if not process.is_alive():
        process.join()
        assert process.exitcode == 0, (folder / "errors.txt").read_text()
        return False
    process.kill()
    process.join()
    found = lines_of(folder)
    STATES[json.loads(found[-1])["kind"] if found and found[-1].endswith("}") else "half a line or none"] += 1
    return True


def kill_searches(folder: Path, kills: int, each: int, seed: int) -> int:
    """Kill searches `kills` times in all, each up to `each` times; return how many searches that were.

    Raises AssertionError if one of them found something else than an undisturbed one.
    """
    done, searches = 0, 0
    while done < kills:
        seed, searches = seed + 1, searches + 1
        moments = random.Random(seed)
        whole, killed = folder / f"whole-{seed}", folder / f"killed-{seed}"
        finish(whole, seed)
        last = min(kills, done + each)
        while done < last and kill_once(killed, seed, moments):
            done += 1
        finish(killed, seed)
        expected, found = end(whole), end(killed)
        assert found == expected, (found, expected)
        shutil.rmtree(whole)
        shutil.rmtree(killed)
    return searches


def main() -> None:
    """Kill as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--each", type=int, default=10, help="how often the same search is killed at most")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="search-kills-") as folder:
        searches = kill_searches(Path(folder), options.kills, options.each, options.seed)
    at = ", ".join(f"{kind} {count}" for kind, count in STATES.most_common())
    print(f"{options.kills} kills of {searches} searches of {TRIALS} trials; the record ended with: {at}.")


if __name__ == "__main__":
    main()
