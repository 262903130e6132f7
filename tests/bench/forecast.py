"""The forecast of each shipped recipe beside what then happens.

    python tests/bench/forecast.py [RECIPE ...] [--steps N] [--whole]

A recipe is forecast and then trained, each in a process of its own. What happens to memory is what torch's CPU
allocator reports to its profiler over the first ten steps, with the weights; the size of a checkpoint and the time are
those of a run of N steps (by default 40) or, with `--whole`, of the whole run. Prints a table in
Markdown, with the relative error of each forecast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
RECIPES = ("digits", "classifier", "reverse_digits", "language_model", "assistant_base", "assistant")


def made(recipe: str, folder: str, **arguments: Any) -> Any:
    """Return the Trainer of a recipe, with another output folder and without callbacks."""
    from hexloop.app.recipe import read_recipe

    found = read_recipe(EXAMPLES / f"{recipe}.yaml", ("model", "train_dataset"))
    found.parts.pop("callbacks", None)  # type: ignore[attr-defined]  # they are not part of the forecast
    found.arguments.assign(output_dir=folder, report_to="none", disable_tqdm=True, **arguments)
    return found.make_trainer(("train_dataset", "eval_dataset"))


def forecast(recipe: str, measured: int, steps: int | None = None) -> dict[str, Any]:
    """Return the forecast of a recipe as a document. steps: the length of the run, None for the whole."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        found = made(recipe, folder, **({} if steps is None else {"max_steps": steps})).forecast(measured)
        return {**found.document(), "took": time.perf_counter() - started}


def memory(recipe: str, steps: int) -> dict[str, Any]:
    """Return the peak of the CPU allocator over the first steps, and what the weights take."""
    from torch.profiler import ProfilerActivity, profile

    with tempfile.TemporaryDirectory() as folder:
        quiet = {"save_strategy": "no", "eval_strategy": "no", "logging_strategy": "no", "eval_on_start": False}
        trainer = made(recipe, folder, max_steps=steps, load_best_model_at_end=False, **quiet)
        weights = sum(each.nbytes for each in trainer.model.parameters())
        weights += sum(each.nbytes for each in trainer.model.buffers())
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            trainer.train()
        used = peak = 0
        for event in found.profiler.kineto_results.events():
            if event.name() == "[memory]":
                used += event.nbytes()
                peak = max(peak, used)
        return {"peak": weights + peak, "weights": weights}


def run(recipe: str, steps: int | None) -> dict[str, Any]:
    """Train a recipe and return its time, its steps, its evaluations and the size of its last checkpoint."""
    from hexloop.domain.events import CheckpointPublished, Evaluated, StepEnded

    with tempfile.TemporaryDirectory() as folder:
        arguments = {} if steps is None else {"max_steps": steps}
        trainer = made(recipe, folder, **arguments)
        counts = dict.fromkeys((StepEnded, Evaluated, CheckpointPublished), 0)
        started = time.perf_counter()
        for event in trainer.stream():
            if type(event) in counts:
                counts[type(event)] += 1
        seconds = time.perf_counter() - started
        sizes = [
            sum(each.stat().st_size for each in found.rglob("*") if each.is_file())
            for found in Path(folder).glob("checkpoint-*")
        ]
        return {
            "seconds": seconds,
            "steps": counts[StepEnded],
            "evaluations": counts[Evaluated],
            "saves": counts[CheckpointPublished],
            "checkpoint": max(sizes, default=0),
        }


def prepare(recipe: str) -> dict[str, Any]:
    """Train the model that the recipe `assistant` fine-tunes, for two steps, in the working folder."""
    if recipe == "assistant":
        made("assistant_base", "runs/assistant_base", max_steps=2, eval_strategy="no", save_strategy="steps").train()
    return {}


def in_process(folder: str, what: str, *values: str) -> dict[str, Any]:
    """Return what a function of this file returns, in a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), "--do", what, *values]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    document: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return document


def row(recipe: str, steps: int, whole: bool, measured: int) -> list[str]:
    """Return a row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        in_process(folder, "prepare", recipe)
        length = [] if whole else [str(steps)]
        found = in_process(folder, "forecast", recipe, str(measured), *length)
        used = in_process(folder, "memory", recipe, str(min(steps, 10)))
        happened = in_process(folder, "run", recipe, *length)
    counts = {name: happened[name] for name in ("steps", "evaluations", "saves")}
    if counts != found["counts"]:
        print(f"{recipe}: forecast {found['counts']}, happened {counts}", file=sys.stderr)
    peak = found["step_memory"]["peak"]
    return [
        recipe,
        *beside(peak / 1e6, used["peak"] / 1e6, "MB"),
        *beside(found["checkpoint"] / 1e6, happened["checkpoint"] / 1e6, "MB"),
        *beside(found["seconds"], happened["seconds"], "s"),
        f"{found['counts']['steps']:,}",
        f"{found['took']:.1f} s",
    ]


def beside(one: float, other: float, unit: str) -> list[str]:
    """Return the forecast, what happened and the error of the forecast."""
    error = f"{(one / other - 1) * 100:+.1f} %" if other else "-"
    return [f"{one:.3g} {unit}", f"{other:.3g} {unit}", error]


HEADINGS = [
    "recipe", "peak", "happened", "error", "checkpoint", "happened", "error", "time", "happened", "error", "steps",
    "forecast took",
]  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--measured", type=int, default=20)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--do", choices=["prepare", "forecast", "memory", "run"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.do:
        recipe, *numbers = options.recipes
        function: Any = {"prepare": prepare, "forecast": forecast, "memory": memory, "run": run}[options.do]
        values: list[Any] = list(map(int, numbers)) or ([None] if options.do == "run" else [])
        print(json.dumps(function(recipe, *values)))
        return
    print(f"| {' | '.join(HEADINGS)} |\n|{' --- |' * len(HEADINGS)}", flush=True)
    for recipe in options.recipes:
        print(f"| {' | '.join(row(recipe, options.steps, options.whole, options.measured))} |", flush=True)


if __name__ == "__main__":
    main()
