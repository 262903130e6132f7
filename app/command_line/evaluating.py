"""`hexloop evaluate`: the metrics of a checkpoint."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from hexloop.app.arguments import TrainingArguments
from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.app.command_line.metrics_file import metrics_text
from hexloop.app.command_line.weights import load_weights, nothing_to_load
from hexloop.app.recipe import read_recipe
from hexloop.app.run.saving import write_whole
from hexloop.app.wiring.storage import is_elsewhere, joined

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer

RESULTS = "eval_results.json"
"""The file with the metrics in the output folder."""


def run(options: Namespace) -> ExitCode:
    """Print the metrics as JSON, and nothing else on standard output; write them to a file."""

    def problems(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        yield from nothing_to_load(options, arguments)

    with redirect_stdout(sys.stderr):
        recipe = read_recipe(options.recipe, ("model", "eval_dataset"), options, options.unknown, problems)
        trainer = recipe.make_trainer(("eval_dataset",))
        checkpoint = load_weights(trainer, options)
        text = metrics_text(trainer.evaluate(), checkpoint)
        print(f"The metrics are in {_write(text.encode(), options.output, trainer)}.")
    print(text, end="")
    return ExitCode.DONE


def _write(text: bytes, output: str | None, trainer: Trainer) -> str:
    """Write the metrics to the file that is named, else to the output folder; gives where they are."""
    folder = str(trainer.args.output_dir)
    if output is None and is_elsewhere(folder):
        trainer.adapters.storage.remove(RESULTS)
        trainer.adapters.storage.write(RESULTS, [text])
    else:
        write_whole(Path(output or joined(folder, RESULTS)), text)
    return output or joined(folder, RESULTS)
