"""`hexloop train --dry-run` and `hexloop run --dry-run`: what a run will need, without training it."""

from __future__ import annotations

import sys
import tempfile
from argparse import Namespace
from contextlib import ExitStack
from typing import Any

from attrs import evolve

import hexloop
from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_text
from hexloop.app.recipe import Recipe
from hexloop.app.takeover import takeover
from hexloop.app.takeover.replacing import call_before
from hexloop.app.takeover.scripts import Program
from hexloop.domain.forecast import Forecast

PRIVATE = {"report_to": "none", "push_to_hub": False}
"""Arguments with which a Trainer is made that only forecasts."""


def dry_run(recipe: Recipe, options: Namespace) -> ExitCode:
    """Print the forecast of a recipe's run. Return FAILED if it warns of something."""
    folder = str(recipe.arguments.output_dir)
    with tempfile.TemporaryDirectory(prefix="hexloop-forecast-") as elsewhere:
        recipe.arguments.assign(output_dir=elsewhere, **PRIVATE)
        parts = {name: each for name, each in recipe.parts.items() if name != "callbacks"}  # which are not called
        trainer = evolve(recipe, parts=parts).make_trainer(("train_dataset", "eval_dataset"))
        trainer.args.output_dir = folder  # whose disk the checkpoints would be on
        forecast = trainer.forecast(options.measure)
        if trainer.is_world_process_zero():
            _print(forecast)
    return _code(forecast)


def dry_run_program(program: Program, steps: int, reproduce: str | None) -> int:
    """Run a program up to its first `train()`, and print the forecast of that run instead of training.

    Return FAILED if the forecast warns of something, or if the program ended without training.
    """
    found: list[Forecast] = []

    def forecast_and_end(trainer: Any, *_: Any, **__: Any) -> None:
        found.append(hexloop.Trainer.forecast(trainer, steps))
        if trainer.is_world_process_zero():
            _print(found[0])
        raise SystemExit(_code(found[0]))

    with ExitStack() as undo:
        elsewhere = undo.enter_context(tempfile.TemporaryDirectory(prefix="hexloop-forecast-"))

        def make_private(arguments: Any) -> None:
            arguments.output_dir, arguments.report_to, arguments.push_to_hub = elsewhere, "none", False

        undo.enter_context(takeover(reproduce=reproduce))
        undo.callback(call_before(hexloop.TrainingArguments, "__post_init__", make_private))
        train = hexloop.Trainer.train
        hexloop.Trainer.train = forecast_and_end  # type: ignore[method-assign,assignment]
        undo.callback(setattr, hexloop.Trainer, "train", train)
        code = program.run()
        if not found and code == 0:
            print_text(f"hexloop: {program.name} ended without training, so there is no run to forecast.")
            return ExitCode.FAILED
        return code


def _print(forecast: Forecast) -> None:
    print_text(str(forecast), to=sys.stdout)


def _code(forecast: Forecast) -> ExitCode:
    return ExitCode.FAILED if forecast.warnings else ExitCode.DONE
