"""The checkpoints of a Trainer: internal methods of transformers' Trainer that subclasses override."""

from __future__ import annotations

from functools import partial
from typing import Any

from hexloop.app.hooks import standard
from hexloop.app.run import checkpoints, saving
from hexloop.app.run.checkpoint_folders import rotate, sorted_checkpoints
from hexloop.app.trainer.attributes import TrainerAttributes
from hexloop.domain.errors import RunStateError

NOT_WRITTEN = (
    "{method} writes nothing outside a save: hexloop writes this state into checkpoints by itself, without pickle. "
    "Override it to write files of your own into each checkpoint, or call request_save() or save_model()."
)


class TrainerCheckpoints(TrainerAttributes):
    """Each method is called at the moment at which transformers calls it, if it is overridden.

    What an overridden method of a resume loads is not loaded by hexloop before; its standard version loads it.
    """

    # Folders and saves

    @standard
    def _get_output_dir(self, trial: Any = None) -> str:
        """Return the folder of the run's checkpoints. If overridden, each run saves to the folder that it returns.

        Within a trial of a search it is the trial's, as `args.output_dir` is.
        """
        return self._received(None)

    @standard
    def _save_checkpoint(self, model: Any, trial: Any = None, metrics: Any = None) -> None:
        """Take a checkpoint of the run as it is, published when this returns.

        If overridden, it replaces the default save. The caller calls `on_save`. In a subclass with its own `train`, it
        writes the model and the state, without optimizer and schedule, to the folder of the step. Otherwise it raises
        RunStateError if no run is live.
        """
        kind: Any = type(self)
        if self._session is None and not kind.train.__module__.startswith("hexloop."):
            folder = f"{self._get_output_dir(trial)}/checkpoint-{self.state.global_step}"
            self._collect_parts().hooks.save_model(folder, _internal_call=True)
            if self.args.should_save:
                saving.save_state(self._collect_parts(), folder)
            return
        session = self._live("_save_checkpoint")
        for event in session.checkpoints.take(session.run.state):
            session.run.resolve_save_requests(event)
            self._dispatcher.dispatch(event)

    @standard
    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """No-op in a save: checkpoints contain this state. If overridden, it may write files into a checkpoint.

        output_dir: a folder whose files become part of the checkpoint. Raises RunStateError if no run is live.
        """
        self._refuse_outside_run("_save_optimizer_and_scheduler")

    @standard
    def _save_scaler(self, output_dir: str) -> None:
        """No-op in a save; see `_save_optimizer_and_scheduler`."""
        self._refuse_outside_run("_save_scaler")

    @standard
    def _save_rng_state(self, output_dir: str) -> None:
        """No-op in a save; see `_save_optimizer_and_scheduler`."""
        self._refuse_outside_run("_save_rng_state")

    def _refuse_outside_run(self, method: str) -> None:
        if self._session is None:
            raise RunStateError(NOT_WRITTEN.format(method=method))

    def _sorted_checkpoints(
        self, output_dir: str | None = None, checkpoint_prefix: str = "checkpoint", use_mtime: bool = False
    ) -> list[str]:
        """Return the paths of the checkpoints in a folder, oldest first; the best one comes after all but the newest.

        use_mtime: by the time of the folder's last change, instead of the step.
        """
        return sorted_checkpoints(
            self._received(output_dir), checkpoint_prefix, use_mtime, self.state.best_model_checkpoint
        )

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None:
        """Remove the oldest checkpoints of this Trainer's run that exceed `save_total_limit`, but never the best.

        Runs do this by themselves after each save. Raises CheckpointError if the newest checkpoint is damaged.
        """
        rotate(self._collect_parts(), None if output_dir is None else self._received(output_dir))

    # Loading

    @standard
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the weights of a checkpoint into the model, or into `model`.

        If overridden, it loads the weights on resume. Raises CheckpointError if the weights are another model's.
        """
        from hexloop.app.assembly.torch.weights import load_folder_weights

        if self._session is not None and model is None and self._session.checkpoints.is_resuming:
            self._session.checkpoints.load_components(("model",))
            return
        target = self._collect_parts().unwrapped_model if model is None else model
        resume_from_checkpoint = self._received(resume_from_checkpoint)
        self._issue_warnings_after_load(load_folder_weights(target, resume_from_checkpoint))

    @standard
    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint: that of the live run, or else `state.best_model_checkpoint`.

        Raises RunStateError if there is neither.
        """
        session, best = self._session, self.state.best_model_checkpoint
        if session is not None:
            session.checkpoints.load_best(session.run.state)
        elif best is None:
            raise RunStateError(
                "_load_best_model needs a live run; call train() or stream(), or set state.best_model_checkpoint."
            )
        else:
            self._load_from_checkpoint(best)

    @standard
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Load optimizer and schedule of the checkpoint that a run resumes from; with None, return at once.

        If overridden, it is called when a run resumes. Raises RunStateError if no run is resuming.
        """
        self._load_resumed(checkpoint, "_load_optimizer_and_scheduler", "optimizer", "scheduler")

    @standard
    def _load_scaler(self, checkpoint: str | None) -> None:
        """Load the loss scale; see `_load_optimizer_and_scheduler`."""
        self._load_resumed(checkpoint, "_load_scaler", "scaler")

    @standard
    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Load the random states; see `_load_optimizer_and_scheduler`."""
        self._load_resumed(checkpoint, "_load_rng_state", "random")

    @standard
    def _load_callback_state(self) -> None:
        """Restore the callbacks from the state of the run. If overridden, it is called when a run resumes."""
        session = self._live("_load_callback_state")
        rebuild = self.args.restore_callback_states_from_checkpoint
        states = session.run.state.callbacks
        checkpoints.restore_callbacks(self.callback_handler, self.control, states, self._notices, rebuild)

    def _load_resumed(self, checkpoint: str | None, method: str, *components: str) -> None:
        if checkpoint is None:
            return
        session = self._live(method)
        if not session.checkpoints.is_resuming:
            raise RunStateError(f"{method} loads the checkpoint that a run resumes from, only while it resumes.")
        session.checkpoints.load_components(components)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Log the keys that were missing in loaded weights, and those that the model does not have."""
        log = partial(self._notices.warn, "other keys")
        if missing := getattr(load_result, "missing_keys", None):
            log(f"The loaded weights have missing keys: {', '.join(missing)}. These keep the values that they had.")
        if unexpected := getattr(load_result, "unexpected_keys", None):
            log(f"The loaded weights have unexpected keys: {', '.join(unexpected)}. The model does not have them.")
