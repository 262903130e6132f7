"""The internal methods of transformers' Trainer that subclasses override, and its internal attributes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hexloop.app.run import checkpoints
from hexloop.app.run.session import Session
from hexloop.app.trainer.data import TrainerData
from hexloop.app.wiring import checkpoint_files
from hexloop.app.wiring.data import prepared_inputs
from hexloop.app.wiring.evaluation import standard_loss
from hexloop.app.wiring.parts import standard
from hexloop.domain.errors import RunStateError

NOT_WRITTEN = (
    "{method} writes nothing outside a save: hexloop writes this state into checkpoints by itself, without pickle. "
    "Override it to write files of your own into each checkpoint, or call request_save() or save_model()."
)


class TrainerInternals(TrainerData):
    """Internal methods, each called at the moment at which transformers calls it, if it is overridden.

    What an overridden method of a resume loads is not loaded by hexloop before; its standard version loads it.
    """

    _trial: Any = None
    """The trial of a hyperparameter search; None outside of one."""

    hp_search_backend: Any = None
    """The back end of a hyperparameter search; None outside of one."""

    current_flos: float = 0.0
    """Operations since the last `store_flos`; always 0, because `state.total_flos` contains them."""

    gather_function: Any = None
    """How evaluations gather; None: as hexloop gathers them, each row once."""

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

        If overridden, `_prepare_inputs` calls it with each batch.
        """
        if not isinstance(data, Mapping | list | tuple | Tensor):
            return data
        return prepared_inputs(data, self.adapters.device.name)

    @standard
    def _get_num_items_in_batch(self, batch_samples: Sequence[Any], device: Any) -> Any:
        """Return the items of the micro-batches of an optimizer step, over all processes, on the device.

        None if the loss needs no count, or no run is live. If overridden, it counts the items of every step.
        """
        if not batch_samples or self._session is None:
            return None
        return self._session.learner.count_items(batch_samples)

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
        """Evaluate within a run; return the metrics. If overridden, it replaces every evaluation of a run."""
        return self.evaluate(ignore_keys=ignore_keys_for_eval)

    # Folders and saves

    @standard
    def _get_output_dir(self, trial: Any = None) -> str:
        """Return the folder of the run's checkpoints. If overridden, each run saves to the folder that it returns."""
        return str(self.args.output_dir)

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
        checkpoints.restore_callbacks(self.callback_handler, self.control, states, rebuild)

    def _load_resumed(self, checkpoint: str | None, method: str, *components: str) -> None:
        if checkpoint is None:
            return
        session = self._live(method)
        if not session.checkpoints.is_resuming:
            raise RunStateError(f"{method} loads the checkpoint that a run resumes from, only while it resumes.")
        session.checkpoints.load_components(components)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Log the keys that were missing in loaded weights, and those that the model does not have."""
        log = logging.getLogger("hexloop").warning
        if missing := getattr(load_result, "missing_keys", None):
            log("The loaded weights lack %s; these keep the values that they had.", ", ".join(missing))
        if unexpected := getattr(load_result, "unexpected_keys", None):
            log("The loaded weights contain %s, which the model does not have.", ", ".join(unexpected))

    # Model

    @standard
    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Move `model` to `device`. If overridden, it places the model of a run."""
        model.to(device)

    @standard
    def _wrap_model(self, model: Any, training: bool = True, dataloader: Any = None) -> Any:
        """Return `model`. If overridden, the engine prepares the model that it returns."""
        return model

    @standard
    def _validate_args(self) -> None:
        """No-op: the constructor has checked the arguments. If overridden, the constructor calls it."""

    # Attributes

    @property
    def is_deepspeed_enabled(self) -> bool:
        """Whether the run trains with DeepSpeed."""
        return bool(self.args.deepspeed)

    @property
    def is_fsdp_enabled(self) -> bool:
        """Whether the run trains with FSDP."""
        sharded = self.adapters.parallelism.capabilities.sharded and not self.is_deepspeed_enabled
        return bool(self.args.fsdp) or sharded

    @property
    def is_fsdp_xla_enabled(self) -> bool:
        """False: there is no FSDP on XLA."""
        return False

    is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = is_fsdp_xla_enabled

    @property
    def is_distributed_loading_by_transformers(self) -> bool:
        """False: models that transformers shards while it loads them are refused."""
        return False

    @property
    def deepspeed(self) -> Any:
        """The engine of DeepSpeed, None if the run does not train with it."""
        return self.model_wrapped if self.is_deepspeed_enabled and self.model_wrapped is not self.model else None

    @property
    def hub_model_id(self) -> str | None:
        """The name of the model's repository, as the arguments name it."""
        return self.args.hub_model_id

    @property
    def neftune_noise_alpha(self) -> float | None:
        """The strength of the noise on embeddings, as the arguments define it."""
        return self.args.neftune_noise_alpha

    @property
    def _created_lr_scheduler(self) -> bool:
        """Whether a run made the schedule."""
        return self.lr_scheduler is not None and self.lr_scheduler is self._scheduler_of_run

    @property
    def _globalstep_last_logged(self) -> int:
        """The step of the last log of a loss."""
        return 0 if self._session is None else self._session.run.state.logged_step

    @property
    def _total_loss_scalar(self) -> float:
        """The sum of the losses of all logged steps of the live run."""
        return 0.0 if self._session is None else float(self._session.run.state.loss_total)

    @property
    def _initial_global_step(self) -> int:
        """The step at which the live run started."""
        return 0 if self._session is None else int(self._session.run.start.step)

    @property
    def _initial_num_input_tokens_seen(self) -> int:
        """The input tokens at which the live run started."""
        return 0 if self._session is None else int(self._session.run.start.tokens)

    @property
    def _loss_shifts_labels(self) -> bool:
        """Whether the loss compares each position with the next label."""
        return standard_loss(self._collect_parts()).shifted
