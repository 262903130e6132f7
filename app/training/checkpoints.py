"""The checkpoints of a Trainer's run."""

from __future__ import annotations

import os
import platform
import tempfile
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from hexloop.adapters.contents.checkpoint import CheckpointContents
from hexloop.adapters.storage.local import LocalStorage
from hexloop.adapters.trainable.torch.model_state import ModelState
from hexloop.adapters.trainable.torch.optimizer_state import OptimizerState
from hexloop.app.callbacks import export_states, restore_states
from hexloop.app.training.saving import companion_files
from hexloop.domain.checkpoints.policy import CheckpointPolicy
from hexloop.domain.checkpoints.store import CheckpointStore
from hexloop.domain.errors import CheckpointError, ConfigurationError
from hexloop.domain.events import AnyEvent
from hexloop.domain.run import Run
from hexloop.domain.state import RunState
from hexloop.ports.state import Exportable
from hexloop.ports.storage import Storage

if TYPE_CHECKING:
    from hexloop.app.trainer import Trainer


class RunCheckpoints:
    """A store, before each of whose saves the callbacks' state and the waiting counts are brought into the run's."""

    def __init__(self, trainer: Trainer, store: CheckpointStore) -> None:
        self._trainer = trainer
        self._store = store
        self.load_best, self.finish, self.close = store.load_best, store.finish, store.close

    def save(self, state: RunState) -> Iterator[AnyEvent]:
        """Take a checkpoint; see `Checkpoints.save`."""
        if self._trainer.session is not None:
            self._trainer.session.settle_counters()
        state.callbacks = export_states(_stateful(self._trainer))
        return self._store.save(state)


def make_store(trainer: Trainer, run: Run[Any, Any], storage: Storage) -> CheckpointStore:
    """Who writes and reads this run's checkpoints on `storage`."""
    args = trainer.args
    return CheckpointStore(
        storage,
        CheckpointContents(_exportables(trainer, run), lambda: companion_files(trainer)),
        CheckpointPolicy(args.save_total_limit, keep_best=args.load_best_model_at_end),
        environment=_environment(trainer),
        load_best_at_end=args.load_best_model_at_end,
        world_size=args.world_size,
    )


def _exportables(trainer: Trainer, run: Run[Any, Any]) -> dict[str, Exportable]:
    """Whoever keeps something between steps, by the name of its file."""
    model = trainer.adapters.parallelism.unwrap(trainer.model)
    weights: dict[str, Exportable] = {"model": ModelState(model)}
    if trainer.args.save_only_model:
        return weights
    return {
        **weights,
        "optimizer": OptimizerState(model, trainer.optimizer),
        "scheduler": run.scheduler,
        "scaler": trainer.adapters.precision,
        "losses": run.losses,
        "data": run.batches,
        "random": trainer.adapters.device,
    }


def _environment(trainer: Trainer) -> dict[str, str]:
    """Facts on which the last bits of a result may depend."""
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": str(torch.get_num_threads()),
        "device": trainer.adapters.device.name,
        "precision": trainer.adapters.precision.name,
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


def restore(trainer: Trainer, run: Run[Any, Any], store: CheckpointStore, resume_from: str | bool | None) -> None:
    """Put a new run where a checkpoint left off: a folder by its path, or with True the newest good one of the run's.

    Raises CheckpointError where there is none, or where it does not fit.
    """
    if resume_from is None or resume_from is False:
        return
    state = store.resume() if resume_from is True else _resume_folder(trainer, run, store, str(resume_from))
    if state is None:
        raise CheckpointError(
            "You chose resume_from_checkpoint=True, but there is no good checkpoint in "
            f"{trainer.adapters.storage.capabilities.location}; name one, or train from the start."
        )
    _warn_of_another_order(run.state, state)
    if trainer.args.ignore_data_skip:
        state.position = state.batches = 0
    run.state = state
    restored = restore_states(_stateful(trainer), state.callbacks)[:-1]  # the switches are in the state's `due`
    if trainer.args.restore_callback_states_from_checkpoint:
        trainer.callback_handler.callbacks = restored
    else:
        _take_attributes(trainer.callback_handler.callbacks, restored)


def _stateful(trainer: Trainer) -> list[Any]:
    """Whoever may keep something in a checkpoint under the name of its class, as the reference library writes them."""
    return [*trainer.callback_handler.callbacks, trainer.control]


def _resume_folder(trainer: Trainer, run: Run[Any, Any], store: CheckpointStore, folder: str) -> RunState | None:
    """Resume from a folder of the run's own storage, or of anywhere else on this machine."""
    own = trainer.adapters.storage.capabilities.local_folder
    parent, name = os.path.split(os.path.abspath(folder))
    if own is None and os.sep not in folder:
        return store.resume(folder)
    if own is not None and os.path.abspath(own) == parent:
        return store.resume(name)
    return make_store(trainer, run, LocalStorage(parent)).resume(name)


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


def refuse_unwritable(trainer: Trainer) -> None:
    """Raise ConfigurationError where the run is to save to a folder that cannot be written to."""
    folder = trainer.adapters.storage.capabilities.local_folder
    if folder is None or str(trainer.args.save_strategy) == "no":
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(
            [
                f"You chose output_dir={trainer.args.output_dir!r}, but it cannot be written to ({error}); "
                "choose another folder, or save_strategy='no'."
            ]
        ) from error
