"""`hexloop checkpoints prune`, `consolidate`, `import`, `export`, `merge` and `sign`: remove, convert, sign."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from hexloop.app.assembly.checkpoint_files import CheckpointFiles
from hexloop.app.assembly.storage import as_location, has_unsent_files, joined, read_key, split_location, storage_for
from hexloop.app.checkpoint_rows import best_of, read_state
from hexloop.app.command_line import ExitCode
from hexloop.app.command_line.checkpoints import (
    CheckpointLocation,
    is_checkpoint,
    open_checkpoints,
    open_folder,
    refuse_missing,
)
from hexloop.app.printing import print_document, print_lines
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import MANIFEST, checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.checkpoints.selection import open_checkpoint, runs_in
from hexloop.domain.checkpoints.signing import sign_checkpoint
from hexloop.domain.checkpoints.survey import (
    leftovers,
    newest_to_keep,
    remove,
    remove_leftover,
    remove_replaced,
    replaced,
    surplus,
)
from hexloop.domain.errors import CheckpointError, ConfigurationError, StorageError
from hexloop.ports.storage import Storage


def prune(options: Namespace) -> ExitCode:
    """Remove what the options say, and print what was removed."""
    of_run = options.keep is not None or options.leftovers
    if not of_run and not options.replaced:
        raise ConfigurationError(
            "You chose to prune, but not what; give --keep N, --leftovers, --replaced, or several."
        )
    storage = open_folder(options.folder)
    if has_unsent_files(storage):
        raise CheckpointError(
            f"You chose to prune {options.folder}, but it is the fast tier of a tiered storage and has files that are "
            "still to be sent to the slow tier; let the run that uses both send them, and prune afterwards."
        )
    name = _run_in(storage, options.folder, options.run) if of_run else options.run
    gone: dict[str, list[str]] = {"removed": [], "leftovers": [], "replaced": []}
    removals = chain(_remove(storage, str(name), options) if of_run else (), _remove_replaced(storage, options))
    for kind, each in removals:
        gone[kind].append(each)
        if not options.json:
            print_lines(f"{'Would remove' if options.dry_run else 'Removed'} {each}")
    if options.json:
        print_document({"run": name, **gone, "dry_run": options.dry_run})
    elif not any(gone.values()):
        print_lines(f"There is nothing to remove{f' of the run {name}' if name else ''} in {options.folder}.")
    return ExitCode.DONE


def _run_in(storage: Storage, folder: str, named: str | None) -> str:
    """Return the name of the run to prune. Raises ConfigurationError if it is ambiguous."""
    runs = sorted(runs_in(storage))
    fitting = [run for run in runs if run.startswith(named or "")]
    if named in runs:
        return str(named)
    if len(fitting) == 1:
        return fitting[0]
    if not runs:
        if MANIFEST in {entry.name for entry in storage.list("")}:
            raise ConfigurationError(
                f"You chose to prune {folder}, but that is a checkpoint itself; name the folder that contains it."
            )
        if named:
            return named
        raise ConfigurationError(
            f"You chose {folder}, but no checkpoint in it states its run; give the full name of the run with --run."
        )
    chosen = f"the run {named} in {folder}" if named else folder
    several = f"{len(fitting)} runs start with that name" if named and fitting else f"it has the runs {', '.join(runs)}"
    raise ConfigurationError(f"You chose to prune {chosen}, but {several}; name one run with --run.")


def _remove(storage: Storage, run: str, options: Namespace) -> Iterator[tuple[str, str]]:
    """Yield the kind and name of each folder after removing it, or instead of removing it in a dry run.

    Raises CheckpointError if the best is to be kept and is unknown.
    """
    if options.keep is not None:
        newest = newest_to_keep(storage, run)
        state = read_state(storage, newest.name)
        if options.keep_best and state is None:
            raise CheckpointError(
                f"You chose to keep the best checkpoint, but {newest.name} does not say which that is; leave "
                "--keep-best out."
            )
        policy = CheckpointPolicy(options.keep, keep_best=options.keep_best)
        names = surplus(storage, newest, policy, None if state is None else best_of(state))
        yield from (("removed", name) for name in (names if options.dry_run else remove(storage, newest, names)))
    for name in leftovers(storage, run) if options.leftovers else []:
        if not options.dry_run:
            remove_leftover(storage, run, name)
        yield "leftovers", name


def _remove_replaced(storage: Storage, options: Namespace) -> Iterator[tuple[str, str]]:
    """Yield the kind and name of each checkpoint that was set aside, after removing it unless in a dry run."""
    for name in replaced(storage, options.run) if options.replaced else []:
        if not options.dry_run:
            remove_replaced(storage, name)
        yield "replaced", name


def consolidate(options: Namespace) -> ExitCode:
    """Write a folder with the model of a checkpoint, all weights in one file, and print its location."""
    (location,) = open_checkpoints([options.checkpoint], read_key(options.key, "--key"))
    source = as_location(options.checkpoint)
    target = as_location(options.output or f"{source}-consolidated")
    if target == source or target.startswith(f"{source}/"):
        raise ConfigurationError(
            f"You chose to write {target}, but nothing may be written into a checkpoint; choose another --output."
        )
    folder, name = split_location(target)
    storage = storage_for(folder)
    if name in {entry.name for entry in storage.list("")}:
        raise ConfigurationError(f"You chose to write {target}, but it exists already; choose another --output.")
    _write_model(location, storage, name)
    print_lines(f"Written: {target}")
    return ExitCode.DONE


def import_(options: Namespace) -> ExitCode:
    """Convert a checkpoint of transformers' Trainer, and print how to resume from it."""
    from hexloop.app.assembly.torch.transformers_checkpoints.importing import import_checkpoint

    written = import_checkpoint(
        options.folder,
        options.to,
        gradient_accumulation_steps=options.gradient_accumulation_steps,
        processes=options.processes,
        seed=options.seed,
        data_seed=options.data_seed,
        train_batch_size=options.train_batch_size,
    )
    print_lines(f"Written: {written}", f"Resume from it with: hexloop train RECIPE --resume {written}")
    return ExitCode.DONE


def export(options: Namespace) -> ExitCode:
    """Convert a checkpoint to the format of transformers' Trainer; print its location and where its files are from."""
    from hexloop.app.assembly.torch.transformers_checkpoints.exporting import export_checkpoint
    from hexloop.app.assembly.torch.transformers_checkpoints.files import WRITTEN_FROM

    target = export_checkpoint(options.checkpoint, options.to, read_key(options.key, "--key"))
    sources = [f"  {name}: from {source}" for name, source in WRITTEN_FROM.items() if name in os.listdir(target)]
    print_lines(f"Written: {target}", *sources)
    return ExitCode.DONE


def merge(options: Namespace) -> ExitCode:
    """Merge the adapters of a checkpoint into their base, and print the folder of the whole model."""
    from hexloop.app.assembly.torch.merging import merge_adapters

    refuse_missing([options.checkpoint])
    target = merge_adapters(
        options.checkpoint,
        options.to,
        base=options.base,
        adapters=options.adapters,
        despite_digest=options.despite_digest,
        signatures=read_key(options.key, "--key"),
    )
    print_lines(f"Written: {target}")
    return ExitCode.DONE


def sign(options: Namespace) -> ExitCode:
    """Sign checkpoints that are good, and print the result of each. Return FAILED if one is not."""
    refuse_missing(options.paths)
    signatures = read_key(options.key, "--key")
    if signatures is None or not signatures.can_sign:
        raise ConfigurationError("You chose to sign, but the file that --key names holds a public key; name another.")
    failed = 0
    for location in [each for given in options.paths for each in _checkpoints_at(given)]:
        try:
            sign_checkpoint(location.storage, location.name, signatures)
            print_lines(f"{location.given}: signed")
        except (CheckpointError, StorageError) as error:
            failed += 1
            print_lines(f"{location.given}: not signed", f"  {error}")
    return ExitCode.FAILED if failed else ExitCode.DONE


def _checkpoints_at(given: str) -> list[CheckpointLocation]:
    """Return a checkpoint, or all in a folder. Raises CheckpointError if there is none."""
    if is_checkpoint(given):
        return open_checkpoints([given])
    names = [checkpoint_name(step) for step in sorted(checkpoint_steps(open_folder(given)))]
    if not names:
        raise CheckpointError(f"You chose {given}, but it contains no checkpoint; name another folder or a checkpoint.")
    return open_checkpoints([joined(given, name) for name in names])


def _write_model(location: CheckpointLocation, storage: Storage, name: str) -> None:
    """Write the folder under a temporary name, after removing the leftovers of an earlier attempt, and publish it."""
    staging = f".unfinished-{name}"
    checkpoint = open_checkpoint(location.storage, location.name)
    storage.remove(staging)
    try:
        paths = []
        for file in CheckpointFiles.of(checkpoint).model_files():
            storage.write(f"{staging}/{file.path}", file.chunks)
            paths.append(f"{staging}/{file.path}")
        storage.sync(paths)
        storage.move(staging, name)
    except BaseException:
        with suppress(StorageError):
            storage.remove(staging)
        raise
