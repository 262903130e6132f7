"""`hexloop checkpoints consolidate`, `import` and `export`: write checkpoints in other layouts and formats."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress

from hexloop.app.command_line.checkpoints.reading import CheckpointLocation, open_checkpoints
from hexloop.app.command_line.errors import ExitCode
from hexloop.app.wiring.checkpoint_files import CheckpointFiles
from hexloop.app.wiring.storage import as_location, split_location, storage_for
from hexloop.domain.checkpoints.selection import open_checkpoint
from hexloop.domain.errors import ConfigurationError, StorageError
from hexloop.ports.storage import Storage


def consolidate(options: Namespace) -> ExitCode:
    """Write a folder with the model of a checkpoint, all weights in one file, and print its location."""
    (location,) = open_checkpoints([options.checkpoint])
    target = as_location(options.output or f"{as_location(options.checkpoint)}-consolidated")
    folder, name = split_location(target)
    storage = storage_for(folder)
    _refuse_target(location, target, storage, name)
    _write_model(location, storage, name)
    print(f"Written: {target}")
    return ExitCode.DONE


def import_(options: Namespace) -> ExitCode:
    """Convert a checkpoint of transformers' Trainer, and print how to resume from it."""
    from hexloop.app.transformers_checkpoints.importing import import_checkpoint

    written = import_checkpoint(
        options.folder,
        options.to,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        processes=options.processes,
        seed=options.seed,
        data_seed=options.data_seed,
        train_batch_size=options.train_batch_size,
    )
    print(f"Written: {written}\nResume from it with: hexloop train RECIPE --resume {written}")
    return ExitCode.DONE


def export(options: Namespace) -> ExitCode:
    """Convert a checkpoint to the format of transformers' Trainer, and print its location."""
    from hexloop.app.transformers_checkpoints.exporting import export_checkpoint

    print(f"Written: {export_checkpoint(options.checkpoint, options.to)}")
    return ExitCode.DONE


def _refuse_target(location: CheckpointLocation, target: str, storage: Storage, name: str) -> None:
    """Raise ConfigurationError for a target that exists already or lies inside the checkpoint."""
    source = as_location(location.given)
    if target == source or target.startswith(f"{source}/"):
        raise ConfigurationError(
            f"You chose to write {target}, but nothing may be written into a checkpoint; choose another --output."
        )
    if name in {entry.name for entry in storage.list("")}:
        raise ConfigurationError(f"You chose to write {target}, but it exists already; choose another --output.")


def _write_model(location: CheckpointLocation, storage: Storage, name: str) -> None:
    """Write the folder under a temporary name, after removing the leftovers of an earlier attempt, and publish it."""
    staging = f".unfinished-{name}"
    manifest = open_checkpoint(location.storage, location.name).manifest
    storage.remove(staging)
    try:
        for file in CheckpointFiles(location.storage, location.name, manifest.files).model_files():
            storage.write(f"{staging}/{file.path}", file.chunks)
        storage.move(staging, name)
    except BaseException:
        with suppress(StorageError):
            storage.remove(staging)
        raise
