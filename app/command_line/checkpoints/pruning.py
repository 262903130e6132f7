"""`hexloop checkpoints prune`: remove a run's checkpoints that are no longer needed."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator

from hexloop.app.command_line.checkpoints.reading import best_of, open_folder, read_state
from hexloop.app.command_line.errors import ExitCode
from hexloop.app.wiring.storage import has_unsent_files
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import MANIFEST
from hexloop.domain.checkpoints.reading import Checkpoint
from hexloop.domain.checkpoints.selection import runs_in
from hexloop.domain.checkpoints.survey import leftovers, newest_to_keep, remove, remove_leftover, surplus
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.ports.storage import Storage


def run(options: Namespace) -> ExitCode:
    """Remove what the options say, and print what was removed."""
    if options.keep is None and not options.leftovers:
        raise ConfigurationError("You chose to prune, but not what; give --keep N, --leftovers, or both.")
    storage = open_folder(options.folder)
    _refuse_unsent(storage, options.folder)
    name = _run_in(storage, options.folder, options.run)
    gone: dict[str, list[str]] = {"removed": [], "leftovers": []}
    for kind, each in _remove(storage, name, options):
        gone[kind].append(each)
        if not options.json:
            print(f"{'Would remove' if options.dry_run else 'Removed'} {each}", flush=True)
    if options.json:
        print(json.dumps({"run": name, **gone, "dry_run": options.dry_run}, indent=2))
    elif not any(gone.values()):
        print(f"There is nothing to remove of the run {name} in {options.folder}.")
    return ExitCode.DONE


def _refuse_unsent(storage: Storage, folder: str) -> None:
    """Raise CheckpointError if a folder is a fast tier with files that are not yet in the slow tier."""
    if has_unsent_files(storage):
        raise CheckpointError(
            f"You chose to prune {folder}, but it is the fast tier of a tiered storage and has files that are still to "
            "be sent to the slow tier; let the run that uses both send them, and prune afterwards."
        )


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
    """Yield the kind and name of each folder after removing it, or instead of removing it in a dry run."""
    if options.keep is not None:
        newest = newest_to_keep(storage, run)
        names = _surplus(storage, newest, options)
        yield from (("removed", name) for name in (names if options.dry_run else remove(storage, newest, names)))
    for name in leftovers(storage, run) if options.leftovers else []:
        if not options.dry_run:
            remove_leftover(storage, run, name)
        yield "leftovers", name


def _surplus(storage: Storage, newest: Checkpoint, options: Namespace) -> list[str]:
    """Return the checkpoints to remove. Raises CheckpointError if the best is to be kept and is unknown."""
    state = read_state(storage, newest.name)
    if options.keep_best and state is None:
        raise CheckpointError(
            f"You chose to keep the best checkpoint, but {newest.name} does not say which that is; leave --keep-best "
            "out."
        )
    policy = CheckpointPolicy(options.keep, keep_best=options.keep_best)
    return surplus(storage, newest, policy, None if state is None else best_of(state))
