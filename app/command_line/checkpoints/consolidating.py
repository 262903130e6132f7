"""`hexloop checkpoints consolidate`: a model's folder with all weights in one file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from hexloop.app.command_line.exit_codes import ExitCode

if TYPE_CHECKING:
    from hexloop.app.command_line.checkpoints.places import Place
    from hexloop.ports.files import File
    from hexloop.ports.storage import Storage

HELP = "write a checkpoint's weights as one file, with what from_pretrained needs besides"

DESCRIPTION = """\
Writes a folder with the model alone: its weights as one model.safetensors, however many
processes saved them, and its configuration and tokenizer where the checkpoint has them.
One tensor at a time is in memory, and neither torch nor the engine that trained has to
be installed. The folder appears when all is written; the checkpoint stays as it is."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint's folder, or its URL")
    parser.add_argument(
        "--output", metavar="FOLDER", help="the folder to write, or its URL; by default CHECKPOINT-consolidated"
    )


def run(options: argparse.Namespace) -> ExitCode:
    """Consolidate, and say where it is."""
    from hexloop.app.command_line.checkpoints.places import open_checkpoints
    from hexloop.app.wiring.storage import as_location, split_location, storage_for

    (place,) = open_checkpoints([options.checkpoint])
    target = as_location(options.output or f"{as_location(options.checkpoint)}-consolidated")
    folder, name = split_location(target)
    storage = storage_for(folder)
    _refuse(place, target, storage, name)
    _write(place, storage, name)
    print(f"Written: {target}")
    return ExitCode.DONE


def _refuse(place: Place, target: str, storage: Storage, name: str) -> None:
    """Raise ConfigurationError for a target that is there already, or in the checkpoint."""
    from hexloop.app.wiring.storage import as_location
    from hexloop.domain.errors import ConfigurationError

    source = as_location(place.given)
    if target == source or target.startswith(f"{source}/"):
        raise ConfigurationError(
            [f"You chose to write {target}, but nothing is written into a checkpoint; choose another --output."]
        )
    if name in {entry.name for entry in storage.list("")}:
        raise ConfigurationError([f"You chose to write {target}, which is there already; choose another --output."])


def _write(place: Place, storage: Storage, name: str) -> None:
    """Write the folder under a name that says that it is not whole; what an earlier attempt left there goes first."""
    from hexloop.domain.checkpoints.selection import open_checkpoint
    from hexloop.domain.errors import StorageError

    staging = f".unfinished-{name}"
    paths = open_checkpoint(place.storage, place.name).manifest.files
    storage.remove(staging)
    try:
        for file in _files(place, list(paths)):
            storage.write(f"{staging}/{file.path}", file.chunks)
        storage.move(staging, name)
    except BaseException:
        with suppress(StorageError):
            storage.remove(staging)
        raise


def _files(place: Place, paths: list[str]) -> Iterator[File]:
    """What a model consists of; the weights come last."""
    import sys

    from hexloop.adapters.contents.checkpoint.contents import files_of, parts_of
    from hexloop.adapters.contents.checkpoint.safetensors_files import MODEL, is_weights
    from hexloop.app.wiring.storage import is_of_run
    from hexloop.ports.files import File

    def read(path: str, start: int = 0) -> Iterator[memoryview]:
        return place.storage.read(f"{place.name}/{path}", start)

    for path in paths:
        if not is_of_run(path) and not is_weights(path) and path != f"{MODEL}.json":
            yield File(path, read(path))
    yield from files_of(MODEL, parts_of(MODEL, paths, read), sys.maxsize)
