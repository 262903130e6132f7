"""`hexloop predict`: the predictions of a checkpoint."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Collection, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from hexloop.app.arguments import TrainingArguments
from hexloop.app.command_line.exit_codes import ExitCode
from hexloop.app.command_line.metrics_file import metrics_text
from hexloop.app.command_line.predictions import FORMATS
from hexloop.app.command_line.weights import load_weights, nothing_to_load
from hexloop.app.recipe import Recipe, read_recipe
from hexloop.app.run.saving import write_whole
from hexloop.domain.errors import ConfigurationError, DataError


def run(options: Namespace) -> ExitCode:
    """Write the predictions to a file; print the metrics as JSON, and nothing else on standard output."""
    path = Path(options.output)

    def problems(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        yield from nothing_to_load(options, arguments)
        if not {"test_dataset", "eval_dataset"} & set(given):
            yield f"{options.recipe}: test_dataset is missing, and eval_dataset too; give one of them."
        if path.suffix not in FORMATS:
            endings = " or ".join(FORMATS)
            yield f"--output: You chose {options.output!r}, but its format is not known; end its name in {endings}."

    with redirect_stdout(sys.stderr):
        recipe = read_recipe(options.recipe, ("model",), options, options.unknown, problems)
        recipe.arguments.eval_do_concat_batches = True
        trainer = recipe.make_trainer(())
        checkpoint = load_weights(trainer, options)
        predicted = trainer.predict(_dataset(recipe))
        if predicted.predictions is None:
            raise DataError(
                "You chose to predict, but the model gives nothing beside its loss; let it return its outputs as well, "
                "and leave prediction_loss_only out."
            )
        write_whole(path, FORMATS[path.suffix](predicted.predictions, predicted.label_ids))
        print(f"The predictions are in {path}.")
    print(metrics_text(predicted.metrics or {}, checkpoint), end="")
    return ExitCode.DONE


def _dataset(recipe: Recipe) -> Any:
    name = "test_dataset" if "test_dataset" in recipe.parts else "eval_dataset"
    dataset = recipe.make(name)
    if isinstance(dataset, dict):
        raise ConfigurationError(
            [f"You chose to predict eval_dataset, but it is several ({', '.join(dataset)}); name one as test_dataset."]
        )
    return dataset
