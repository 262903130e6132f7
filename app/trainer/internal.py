"""The internal methods of transformers' Trainer that subclasses override."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen
from torch import Tensor, nn

from hexloop.app.run import checkpoints
from hexloop.app.run.checkpoint_folders import rotate, sorted_checkpoints
from hexloop.app.run.session import Session
from hexloop.app.trainer.data import TrainerData
from hexloop.app.trainer.publishing import TrainerPublishing
from hexloop.app.wiring import checkpoint_files
from hexloop.app.wiring.data import map_entries, prepared_inputs
from hexloop.app.wiring.evaluation import PredictedBatch, predicted_items, run_loss
from hexloop.app.wiring.model import add_embedding_noise, best_metric
from hexloop.app.wiring.parts import is_overridden, standard
from hexloop.app.wiring.tensors import nested_arrays
from hexloop.domain.errors import ConfigurationError, RunStateError

NOT_WRITTEN = (
    "{method} writes nothing outside a save: hexloop writes this state into checkpoints by itself, without pickle. "
    "Override it to write files of your own into each checkpoint, or call request_save() or save_model()."
)


@frozen
class Removable:
    """A hook, with the method that removes it."""

    remove: Callable[[], None]


class TrainerInternals(TrainerData, TrainerPublishing):
    """Internal methods, each called at the moment at which transformers calls it, if it is overridden.

    What an overridden method of a resume loads is not loaded by hexloop before; its standard version loads it.
    """

    neftune_hook_handle: Removable | None = None
    """The noise that `_activate_neftune` added; None outside of loops of user code."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Evaluate; see `Trainer.evaluate`."""
        raise NotImplementedError

    def _live(self, method: str) -> Session:
        if self._session is None:
            raise RunStateError(f"{method} needs a live run; call train() or stream() instead.")
        return self._session

    # A step

    @standard
    def _prepare_input(self, data: Any) -> Any:
        """Return `data` (a tensor, or nested mappings, lists and tuples of them) with its tensors on the device.

        If overridden, `_prepare_inputs` calls it with each batch, and this with each entry of one.
        """
        if not isinstance(data, Mapping | list | tuple | Tensor):
            return data
        if isinstance(data, Tensor) or not is_overridden(self, "_prepare_input"):
            return prepared_inputs(data, self.adapters.device.name)
        return map_entries(self._prepare_input, data)

    @standard
    def _get_num_items_in_batch(self, batch_samples: Sequence[Any], device: Any) -> Any:
        """Return the items of the micro-batches of an optimizer step, over all processes, on the device.

        None if the loss needs no count, or no run is live. If overridden, it counts the items of every step, and those
        of each batch of an evaluation.
        """
        if isinstance(batch_samples, PredictedBatch):
            parts = self._collect_parts()
            return predicted_items(parts, run_loss(parts), batch_samples[0])
        if not batch_samples or self._session is None:
            return None
        return self._session.learner.count_items(batch_samples)

    @standard
    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count the tokens of a micro-batch for `include_num_input_tokens_seen`. If overridden, it counts those of all.

        Raises RunStateError if no run is live.
        """
        counter = self._live("_track_num_input_tokens").counters.tokens
        if counter is not None:
            counter(inputs)

    @standard
    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip the gradients of `model` to `max_grad_norm`; return their norm before, a scalar on the device.

        If overridden, it clips in every optimizer step whose `max_grad_norm` is above 0.
        """
        return nn.utils.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    @standard
    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return `grad_norm`, or the norm of the gradients of `model` if that is None.

        If overridden, it returns the norm that is logged.
        """
        return nn.utils.clip_grad_norm_(model.parameters(), float("inf")) if grad_norm is None else grad_norm

    @standard
    def _get_learning_rate(self) -> float:
        """Return the rate of the first parameter group. If overridden, it returns the rate that is logged."""
        return float(self.get_learning_rates()[0])

    # Evaluation

    @standard
    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, float]:
        """Evaluate within a run, and pass the metrics to a schedule that follows one; return the metrics.

        If overridden, it replaces every evaluation of a run. skip_scheduler: leave the schedule as it is.
        """
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        if is_overridden(self, "_report_to_hp_search"):
            self._report_to_hp_search(trial, self.state.global_step, metrics)
        if self._session is not None and not skip_scheduler:
            self._session.run.scheduler.observe(metrics)
        return metrics

    @standard
    def _determine_best_metric(self, metrics: dict[str, float], trial: Any = None) -> bool:
        """Return whether an evaluation is the best so far, and if so, record it in `state`.

        If overridden, it is called after every evaluation of a run. Raises ConfigurationError if the run needs
        `metric_for_best_model`, and it is not among the metrics.
        """
        return best_metric(self.args).observe(self.state.run_state, metrics)

    @standard
    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        """No-op: no hyperparameter search is in progress. If overridden, it receives each evaluation of a run."""

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        """Return the tensors of all processes, concatenated, at any depth of lists, tuples and mappings; None for None.

        name: ignored, as in transformers.
        """
        return None if tensors is None else self.accelerator.gather(tensors)

    def _gather_and_numpify(self, tensors: Any, name: str | None = None) -> Any:
        """Return what `_nested_gather` returns, as arrays."""
        return nested_arrays(self._nested_gather(tensors))

    def _pad_across_processes(self, tensor: Any, pad_index: int = -100) -> Any:
        """Return the tensors of this process, padded to the longest of all processes in their second dimension."""
        return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)

    # Folders and saves

    @standard
    def _get_output_dir(self, trial: Any = None) -> str:
        """Return the folder of the run's checkpoints. If overridden, each run saves to the folder that it returns."""
        return self._received(None)

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
        if self._session is not None and model is None and self._session.checkpoints.is_resuming:
            self._session.checkpoints.load_components(("model",))
            return
        target = self._collect_parts().unwrapped_model if model is None else model
        resume_from_checkpoint = self._received(resume_from_checkpoint)
        self._issue_warnings_after_load(checkpoint_files.load_folder_weights(target, resume_from_checkpoint))

    @standard
    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint: that of the live run, or else `state.best_model_checkpoint`.

        Raises RunStateError if there is neither.
        """
        session, best = self._session, self.state.best_model_checkpoint
        if session is not None:
            session.checkpoints.load_best_now(session.run.state)
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

    # Model

    def _activate_neftune(self, model: Any) -> Any:
        """Add the noise of `neftune_noise_alpha` to the embeddings of `model`, in training mode; return the model.

        For loops of user code: a run adds and removes it by itself. `neftune_hook_handle.remove()` removes it. Raises
        ConfigurationError if there is no `neftune_noise_alpha`, or the model does not name its embeddings.
        """
        alpha = self.neftune_noise_alpha
        if alpha is None:
            raise ConfigurationError("_activate_neftune needs the strength of the noise; set neftune_noise_alpha.")
        self.neftune_hook_handle = Removable(add_embedding_noise(self.accelerator.unwrap_model(model), alpha))
        return model

    def _deactivate_neftune(self, model: Any) -> None:
        """Remove the noise that `_activate_neftune` added. Raises RunStateError if it added none."""
        if self.neftune_hook_handle is None:
            raise RunStateError(
                "_deactivate_neftune removes the noise that _activate_neftune added, but it added none."
            )
        self.neftune_hook_handle.remove()
        self.neftune_hook_handle = None

    @standard
    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Move `model` to `device`. If overridden, the constructor calls it, and a run with a new model."""
        model.to(device)

    @standard
    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """Return `model`. If overridden, the engine prepares the model that it returns, and evaluations use it.

        training: False for an evaluation, which passes its loader.
        """
        return model

    @standard
    def _validate_args(self) -> None:
        """No-op: the constructor has checked the arguments. If overridden, the constructor calls it."""
