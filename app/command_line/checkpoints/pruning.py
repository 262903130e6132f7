"""`hexloop checkpoints prune`: removing a run's checkpoints that are not needed any more."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hexloop.app.command_line.exit_codes import ExitCode

if TYPE_CHECKING:
    from hexloop.domain.checkpoints.reading import Checkpoint
    from hexloop.ports.storage import Storage

HELP = "remove a run's older checkpoints"

DESCRIPTION = """\
Removes checkpoints of one run: of those that led to its newest one, all but the last N.
The newest is verified first; where it is not good, nothing is removed. Those of other
runs, of a past that the run gave up, and those with a file named "protected" in them
are never touched. Asks nothing, and says what it removed.

Do not use --leftovers while the run is being trained: its save under way is unfinished,
too, and would fail."""


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("folder", metavar="FOLDER", help="the folder or URL that the checkpoints are in")
    parser.add_argument("--keep", type=_at_least_one, metavar="N", help="how many checkpoints are to stay")
    parser.add_argument("--keep-best", action="store_true", help="keep the one with the best metric, too")
    parser.add_argument("--leftovers", action="store_true", help="remove what the run left unfinished")
    parser.add_argument("--run", metavar="NAME", help="the run, or how its name begins; needed where there are several")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def run(options: argparse.Namespace) -> ExitCode:
    """Remove, and say what."""
    from hexloop.app.command_line.checkpoints.places import open_folder
    from hexloop.domain.errors import ConfigurationError

    if options.keep is None and not options.leftovers:
        raise ConfigurationError(["You chose to prune, but not what; give --keep N, --leftovers, or both."])
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
        print(f"Nothing of the run {name} in {options.folder} is to be removed.")
    return ExitCode.DONE


def _at_least_one(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one checkpoint is kept")
    return number


def _refuse_unsent(storage: Storage, folder: str) -> None:
    """Raise CheckpointError where a folder is a fast tier with something in it that the slow one does not have."""
    from hexloop.adapters.storage.tiered.outbox import OUTBOX
    from hexloop.domain.errors import CheckpointError

    if storage.list(OUTBOX):
        raise CheckpointError(
            f"You chose to prune {folder}, but it is the fast tier of two, and something in it is still to be sent to "
            "the slow one; let the run that has both send it, and prune afterwards."
        )


def _run_in(storage: Storage, folder: str, named: str | None) -> str:
    """The run that is meant. Raises ConfigurationError where that is not clear."""
    from hexloop.domain.checkpoints.names import MANIFEST
    from hexloop.domain.checkpoints.selection import runs_in
    from hexloop.domain.errors import ConfigurationError

    runs = sorted(runs_in(storage))
    fitting = [run for run in runs if run.startswith(named or "")]
    if named in runs:
        return str(named)
    if len(fitting) == 1:
        return fitting[0]
    if not runs:
        if MANIFEST in {entry.name for entry in storage.list("")}:
            raise ConfigurationError(
                [f"You chose to prune {folder}, but that is a checkpoint itself; name the folder that it is in."]
            )
        if named:
            return named
        raise ConfigurationError(
            [f"You chose {folder}, but no checkpoint there says of which run it is; name the whole run by --run."]
        )
    chosen = f"the run {named} in {folder}" if named else folder
    several = f"{len(fitting)} of them begin so" if named and fitting else f"it holds those of {', '.join(runs)}"
    raise ConfigurationError([f"You chose to prune {chosen}, but {several}; name one run with --run."])


def _remove(storage: Storage, run: str, options: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Remove what the options say; gives the kind and name of each once it is gone, on a dry run of what would be."""
    from hexloop.domain.checkpoints.pruning import leftovers, newest_to_keep, remove, remove_leftover

    if options.keep is not None:
        newest = newest_to_keep(storage, run)
        names = _surplus(storage, newest, options)
        yield from (("removed", name) for name in (names if options.dry_run else remove(storage, newest, names)))
    for name in leftovers(storage, run) if options.leftovers else []:
        if not options.dry_run:
            remove_leftover(storage, run, name)
        yield "leftovers", name


def _surplus(storage: Storage, newest: Checkpoint, options: argparse.Namespace) -> list[str]:
    """The checkpoints to remove. Raises CheckpointError where the best is to be kept and nobody knows which it is."""
    from hexloop.app.command_line.checkpoints.metrics import best_of, read_state
    from hexloop.domain.checkpoints.commit import CheckpointPolicy
    from hexloop.domain.checkpoints.pruning import surplus
    from hexloop.domain.errors import CheckpointError

    state = read_state(storage, newest.name)
    if options.keep_best and state is None:
        raise CheckpointError(
            f"You chose to keep the best checkpoint, but {newest.name} does not say which that is; leave --keep-best "
            "out."
        )
    policy = CheckpointPolicy(options.keep, keep_best=options.keep_best)
    return surplus(storage, newest, policy, None if state is None else best_of(state))
