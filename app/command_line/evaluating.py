"""`hexloop evaluate`: the metrics of a checkpoint."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from pathlib import Path

from hexloop.app.arguments import TrainingArguments
from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.app.command_line.metrics_file import metrics_text, write_whole
from hexloop.app.command_line.weights import load_weights, nothing_to_load
from hexloop.app.recipe import read_recipe


def run(options: Namespace) -> ExitCode:
    """Print the metrics as JSON, and nothing else on standard output; write them to a file."""

    def problems(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        yield from nothing_to_load(options, arguments)

    with redirect_stdout(sys.stderr):
        recipe = read_recipe(options.recipe, ("model", "eval_dataset"), options, options.unknown, problems)
        trainer = recipe.make_trainer(("eval_dataset",))
        checkpoint = load_weights(trainer, options)
        text = metrics_text(trainer.evaluate(), checkpoint)
        path = Path(options.output or Path(str(trainer.args.output_dir), "eval_results.json"))
        write_whole(path, text.encode())
        print(f"The metrics are in {path}.")
    print(text, end="")
    return ExitCode.DONE
