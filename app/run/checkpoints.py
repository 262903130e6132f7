"""Checkpoints of a run: when they are taken in the background, what they hold, and how a run resumes from one."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from hexloop.app.arguments import TrainingArguments
from hexloop.app.assembly.adapters import Adapters
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.saved_setup import finish_in
from hexloop.app.assembly.state import CheckpointContents, contents_for
from hexloop.app.assembly.storage import is_elsewhere, joined, refuse_public_key, refuse_unreachable
from hexloop.app.callbacks import CallbackHandler, TrainerControl, export_states, restore_states
from hexloop.app.notices import Notices
from hexloop.app.overrides.checkpoints import WatchedFolder, user_files
from hexloop.app.run.checkpoint_compatibility import AUTO, RunSetup, named_checkpoint
from hexloop.app.run.checks import refuse_missing_checkpoint
from hexloop.app.run.journal import note_of_saves
from hexloop.app.run.messages import log_best, logging_saves
from hexloop.app.run.saving import ArgumentsFile, companion_files, warn_of_other_arguments
from hexloop.app.run.trained_parameters import TrainedParameters
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.manifest import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps, read_manifest, verify
from hexloop.domain.checkpoints.selection import newest_first, publish_staged, readable_manifests
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import (
    CheckpointError,
    ConfigurationError,
    IrregularFileError,
    MissingCheckpointError,
    StorageError,
)
from hexloop.domain.events import AnyEvent, CheckpointPublished, Saved
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.run import Run
from hexloop.domain.run_folder import EARLIER, FINISHED
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Reduction
from hexloop.ports.storage import Storage


class RunCheckpoints(CheckpointStore):
    """Writes and reads the checkpoints of a run, with the state of callbacks and counters brought up to date first.

    A save is published before it returns, instead of in the background, if a callback listens to saves, or a method of
    the user's writes the model's files or continues after a save.
    asked_accumulation: `gradient_accumulation_steps` as the user passed it. now: collects the current parts.
    trained: brings the run's state up to date before a save. trackers: returns what identifies the run for its loggers.
    """

    def __init__(
        self,
        parts: TrainerParts,
        run: Run[Any, Any],
        asked_accumulation: int,
        now: Callable[[], TrainerParts],
        trained: TrainedParameters,
        trackers: Callable[[], dict[str, str]],
    ) -> None:
        args, storage = parts.args, parts.adapters.storage
        self.folder = folder = WatchedFolder(storage)
        setup, arguments = RunSetup(parts, run, asked_accumulation, trained.rejoin), ArgumentsFile()
        super().__init__(
            storage,
            contents_for(
                parts,
                run,
                setup.model,
                setup,
                lambda: companion_files(now(), arguments),
                lambda: user_files(now(), folder),
            ),
            CheckpointPolicy(args.save_total_limit, keep_best=args.load_best_model_at_end),
            environment=_environment_of(parts.adapters),
            load_best_at_end=args.load_best_model_at_end,
            note=logging_saves(note_of_saves(parts.adapters.journal), storage, parts.adapters.clock.monotonic),
            collectives=parts.adapters.collectives,
            background=parts.adapters.background if args.save_async else None,
            skip_when_busy=args.save_when_busy == "skip",
            make_room=parts.publisher.make_room,
        )
        self._parts = parts
        self._settle_counters, self._trackers = trained.check_and_settle, trackers
        self.take_within: Callable[[RunState], list[AnyEvent]] | None = (
            None  # while an overridden `_save_checkpoint` runs
        )
        self._resuming: tuple[Storage, str] | None = None

    @property
    def is_resuming(self) -> bool:
        """Whether the run is being restored from a checkpoint."""
        return self._resuming is not None

    def load_by_override(self, storage: Storage, name: str) -> None:
        """Let the user's methods load components of the checkpoint `name`, in the order of transformers."""
        folder = storage.capabilities.local_folder
        self._resuming = storage, name
        try:
            for hook, _ in self._parts.hooks.loads_state:
                hook(joined(folder or storage.capabilities.location, name))
        finally:
            self._resuming = None

    def load_components(self, components: Collection[str]) -> None:
        """Load components of the checkpoint that the run resumes from, on behalf of an overridden method."""
        assert self.resumed_from is not None
        contents = cast(CheckpointContents, self.contents)
        contents.restore_components(components, self.resumed_from.manifest.files, self.resumed_from.files)

    def prepare(self) -> None:
        """Allocate the snapshots, if the run saves."""
        if self._parts.args.save_strategy != "no":
            self._choose_background()
            super().prepare()

    def take(self, state: RunState) -> list[AnyEvent]:
        """Take a checkpoint on behalf of a method of the user's, and wait for it; return the events for the caller.

        All but `Saved`, because the user's method announces the save.
        """
        if self.take_within is not None:
            return self.take_within(state)
        return [event for event in (*self.save(state), *self.finish()) if not isinstance(event, Saved)]

    def close(self) -> Sequence[AnyEvent]:
        """Wait for the save in flight; see `CheckpointStore.close`. Late observers learn what it published."""
        events = super().close()
        for event in events:
            if isinstance(event, CheckpointPublished):  # by a run that failed right after a save
                self._parts.dispatcher.dispatch_late(event)
        return events

    def load_best(self, state: RunState) -> None:
        """Load the weights of the best checkpoint, if the run is to end with them."""
        log_best(self.storage, self._parts.args, state)
        super().load_best(state)

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Take a checkpoint; see `Checkpoints.save`."""
        self._parts.hooks.store_flos.call_override()
        self._settle_counters()
        state.callbacks = callbacks_state(self._parts.callback_handler, self._parts.control, saving=True)
        state.trackers = self._trackers()
        self._choose_background()
        collectives = self._parts.adapters.collectives
        if self._parts.args.save_async and self._parts.adapters.mesh.size > 1:  # in the background only if on all ranks
            own = [float(self.background is not None)]
            (everywhere,) = collectives.start_reduction(own, Reduction.MINIMUM).result()
            self.background = self._parts.adapters.background if everywhere else None
        return super().save(state, required)

    def _choose_background(self) -> None:
        hooks = self._parts.hooks
        listens = self._parts.callback_handler.overriding("on_save") or hooks.writes_checkpoint or hooks.follows_saves
        in_background = self._parts.args.save_async and not listens
        self.background = self._parts.adapters.background if in_background else None


def _environment_of(adapters: Adapters) -> dict[str, str]:
    """Return facts on which the last bits of a result may depend."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **adapters.framework.environment(),
        "device": adapters.device.name,
        "precision": adapters.precision.name,
    }


def refuse_unwritable(args: TrainingArguments, storage: Storage) -> None:
    """Raise ConfigurationError if the run saves to a folder that cannot be written to, or with a public key."""
    location, folder = str(args.output_dir), storage.capabilities.local_folder
    if str(args.save_strategy) == "no":
        return
    refuse_public_key(storage)
    if is_elsewhere(location):
        refuse_unreachable(location, storage)
    if folder is None:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"output_dir={args.output_dir!r} cannot be written to ({error}); choose another folder, or "
            "save_strategy='no'."
        ) from error


# Resuming


def restore(parts: TrainerParts, run: Run[Any, Any], store: RunCheckpoints, resume_from: str | bool | None) -> None:
    """Restore a new run from a checkpoint: a folder by its path, or with True the run's newest good one.

    "auto" is True if there is one, and otherwise leaves the run at its start; a finished run has no step left.
    Raises CheckpointError if there is no such checkpoint, or it does not fit the run.
    """
    if resume_from is None or resume_from is False:
        return
    from hexloop.app.assembly.torch.transformers_checkpoints.files import refuse_transformers_checkpoint

    if resume_from is not True:
        refuse_transformers_checkpoint(str(resume_from))
    store.exclusive = resume_from == AUTO
    storage, name = store.storage, store.latest
    if resume_from in (True, AUTO):
        state = store.resume()
        name = store.latest
    else:
        storage, name = named_checkpoint(store.storage, str(resume_from))
        try:
            state = store.resume(name, None if storage is store.storage else storage)
        except CheckpointError:
            if storage.capabilities.local_folder is not None:
                refuse_missing_checkpoint(parts, str(resume_from))
            raise
    if state is None:
        if resume_from == AUTO:
            return
        if (folder := store.storage.capabilities.local_folder) is not None:
            for step in checkpoint_steps(store.storage):  # the error for one of transformers tells how to import it
                refuse_transformers_checkpoint(os.path.join(folder, checkpoint_name(step)))
        raise MissingCheckpointError(
            "resume_from_checkpoint=True found no good checkpoint in "
            f"{store.storage.capabilities.location}; name one, or train from the start."
        )
    new = run.state
    if parts.args.should_log and (new.seed, new.data_seed) != (state.seed, state.data_seed):
        warnings.warn(
            f"The checkpoint was written with seed {state.seed} and data_seed {state.data_seed}, and this run has "
            f"{new.seed} and {new.data_seed}, so the order of samples changes from here on.",
            stacklevel=2,
        )
    if parts.args.ignore_data_skip:
        state.position = state.batches = 0
    run.state = state
    if resume_from == AUTO and finished_at(parts.adapters.storage, parts.args, store.latest) is not None:
        state.due = []
        run.control.should_training_stop = True
    assert name is not None
    if parts.args.should_log:
        warn_of_other_arguments(parts, storage, name)
    parts.hooks.load_callback_state()
    store.load_by_override(storage, name)


# Completion of a run


def mark_finished(storage: Storage, args: TrainingArguments, state: RunState, last: str | None) -> None:
    """Record that a run with the newest checkpoint `last` is finished, as long as no arguments make it longer.

    A checkpoint cannot state this itself, because a run may end after its last one. Resuming from any other checkpoint
    leaves steps to train.
    """
    try:
        ended_with = None if last is None else read_manifest(storage, last).session
        document = {"run": state.run, "step": state.step, "checkpoint": last, "session": ended_with}
        for path in (FINISHED, EARLIER[FINISHED]):
            storage.remove(path)
        storage.write(FINISHED, [f"{json.dumps({**document, **_length(args)}, indent=2)}\n".encode()])
        storage.sync([FINISHED])
    except (CheckpointError, StorageError) as error:
        warnings.warn(
            f"The completion marker of the run could not be written ({error}); resume_from_checkpoint='auto' will "
            "resume from its last checkpoint.",
            stacklevel=2,
        )


def finished_at(storage: Storage, args: TrainingArguments, chosen: str | None = None) -> int | None:
    """Return the step at which a run reached the end that `args` define, if it ended with the checkpoint `chosen`.

    chosen: None for the good one that the only run in the storage would resume from. Returns None if the run did not
    end with it, or if there are several runs.
    """
    path = next((path for path in (FINISHED, EARLIER[FINISHED]) if _has(storage, path)), None)
    if path is None:
        return None
    try:
        found = finish_in(read_json(read_bytes(storage.read(path))), path)
    except (ValueError, CheckpointError, IrregularFileError):
        return None  # incomplete after a crash, or not hexloop's
    same = all(getattr(found, name) == value for name, value in _length(args).items())
    name = chosen or _next(storage)
    if not same or name is None:
        return None
    try:
        manifest = read_manifest(storage, name)
        if (manifest.run, name, manifest.session) != (found.run, found.checkpoint, found.session):
            return None
        if chosen is None:
            verify(storage, name)
    except CheckpointError:
        return None
    return found.step


def _has(storage: Storage, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in {entry.name for entry in storage.list(folder)}


def _next(storage: Storage) -> str | None:
    """Return the checkpoint that the only run in the storage would resume from; None if there are several runs."""
    with suppress(StorageError):
        publish_staged(storage)
    manifests = readable_manifests(storage)
    alone = len({manifest.run for manifest in manifests.values()}) == 1
    return next(newest_first(manifests)) if alone else None


def _length(args: TrainingArguments) -> dict[str, float]:
    return {"max_steps": args.max_steps, "num_train_epochs": args.num_train_epochs}


# Callbacks


def callbacks_state(handler: CallbackHandler, control: TrainerControl, saving: bool = False) -> dict[str, Any]:
    """Return the state of the callbacks and of the control, as it is while `saving`, by class name."""
    switches = replace(control, should_save=saving or control.should_save)
    return export_states([*handler.callbacks, switches])


def restore_callbacks(
    handler: CallbackHandler,
    control: TrainerControl,
    states: Mapping[str, Any],
    notices: Notices,
    rebuild: bool = False,
) -> None:
    """Restore the attributes of each callback, or with `rebuild` replace each by one that is built from its state."""
    *restored, switches = restore_states([*handler.callbacks, control], states, notices)
    if rebuild:
        handler.callbacks = restored
        control.take_over(replace(cast(TrainerControl, switches), should_training_stop=control.should_training_stop))
        return
    for callback, source in zip(handler.callbacks, restored, strict=True):
        if source is not callback:
            for name in source.state().get("attributes", {}):  # type: ignore[attr-defined]
                setattr(callback, name, getattr(source, name))
