"""The checkpoints of trials: which one a trial resumes from, which belongs to its objective, and which are removed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from attrs import frozen

from hexloop.app.assembly.storage import joined
from hexloop.domain.checkpoints.commit import publisher_for
from hexloop.domain.checkpoints.manifest import PROTECTED, Owner, checkpoint_name, new_session
from hexloop.domain.checkpoints.selection import newest, newest_first, readable_manifests
from hexloop.domain.errors import CheckpointError, StorageError
from hexloop.domain.json_documents import read_start
from hexloop.domain.search.records import RecordedTrial, SearchRecord
from hexloop.domain.search.selection import best_trials, kept_trials
from hexloop.ports.storage import Storage

MARK = b"The best trial of a search.\n"
"""The content of the file that protects a checkpoint on behalf of a search. A file of the user's has another one."""


@frozen
class TrialCheckpoints:
    """The checkpoints of the trials of a search. storage: returns that of a trial, by the name of its folder."""

    storage: Callable[[str], Storage]

    def newest(self, name: str, run: str) -> str | None:
        """Return the newest good checkpoint of a trial's run, as `resume_from_checkpoint` takes it; None if none."""
        storage = self.storage(name)
        found = newest(storage, run)
        if found is None:
            return None
        folder = storage.capabilities.local_folder
        return found.name if folder is None else joined(folder, found.name)

    def of_objective(self, name: str, run: str, step: int | None) -> str | None:
        """Return the path, within the search, of the checkpoint at the step of a trial's objective; else its newest."""
        with suppress(StorageError, CheckpointError):
            manifests = readable_manifests(self.storage(name))
            own = {each: manifest for each, manifest in manifests.items() if manifest.run == run} or manifests
            at_step = None if step is None else checkpoint_name(step)
            chosen = at_step if at_step in own else next(newest_first(own), None)
            return None if chosen is None else f"{name}/{chosen}"
        return None

    def tidy(self, record: SearchRecord, keep: int | None, known: Collection[str]) -> None:
        """Protect the checkpoint of the best trial from rotation, and remove those of trials beyond the `keep` best.

        known: the paths of checkpoints that may be protected, or are to be. A failure is a warning.
        """
        trials, directions = list(record.trials.values()), record.definition.directions
        best = {each.checkpoint for each in best_trials(trials, directions)} - {None}
        try:
            self._protect(known, best)
            if keep is not None:
                kept = kept_trials(trials, directions, keep)
                self._remove(each for each in trials if each.state is not None and each.number not in kept)
        except (StorageError, CheckpointError) as error:
            warnings.warn(f"The checkpoints of earlier trials could not be removed or protected: {error}", stacklevel=2)

    def _protect(self, known: Collection[str], best: Collection[str | None]) -> None:
        for path in known:
            name, _, checkpoint = path.rpartition("/")
            storage, mark = self.storage(name), f"{checkpoint}/{PROTECTED}"
            names = {each.name for each in storage.list(checkpoint)}
            if path in best and names and PROTECTED not in names:
                storage.write(mark, [MARK])
                storage.sync([mark])
            elif path not in best and PROTECTED in names and read_start(storage.read(mark), len(MARK) + 1) == MARK:
                storage.remove(mark)

    def _remove(self, trials: Iterable[RecordedTrial]) -> None:
        """Remove all checkpoints of trials, except those that the user protects."""
        for each in trials:
            if each.checkpoint is None:
                continue
            storage = self.storage(each.name)
            for name, manifest in readable_manifests(storage).items():
                if PROTECTED not in {entry.name for entry in storage.list(name)}:
                    publisher_for(storage, Owner(manifest.run, new_session())).delete(name)
            each.checkpoint = None
