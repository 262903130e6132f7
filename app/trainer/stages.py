"""The stages of `train` that subclasses of transformers' Trainer override."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from hexloop.app.arguments import TrainingArguments
from hexloop.app.run.compatibility import AUTO, absolute_name, likely_checkpoint
from hexloop.app.run.messages import resumed_from
from hexloop.app.run.stages import Finalized
from hexloop.app.trainer.internal import TrainerInternals
from hexloop.app.wiring.parts import is_overridden, standard
from hexloop.app.wiring.storage import as_location, storage_for
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.events import TrainEnded


class TrainOutput(NamedTuple):
    """What `Trainer.train` returns: the steps done, the mean loss over them, and the metrics of the run."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class TrainerStages(TrainerInternals):
    """The methods that together are `train`, each called if it is overridden, at the moment of transformers.

    Their standard versions do what belongs to the stage; `stream` yields no events of a stage that is overridden.
    """

    _resumes_from: tuple[str | bool | None, str | None] = (None, None)
    """What `train` was asked to resume from, and the location that an overridden `_inner_training_loop` received."""

    _is_in_inner_loop: bool = False

    def _drain(self, resume_from: str | bool | None, ignored: list[str] | None) -> TrainOutput:
        raise NotImplementedError

    def _prepare_through_accelerator(self, model: Any, total_steps: int) -> Any:
        raise NotImplementedError

    # The whole run

    def _train_to_the_end(self, resume_from: str | bool | None, ignored: list[str] | None) -> TrainOutput:
        """Train, by an overridden `_inner_training_loop` if there is one; `is_in_train` is true from here on.

        The method receives the folder of the checkpoint that a run resumes from.
        """
        self.is_in_train = True
        try:
            if not is_overridden(self, "_inner_training_loop"):
                return self._drain(resume_from, ignored)
            location = self._location_of(resume_from)
            self._resumes_from = resume_from, location
            return self._inner_training_loop(
                batch_size=self._train_batch_size,
                args=self.args,
                resume_from_checkpoint=location,
                trial=self._trial,
                ignore_keys_for_eval=ignored,
            )
        finally:
            self.is_in_train = False

    @standard
    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: TrainingArguments | None = None,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to the end. If overridden, `train` calls it; `stream` is then refused.

        Raises ConfigurationError if other arguments than the Trainer's, or another batch size, are passed.
        """
        if args is not None and args is not self.args:
            raise ConfigurationError(
                "_inner_training_loop received other arguments than the Trainer has; assign them to trainer.args "
                "before train, or pass self.args."
            )
        if batch_size not in (None, self._train_batch_size):
            raise ConfigurationError(
                f"_inner_training_loop received batch_size={batch_size}, but the run trains on batches of "
                f"{self._train_batch_size}; set per_device_train_batch_size."
            )
        asked, location = self._resumes_from
        if resume_from_checkpoint == location:
            resume_from_checkpoint = asked  # "the newest good one" may mean another if that one is damaged
        nested, self._is_in_inner_loop = self._is_in_inner_loop, True
        try:
            return self._drain(resume_from_checkpoint, ignore_keys_for_eval)
        finally:
            self._is_in_inner_loop, self._resumes_from = nested, (None, None)

    def _refuse_stream(self) -> None:
        """Raise ConfigurationError if a run by `stream` would leave out an overridden method."""
        if is_overridden(self, "_inner_training_loop") and not self._is_in_inner_loop:
            raise ConfigurationError(
                "_inner_training_loop is overridden, and stream() does not call it, because its caller is the loop; "
                "call train(), or remove the override."
            )

    def _location_of(self, resume_from: str | bool | None) -> str | None:
        """Return the location of the checkpoint that a run would resume from; None if there is none."""
        if not resume_from:
            return None
        storage = self.adapters.storage
        return resumed_from(storage, resume_from, likely_checkpoint(storage, resume_from)[1])

    def _named_location(self, resume_from: str | bool | None) -> str | bool | None:
        """Return what a run is to resume from, with the path of a checkpoint made absolute."""
        if not resume_from or resume_from is True or resume_from == AUTO:
            return resume_from
        return absolute_name(self.adapters.storage, self._received(resume_from))

    def _use_folder(self, folder: str) -> None:
        """Let the next run save to `folder`."""
        current = self.adapters.storage.capabilities
        folder = self._started_in.locate(folder)
        if folder != as_location(current.local_folder or current.location):
            self.adapters.storage = storage_for(folder, signatures=current.signatures)
            self.state.checkpoints_folder = folder

    # Preparation

    @standard
    def _update_auto_batch_size(self, batch_size: int) -> None:
        """Train on micro-batches of `batch_size` samples; called for each size that `auto_find_batch_size` tries."""
        self._train_batch_size = batch_size

    @standard
    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> tuple[Any, Any]:
        """Wrap the model, make the optimizer and the schedule for `max_steps`; return the model and the loader.

        If overridden, a run calls it, and trains the model that it returns. The checkpoint is loaded afterwards.
        """
        return self._prepare_through_accelerator(self.model, max_steps), train_dataloader

    def _prepare_run(self, model: Any, total_steps: int, loader: Any, resume_from: str | bool | None) -> Any:
        """Return the prepared model of a run, by an overridden `_prepare_for_training` if there is one."""
        if not is_overridden(self, "_prepare_for_training"):
            return self._prepare_through_accelerator(model, total_steps)
        prepared, returned = self._prepare_for_training(total_steps, loader, self._location_of(resume_from))
        if returned is not loader:
            raise ConfigurationError(
                "_prepare_for_training returned another loader than it received, but the run has already read the "
                "length of the data; override get_train_dataloader to change the loader."
            )
        if self.optimizer is None or self.lr_scheduler is None:
            missing = "optimizer" if self.optimizer is None else "lr_scheduler"
            raise ConfigurationError(
                f"The overridden _prepare_for_training has not set {missing}; call super()._prepare_for_training(...), "
                "or make one."
            )
        self.model_wrapped = prepared
        return prepared

    @standard
    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        """Return the epochs done, and the micro-batches of the current epoch, where the live run starts.

        If overridden, it is called once `state` is that of the run, and may change it; a run that resumes has then
        loaded its checkpoint. ConfigurationError is raised if it returns another position.
        """
        return self._live("_init_training_state").stages.position

    # The epochs and the end

    @standard
    def _run_epoch(
        self,
        model: Any = None,
        epoch: int = 0,
        train_dataloader: Any = None,
        steps_in_epoch: int | None = None,
        num_update_steps_per_epoch: int = 0,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        start_time: float = 0.0,
        resume_from_checkpoint: str | None = None,
        epochs_trained: int = 0,
        steps_trained_in_current_epoch: int = 0,
    ) -> None:
        """Train on the rest of an epoch, with what is due at its end. The live run has its own values of all arguments.

        If overridden, it is called for each epoch, and has to call this. Raises RunStateError at any other moment.
        """
        self._live("_run_epoch").stages.proceed("_run_epoch")

    @standard
    def _finalize_training(self, trial: Any, num_train_samples: float, start_time: float) -> TrainOutput:
        """Log the totals of the run, load the best weights and call `on_train_end`; return the result of `train`.

        If overridden, it is called after the last epoch, and has to call this; `train` returns what it returns.
        Raises RunStateError at any other moment.
        """
        ended = self._live("_finalize_training").stages.proceed("_finalize_training")
        if not isinstance(ended, TrainEnded):
            raise RunStateError("The run ended without a result.")
        return output_of(ended)


def output_of(ended: TrainEnded) -> TrainOutput:
    """Return what `train` returns: what an overridden `_finalize_training` did, or the totals of the run."""
    if isinstance(ended, Finalized):
        return cast(TrainOutput, ended.output)
    return TrainOutput(ended.step, ended.metrics["train_loss"], dict(ended.metrics))
