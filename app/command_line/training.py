"""`hexloop train`: a recipe's run, to its end or until somebody stops it."""

from __future__ import annotations

import io
import sys
import time
from argparse import Namespace
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from hexloop.app.arguments import TrainingArguments
from hexloop.app.command_line.closing import results, summary, where_to_go_on
from hexloop.app.command_line.driving import Progress, drive
from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.app.command_line.resuming import AUTO, nothing_to_resume, source_of_resume
from hexloop.app.recipe import read_recipe

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


def run(options: Namespace) -> ExitCode:
    """Train, and say at the end where everything is and how to go on."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that a log that goes into a file or a pipe can be followed

    def problems(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        yield from _nothing_to_evaluate(arguments, given)
        yield from nothing_to_resume(source_of_resume(options, arguments), arguments)

    recipe = read_recipe(options.recipe, ("model", "train_dataset"), options, options.unknown, problems)
    source = source_of_resume(options, recipe.arguments)
    if source == AUTO and (step := _finished_at(recipe.arguments)) is not None:
        if recipe.arguments.process_index == 0:
            print(
                f"{options.recipe}: this run is finished, after {step:,} steps; its checkpoints are in "
                f"{recipe.arguments.output_dir}. Give it more steps to go on, or another output_dir to start anew."
            )
        return ExitCode.DONE
    trainer = recipe.make_trainer(("train_dataset", "eval_dataset"))
    first = trainer.is_world_process_zero()  # which speaks for all
    if first:
        print(_opening(trainer, options.recipe), flush=True)
    progress, began = Progress(), time.time()
    try:
        drive(trainer, source, progress)
    except BaseException as error:
        if progress.began:
            where = where_to_go_on(trainer, options, progress)
            error.add_note(f"The run ended after step {trainer.state.global_step:,}. {where}")
        raise
    if first:
        print(summary(trainer, progress))
        print(where_to_go_on(trainer, options, progress, results(str(trainer.args.output_dir), began)), flush=True)
    return ExitCode.DONE if trainer.outcome is None else ExitCode(trainer.outcome.exit_code)


def _finished_at(arguments: TrainingArguments) -> int | None:
    """The step at which the run in the output folder came to its end; None where it has not."""
    from hexloop.app.run.resume import finished_at
    from hexloop.app.wiring.storage import storage_for

    return finished_at(storage_for(str(arguments.output_dir)), arguments)


def _nothing_to_evaluate(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
    strategy = getattr(arguments.eval_strategy, "value", arguments.eval_strategy)
    if strategy != "no" and "eval_dataset" not in given:
        yield (
            f"You chose eval_strategy={strategy!r}, but the recipe has no eval_dataset; give it one, or set "
            "eval_strategy='no'."
        )


def _opening(trainer: Trainer, recipe: str) -> str:
    """What is about to be trained, on what."""
    model = trainer.model
    weights = sum(parameter.numel() for parameter in model.parameters())
    try:
        samples = f"{len(trainer.train_dataset):,} samples"
    except TypeError:
        samples = "a stream of samples"
    adapters = trainer.adapters
    return (
        f"{recipe}: {type(model).__name__} with {weights:,} weights, {samples}, on {adapters.device.name} in "
        f"{adapters.precision.name}; checkpoints go to {trainer.args.output_dir}"
    )
