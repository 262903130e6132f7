"""`hexloop evaluate` and `hexloop predict`: the metrics and the predictions of a checkpoint."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import hexloop
from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.assembly.storage import is_elsewhere, is_missing, joined, split_location, storage_for
from hexloop.app.command_line import ExitCode
from hexloop.app.printing import print_lines, print_text
from hexloop.app.recipe import Recipe, read_recipe
from hexloop.app.search.stored import recorded_trial
from hexloop.app.trainer.attributes import folder_of
from hexloop.domain.checkpoints.manifest import Lineage
from hexloop.domain.checkpoints.reading import Checkpoint, checkpoint_steps
from hexloop.domain.checkpoints.selection import find_checkpoint, last_run, newest, open_checkpoint
from hexloop.domain.errors import CheckpointError, ConfigurationError, DataError
from hexloop.domain.json_documents import finite_json
from hexloop.domain.regular_files import write_atomically
from hexloop.ports.storage import Storage

RESULTS = "eval_results.json"
"""The file with the metrics in the output folder."""


def evaluate(options: Namespace) -> ExitCode:
    """Print the metrics as JSON, with nothing else on standard output, and write them to a file."""
    with redirect_stdout(sys.stderr):
        problems = partial(_checkpoint_problems, options)
        values = values_of_trial(options, with_folder=True)
        recipe = read_recipe(options.recipe, ("model", "eval_dataset"), options, options.unknown, problems, values)
        trainer = recipe.make_trainer(("eval_dataset",))
        checkpoint = _load_weights(trainer, options)
        text = _metrics_text(trainer.evaluate(), checkpoint)
        print_lines(f"The metrics are in {_write_metrics(text.encode(), options.output, trainer)}.")
    print_text(text.removesuffix("\n"), to=sys.stdout)
    return ExitCode.DONE


def predict(options: Namespace) -> ExitCode:
    """Write the predictions to a file, and print the metrics as JSON, with nothing else on standard output."""
    path = Path(options.output)

    def problems(arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
        yield from _checkpoint_problems(options, arguments, given)
        if not {"test_dataset", "eval_dataset"} & set(given):
            yield f"{options.recipe}: test_dataset and eval_dataset are both missing; add one of them."
        if path.suffix not in FORMATS:
            endings = " or ".join(FORMATS)
            yield f"--output: You chose {options.output!r}, but that format is unknown; use a name ending in {endings}."

    with redirect_stdout(sys.stderr):
        values = values_of_trial(options, with_folder=True)
        recipe = read_recipe(options.recipe, ("model",), options, options.unknown, problems, values)
        recipe.arguments.eval_do_concat_batches = True
        # nothing is evaluated, and the Trainer gets no data for it
        recipe.arguments.eval_strategy, recipe.arguments.load_best_model_at_end = "no", False
        trainer = recipe.make_trainer(())
        checkpoint = _load_weights(trainer, options)
        predicted = trainer.predict(_prediction_dataset(recipe))
        if predicted.predictions is None:
            raise DataError(
                "There are no predictions to write, as the model returned only a loss; let it return its outputs too, "
                "and do not set prediction_loss_only."
            )
        write_atomically(path, FORMATS[path.suffix](predicted.predictions, predicted.label_ids))
        print_lines(f"The predictions are in {path}.")
    print_text(_metrics_text(predicted.metrics or {}, checkpoint).removesuffix("\n"), to=sys.stdout)
    return ExitCode.DONE


def values_of_trial(options: Namespace, with_folder: bool) -> dict[str, Any]:
    """Return the values of the trial that `--trial` names, but for those that other options replace.

    with_folder: whether its folder is the output folder, unless another one is given.
    """
    if options.trial is None:
        return {}
    trial, folder = recorded_trial(options.trial)
    values = {**trial.parameters, **({"output_dir": folder} if with_folder else {})}
    return {name: value for name, value in values.items() if not hasattr(options, name.partition(".")[0])}


def to_npz(predictions: Any, labels: Any) -> bytes:
    """Return a compressed .npz archive of `predictions` and `label_ids`, if any, of shape (samples, ...).

    Several outputs are named predictions_0, predictions_1 and so on, or predictions_<name>. Raises DataError for an
    array of Python objects, which numpy would pickle.
    """
    arrays: dict[str, Any] = dict((*_named("predictions", predictions), *_named("label_ids", labels)))
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise DataError(
                f"{name} cannot be written as .npz without pickle, as it is an array of Python objects; "
                "let preprocess_logits_for_metrics return tensors, or write .jsonl."
            )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def to_jsonl(predictions: Any, labels: Any) -> bytes:
    """Return a line {"prediction": ..., "label": ...} per sample; without "label" if there are no labels."""
    rows = _rows(predictions)
    if labels is None:
        lines: Iterator[dict[str, Any]] = ({"prediction": row} for row in rows)
    else:
        lines = ({"prediction": row, "label": label} for row, label in zip(rows, _rows(labels), strict=True))
    return "".join(f"{json.dumps(finite_json(line), allow_nan=False)}\n" for line in lines).encode()


FORMATS: dict[str, Callable[[Any, Any], bytes]] = {".npz": to_npz, ".jsonl": to_jsonl}
"""Functions from predictions and labels to the bytes of a file, by its extension."""


def _checkpoint_problems(options: Namespace, arguments: TrainingArguments, given: Collection[str]) -> Iterator[str]:
    """Report a missing checkpoint."""
    folder = str(arguments.output_dir)
    if options.checkpoint is not None:
        if is_missing(options.checkpoint):
            yield (
                f"--checkpoint: You chose {options.checkpoint!r}, but there is no such folder; name a checkpoint's "
                "folder."
            )
    elif not options.as_made and not checkpoint_steps(storage_for(folder)):
        yield (
            f"There is no checkpoint in {folder}; train first, name one with --checkpoint, or use the model as the "
            "recipe creates it with --no-checkpoint."
        )


def _load_weights(trainer: hexloop.Trainer, options: Namespace) -> str | None:
    """Load the weights of the chosen checkpoint and return its location; None for the model as created.

    Raises CheckpointError if the checkpoint is damaged or of another model.
    """
    if options.as_made:
        return None
    storage = trainer.adapters.storage
    if options.checkpoint is not None:
        parent, name = split_location(options.checkpoint)
        storage = storage_for(parent, signatures=storage.capabilities.signatures)
        checkpoint = open_checkpoint(storage, name)
    else:
        checkpoint = _last_checkpoint(storage, trainer.args.load_best_model_at_end)
    from hexloop.app.assembly.torch.weights import load_model_weights

    load_model_weights(trainer.adapters.parallelism.unwrap(trainer.model), CheckpointFiles.of(checkpoint))
    return f"{storage.capabilities.location}/{checkpoint.name}"


def _last_checkpoint(storage: Storage, best: bool) -> Checkpoint:
    """Return the last run's best checkpoint, if `best` and it has one, else its newest."""
    found = newest(storage, last_run(storage))
    if found is None:
        raise CheckpointError(
            f"There is no good checkpoint in {storage.capabilities.location}; name another with --checkpoint."
        )
    if not best:
        return found
    name = CheckpointFiles.of(found).run_state().best_checkpoint
    if name is None or name == found.name:
        return found
    if find_checkpoint([storage], name, Lineage.after(found.manifest)) is None:
        raise CheckpointError(
            f"You chose the weights of the run's best checkpoint, {name}, but it is not in "
            f"{storage.capabilities.location} as the run saved it; name its folder with --checkpoint, or use the "
            "last weights with --no_load_best_model_at_end."
        )
    return open_checkpoint(storage, name)


def _metrics_text(metrics: Mapping[str, Any], checkpoint: str | None) -> str:
    """Return the metrics and the location of their checkpoint as JSON, without the epoch, as nothing is trained."""
    measured = {name: value for name, value in metrics.items() if name != "epoch"}
    return (
        json.dumps({"checkpoint": checkpoint, **finite_json(measured)}, indent=2, allow_nan=False, default=str) + "\n"
    )


def _write_metrics(text: bytes, output: str | None, trainer: hexloop.Trainer) -> str:
    """Write the metrics to the file `output`, by default in the output folder, and return its location."""
    folder = folder_of(trainer)
    if output is None and is_elsewhere(folder):
        trainer.adapters.storage.remove(RESULTS)
        trainer.adapters.storage.write(RESULTS, [text])
        trainer.adapters.storage.sync([RESULTS])
    else:
        write_atomically(Path(output or joined(folder, RESULTS)), text)
    return output or joined(folder, RESULTS)


def _prediction_dataset(recipe: Recipe) -> Any:
    name = "test_dataset" if "test_dataset" in recipe.parts else "eval_dataset"
    dataset = recipe.make(name)
    if isinstance(dataset, dict):
        raise ConfigurationError(
            f"eval_dataset has several datasets ({', '.join(dataset)}), so none is chosen; name one as test_dataset."
        )
    return dataset


def _named(name: str, values: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield each array in `values` with a unique name."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from _named(f"{name}_{key}", value)
    elif isinstance(values, tuple | list):
        for index, value in enumerate(values):
            yield from _named(f"{name}_{index}", value)
    elif values is not None:
        yield name, np.asarray(values)


def _rows(values: Any) -> Iterator[Any]:
    """Yield each sample's values: an item of an array, or items of several arrays in the same structure."""
    if isinstance(values, dict):
        for row in zip(*map(_rows, values.values()), strict=True):
            yield dict(zip(values, row, strict=True))
    elif isinstance(values, tuple | list):
        yield from map(list, zip(*map(_rows, values), strict=True))
    else:
        yield from np.asarray(values).tolist()
