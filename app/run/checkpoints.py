"""The checkpoints of a Trainer's run."""

from __future__ import annotations

import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.snapshots.torch import TorchSnapshots
from hexloop.app.arguments import TrainingArguments
from hexloop.app.callbacks import CallbackHandler, TrainerControl, export_states, restore_states
from hexloop.app.run.compatibility import RunSetup
from hexloop.app.run.journal import note_of_saves
from hexloop.app.run.resume import AUTO, finished_at
from hexloop.app.run.saving import companion_files
from hexloop.app.wiring.parts import TrainerParts
from hexloop.app.wiring.state import model_state, optimizer_state, rank_files
from hexloop.app.wiring.storage import as_location, is_elsewhere, refuse_unreachable, split_location, storage_for
from hexloop.domain.checkpoints.commit import CheckpointPolicy
from hexloop.domain.checkpoints.names import checkpoint_name
from hexloop.domain.checkpoints.reading import checkpoint_steps
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.events import AnyEvent, Saved, SaveFailed, SaveSkipped
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.ports.collectives import Reduction
from hexloop.ports.state import Exportable
from hexloop.ports.storage import Storage


class RunCheckpoints:
    """A store, before each of whose saves the callbacks' state and the waiting counts are brought into the run's.

    Where a callback listens for saves, or a subclass writes the model itself, the save is published before they hear.
    """

    def __init__(self, parts: TrainerParts, store: CheckpointStore, settle_counters: Callable[[], None]) -> None:
        self._parts = parts
        self._settle_counters = settle_counters
        self._store = store
        self._required = True
        self._taken: list[AnyEvent] = []
        self.collect = store.collect
        self.finish = store.finish
        self.close = store.close

    def writing(self) -> bool:
        """Whether a save is in flight; see `CheckpointStore.writing`."""
        return self._store.writing

    @property
    def has_news(self) -> bool:
        """Whether there is anything to tell; see `Checkpoints.has_news`."""
        return self._store.has_news

    @property
    def latest(self) -> str | None:
        """The newest checkpoint that led to where the run stands; see `CheckpointStore.latest`."""
        return self._store.latest

    def prepare(self) -> None:
        """Make room for snapshots, where any are to be taken."""
        if self._parts.args.save_strategy != "no":
            self._choose_way()
            self._store.prepare()

    def save(self, state: RunState, required: bool = True) -> Iterator[AnyEvent]:
        """Take a checkpoint, by an overridden `_save_checkpoint` where there is one; see `Checkpoints.save`."""
        if not self._parts.hooks.save_checkpoint.overridden:
            return self._save(state, required)
        return self._save_by_override(state, required)

    def take(self, state: RunState) -> None:
        """Take a checkpoint on behalf of an overridden `_save_checkpoint`."""
        self._taken.extend(self._save(state, self._required))

    def load_best(self, state: RunState) -> None:
        """Put the weights of the best checkpoint in force, by an overridden `_load_best_model` where there is one."""
        own = self._parts.hooks.load_best_model.overridden and self._parts.args.load_best_model_at_end
        if own and state.best_checkpoint is not None:
            self._parts.hooks.load_best_model()
        else:
            self._store.load_best(state)

    def load_best_now(self, state: RunState) -> None:
        """Put the weights of the best checkpoint in force, where the run is to end with them."""
        self._store.load_best(state)

    def _save_by_override(self, state: RunState, required: bool) -> Iterator[AnyEvent]:
        """Callbacks hear of the save when the method has returned, whatever it did."""
        self._required, self._taken = required, []
        try:
            self._parts.hooks.save_checkpoint(self._parts.model_wrapped, None)
        finally:
            self._required, told = True, self._taken
        if not any(isinstance(event, Saved | SaveFailed | SaveSkipped) for event in told):
            yield Saved(state.step, checkpoint_name(state.step))
        yield from told

    def _save(self, state: RunState, required: bool) -> Iterator[AnyEvent]:
        self._settle_counters()
        state.callbacks = callbacks_state(self._parts.callback_handler, self._parts.control, saving=True)
        self._choose_way()
        if self._parts.args.save_async:
            self._agree_on_way()
        return self._store.save(state, required)

    def _agree_on_way(self) -> None:
        """Let no rank write in the background if a callback of one of them listens for saves."""
        collectives = self._parts.adapters.collectives
        if collectives.world_size > 1:
            in_background = self._store.background is not None
            (everywhere,) = collectives.start_reduction([float(in_background)], Reduction.MINIMUM).result()
            self._store.background = self._parts.adapters.background if everywhere else None

    def _choose_way(self) -> None:
        heard = self._parts.callback_handler.overriding("on_save") or self._parts.hooks.writes_model
        in_background = self._parts.args.save_async and not heard
        self._store.background = self._parts.adapters.background if in_background else None


def make_store(
    parts: TrainerParts, run: Run[Any, Any], asked_accumulation: int, now: Callable[[], TrainerParts]
) -> CheckpointStore:
    """Return what writes and reads this run's checkpoints.

    asked_accumulation: `gradient_accumulation_steps` as the user passed it. now: collects the parts as they stand then.
    """
    storage = parts.adapters.storage
    args, kept, collectives = parts.args, exportables(parts, run), parts.adapters.collectives
    return CheckpointStore(
        storage,
        CheckpointContents(
            kept,
            lambda: companion_files(now()),
            snapshots=snapshots_for(parts),
            setup=RunSetup(parts, run, asked_accumulation),
            ranks=rank_files(parts),
            written={"model"} if args.save_only_model else None,
        ),
        CheckpointPolicy(args.save_total_limit, keep_best=args.load_best_model_at_end),
        environment=_environment(parts),
        load_best_at_end=args.load_best_model_at_end,
        note=note_of_saves(parts.adapters.journal, storage),
        collectives=collectives,
        background=parts.adapters.background if args.save_async else None,
        skip_when_busy=args.save_when_busy == "skip",
    )


def snapshots_for(parts: TrainerParts) -> TorchSnapshots:
    """Memory for the trainer's state, whose copies are done before the optimizer changes what they copy."""
    snapshots = TorchSnapshots()
    if parts.adapters.device.name.startswith("cuda"):
        parts.optimizer.register_step_pre_hook(lambda *_: snapshots.wait_before_update())
    return snapshots


def exportables(parts: TrainerParts, run: Run[Any, Any]) -> dict[str, Exportable]:
    """Whoever keeps something between steps, by the name of its file."""
    return {
        "model": model_state(parts),
        "optimizer": optimizer_state(parts),
        "scheduler": run.scheduler,
        "scaler": parts.adapters.precision,
        "losses": run.losses,
        "data": run.batches,
        "random": parts.adapters.device,
    }


def _environment(parts: TrainerParts) -> dict[str, str]:
    """Facts on which the last bits of a result may depend."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": parts.adapters.device.name,
        "precision": parts.adapters.precision.name,
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


def restore(parts: TrainerParts, run: Run[Any, Any], store: CheckpointStore, resume_from: str | bool | None) -> None:
    """Put a new run where a checkpoint left off: a folder by its path, or with True the newest good one of the run's.

    "auto" is True where there is any, and leaves the run at its start where there is none; a run that is finished has
    no step left then. Raises CheckpointError where there is none, or where it does not fit.
    """
    if resume_from is None or resume_from is False:
        return
    if resume_from is not True:
        from hexloop.app.transformers_checkpoints.files import refuse_transformers_checkpoint

        refuse_transformers_checkpoint(str(resume_from))
    store.exclusive = resume_from == AUTO
    newest = resume_from in (True, AUTO)
    state = store.resume() if newest else _resume_folder(parts, store, str(resume_from))
    if state is None:
        if resume_from == AUTO:
            return
        _refuse_transformers_checkpoints(parts.adapters.storage)
        raise CheckpointError(
            "You chose resume_from_checkpoint=True, but there is no good checkpoint in "
            f"{parts.adapters.storage.capabilities.location}; name one, or train from the start."
        )
    if parts.args.should_log:
        _warn_of_another_order(run.state, state)
    if parts.args.ignore_data_skip:
        state.position = state.batches = 0
    run.state = state
    if resume_from == AUTO and finished_at(parts.adapters.storage, parts.args, store.latest) is not None:
        state.due = []
        run.control.should_training_stop = True
    rebuild = parts.args.restore_callback_states_from_checkpoint
    restore_callbacks(parts.callback_handler, parts.control, state.callbacks, rebuild)


def callbacks_state(handler: CallbackHandler, control: TrainerControl, saving: bool = False) -> dict[str, Any]:
    """Return the state of the callbacks and of the control, as it is while `saving`, by class name."""
    switches = replace(control, should_save=saving or control.should_save)
    return export_states([*handler.callbacks, switches])


def restore_callbacks(
    handler: CallbackHandler, control: TrainerControl, states: Mapping[str, Any], rebuild: bool = False
) -> None:
    """Restore the attributes of each callback, or with `rebuild` replace each by one that is built from its state."""
    *restored, switches = restore_states([*handler.callbacks, control], states)
    if rebuild:
        handler.callbacks = restored
        control.take_over(replace(cast(TrainerControl, switches), should_training_stop=control.should_training_stop))
    else:
        _take_attributes(handler.callbacks, restored)


def _refuse_transformers_checkpoints(storage: Storage) -> None:
    """Raise CheckpointError, with the command that reads it, for the newest checkpoint of another library."""
    from hexloop.app.transformers_checkpoints.files import refuse_transformers_checkpoint

    folder = storage.capabilities.local_folder
    for step in checkpoint_steps(storage) if folder is not None else []:
        refuse_transformers_checkpoint(os.path.join(folder or "", checkpoint_name(step)))


def _resume_folder(parts: TrainerParts, store: CheckpointStore, folder: str) -> RunState | None:
    """Resume from a folder of the run's own storage, or of anywhere else, by its path or URL."""
    own = parts.adapters.storage.capabilities
    if own.local_folder is None and os.sep not in folder:
        return store.resume(folder)
    parent, name = split_location(folder)
    if parent == as_location(own.local_folder or own.location):
        return store.resume(name)
    return store.resume(name, storage_for(parent))


def _warn_of_another_order(new: RunState, saved: RunState) -> None:
    if (new.seed, new.data_seed) != (saved.seed, saved.data_seed):
        warnings.warn(
            f"The checkpoint was written with seed {saved.seed} and data_seed {saved.data_seed}, and this run has "
            f"{new.seed} and {new.data_seed}, so the samples come in another order from here on.",
            stacklevel=2,
        )


def _take_attributes(callbacks: list[Any], restored: list[Any]) -> None:
    """Give each callback, as the user constructed it, what its restored twin remembers from the run."""
    for callback, twin in zip(callbacks, restored, strict=True):
        if twin is not callback:
            for name in twin.state().get("attributes", {}):
                setattr(callback, name, getattr(twin, name))


def refuse_unwritable(args: TrainingArguments, storage: Storage) -> None:
    """Raise ConfigurationError if the run saves to a folder that cannot be written to."""
    place = str(args.output_dir)
    folder = storage.capabilities.local_folder
    if str(args.save_strategy) == "no":
        return
    if is_elsewhere(place):
        refuse_unreachable(place, storage)
    if folder is None:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            [
                f"You chose output_dir={args.output_dir!r}, but it cannot be written to ({error}); "
                "choose another folder, or save_strategy='no'."
            ]
        ) from error
