"""The Trainer: a model, its data and its arguments, trained by the loop."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Unpack

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.arguments import from_transformers
from hexloop.app.assembly.adapters import Injected, choose_adapters
from hexloop.app.assembly.framework import torch_framework
from hexloop.app.assembly.ineffective import log_ineffective_arguments
from hexloop.app.assembly.random_state import seeded
from hexloop.app.assembly.storage import WorkingFolder, as_location, storage_for
from hexloop.app.callbacks import CallbackHandler, TrainerState
from hexloop.app.callbacks.flow import JITCheckpointCallback, all_callbacks
from hexloop.app.calling import refuse_metrics
from hexloop.app.hooks import is_overridden, standard
from hexloop.app.notices import notices_in_force
from hexloop.app.overrides.stages import Finalized
from hexloop.app.rules import rules_of
from hexloop.app.run import checks, driving
from hexloop.app.run.checkpoint_folders import make_output_folder
from hexloop.app.run.memory_metrics import memory_stages_for
from hexloop.app.run.messages import set_log_level, warn_of_unsmoothed_labels
from hexloop.app.run.quantized_models import refuse_untrainable_model
from hexloop.app.run.session import RunHost
from hexloop.app.run.tracking import make_tracker_loggers
from hexloop.app.trainer.checkpoints import TrainerCheckpoints
from hexloop.app.trainer.data import TrainerData
from hexloop.app.trainer.evaluation import TrainerEvaluation
from hexloop.app.trainer.forecast import TrainerForecast
from hexloop.app.trainer.legacy_names import (
    LegacyNames,
    TransformersAttributes,
    log_retired_internals,
    old_model_path,
    refuse_overridden_internals,
)
from hexloop.app.trainer.model import TrainerModel
from hexloop.app.trainer.publishing import TrainerPublishing
from hexloop.app.trainer.results import TrainerStages, TrainOutput, output_of
from hexloop.app.trainer.search import TrainerSearch
from hexloop.app.trainer.steps import TrainerSteps
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.events import AnyEvent, Paused, TrainEnded
from hexloop.domain.redaction import remember_secrets, secret_values
from hexloop.domain.requests import SaveRequest

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ModelT = TypeVar("ModelT", default=Any)
else:
    from typing import TypeVar

    ModelT = TypeVar("ModelT")  # only type checkers need the default, which typing has from Python 3.13 on

MADE_AGAIN = frozenset(
    {"adapters", "_averages", "_requests", "_dispatcher", "_memory", "_kept_loaders", "_own_publisher"}
    | {"push_in_progress"}
)
"""The attributes that hold threads, locks, connections, a run's tensors or a process's place among the others.

A copy makes its own from the arguments, and from the adapters that were passed to the constructor, when it needs them.
"""


class PassedAdapters(dict[str, Any]):
    """The adapters that the user passed. A deep copy shares them: they are places and services, such as a storage."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PassedAdapters:
        return self


class Trainer(
    TrainerModel,
    TrainerData,
    TrainerSteps,
    TrainerEvaluation,
    TrainerForecast,
    TrainerCheckpoints,
    TrainerPublishing,
    TrainerStages,
    TrainerSearch,
    TransformersAttributes,
    LegacyNames,
    Generic[ModelT],
):
    """Trains, evaluates and predicts, with the constructor, methods and hooks of transformers' Trainer.

    Every method may be overridden; methods that are not overridden cost nothing. Adapters may be injected by keyword
    (device, precision, parallelism, collectives, storage, hub, loggers, clock, interrupts, journal); the arguments
    choose the others. Passing `loggers` replaces all default output: no progress bar and no printing callback is added.

    Args:
        model: the model to train, a `torch.nn.Module`; it may be None if `model_init` is passed.
        args: the training arguments, hexloop's or transformers'; by default those of a run in the folder tmp_trainer.
        data_collator: makes a batch of a list of samples.
        train_dataset: the samples to train on: a data set with a length, an iterable one, or one of the package
            datasets.
        eval_dataset: the samples to evaluate, or a dictionary of several data sets by name.
        processing_class: the tokenizer or processor, which pads batches and is saved with the model.
        model_init: makes a new model, for a search also from the trial.
        compute_loss_func: returns the loss from the outputs, the labels and the number of items of the window.
        compute_metrics: returns metrics by name from an `EvalPrediction`.
        callbacks: callbacks besides the default ones, instances or classes.
        optimizers: the optimizer and the learning-rate scheduler, each None to let the arguments choose.
        optimizer_cls_and_kwargs: the class of the optimizer and its keyword arguments, instead of `optim`.
        preprocess_logits_for_metrics: receives the logits and the labels of an evaluation's batch, and returns what is
            kept.
        tokenizer: the former name of `processing_class`.
        **injected: adapters by the name of their port, the keys of `hexloop.app.assembly.adapters.Injected`.

    Raises:
        ConfigurationError: with every problem that can be known without data.

    Examples:
        >>> import torch
        >>> from hexloop import Trainer, TrainingArguments
        >>> rows = [{"input": x, "labels": 2 * x} for x in torch.arange(4.0).unsqueeze(1)]
        >>> def loss(outputs, labels, **_):
        ...     return torch.nn.functional.mse_loss(outputs, labels)
        >>> trainer = Trainer(
        ...     torch.nn.Linear(1, 1),
        ...     TrainingArguments("runs/line", learning_rate=0.1, max_steps=200),
        ...     train_dataset=rows,
        ...     eval_dataset=rows,
        ...     compute_loss_func=loss,
        ...     loggers=[],
        ... )
        >>> trainer.train().global_step
        200
        >>> round(trainer.model.weight.item(), 1)
        2.0
    """

    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    """The class of the arguments if no `args` are passed, and of a recipe's `arguments`."""

    model: ModelT
    """The model, as it was passed or as `model_init` returned it, with the type that it has there."""

    _passed: PassedAdapters
    """The adapters that were passed to the constructor."""

    _resumes_from: tuple[str | bool | None, str | None] = (None, None)
    """What `train` was asked to resume from, and the location that an overridden `_inner_training_loop` received."""

    _is_in_inner_loop: bool = False

    def __init__(
        self,
        model: ModelT | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., ModelT] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: Sequence[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Any], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        *,
        tokenizer: Any = None,
        **injected: Unpack[Injected],
    ) -> None:
        self._started_in, self._notices = WorkingFolder(), notices_in_force()
        self._passed = PassedAdapters(injected)
        remember_secrets(secret_values(os.environ))
        if tokenizer is not None:
            processing_class = self.take_tokenizer(tokenizer, processing_class)
        calls = {
            "model_init": model_init, "compute_loss_func": compute_loss_func, "compute_metrics": compute_metrics,
            "preprocess_logits_for_metrics": preprocess_logits_for_metrics,
        }  # fmt: skip
        data = {"train_dataset": train_dataset, "eval_dataset": eval_dataset}
        checks.refuse_wrong_objects(args, callbacks, calls, data, partial(is_overridden, self))
        self.args = from_transformers(args or self.arguments_class("tmp_trainer"), self.arguments_class)
        with checks.Refusals() as refusals:
            self.adapters = choose_adapters(self.args, injected, self._started_in)
            self._memory = memory_stages_for(self.args, self.adapters.device)
        with refusals:
            refuse_overridden_internals(type(self), Trainer)
        with refusals:
            framework = injected.get("framework") or torch_framework()
            checks.refuse_uncalled(framework, partial(is_overridden, self))
        with refusals:
            checks.refuse_parts(framework, model, model_init, optimizers, optimizer_cls_and_kwargs, data_collator)
        with refusals:
            refuse_metrics(self.args.batch_eval_metrics, compute_metrics)
        refusals.settle()
        make_output_folder(self.args, self.adapters.storage, self.adapters.mesh.writes)
        self._memory.start("init")
        self.model_init = model_init
        set_log_level(self.args, self._notices)
        log_ineffective_arguments(self.args)
        log_retired_internals(type(self), Trainer)
        framework.begin(self.args)
        with seeded(self.adapters.device, self.args.seed):
            given: Any = self.call_model_init() if model_init is not None else model
            self.model = given
        refuse_untrainable_model(self.model, framework, self.args)
        warn_of_unsmoothed_labels(framework.unwrapped(self.model), self.args, self._notices)
        self.model_wrapped = self.model
        self.note_model()
        framework.receive(framework.unwrapped(self.model), self.args)
        self.create_accelerator_and_postprocess()
        if is_overridden(self, "_move_model_to_device"):
            self._move_by_override()
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        if data_collator is not None:
            self.data_collator = data_collator
        smoothed, overridden = bool(self.args.label_smoothing_factor), is_overridden(self, "compute_loss")
        has_own_loss = compute_loss_func is not None or smoothed or overridden
        has_own_loss = has_own_loss and rules_of(self.args).own_losses  # transformers does not look for such labels
        given_names = self.args.label_names
        self.label_names = framework.label_names(self.model, has_own_loss) if given_names is None else given_names
        self.state.checkpoints_folder, self.state.spelled = str(self.args.output_dir), self._started_in.spelled
        listeners = all_callbacks(self.args, callbacks or (), injected.get("loggers") is not None)
        handled = self.model, processing_class, self.optimizer, self.lr_scheduler
        self.callback_handler = CallbackHandler(listeners, *handled)
        for each in listeners:
            if isinstance(each, JITCheckpointCallback):
                each.set_trainer(self)
        parts = self._collect_parts()  # makes the attributes that were not passed
        checks.refuse_missing_data(parts)
        make_tracker_loggers(parts)
        if is_overridden(self, "_validate_args"):
            self._validate_args()
        if self.args.push_to_hub:
            self._find_repository()
        self._dispatcher.call("on_init_end")
        self._memory.end("init")

    @standard
    def _validate_args(self) -> None:
        """No-op: the constructor has checked the arguments. If overridden, the constructor calls it."""

    # Training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train to the end, waiting while the run is paused.

        Args:
            resume_from_checkpoint: the folder of a checkpoint, True for the newest good one in the output folder, or
                "auto" to resume from that one if it exists and to start a new run otherwise; a finished run is not
                trained again. `model_path` is its old name.
            trial: passed to overridden methods, and to `model_init` if it takes one.
            ignore_keys_for_eval: keys of the model's outputs that evaluations during training leave out of the
                predictions.
            **kwargs: `model_path`, the old name of `resume_from_checkpoint`.

        Returns:
            the steps done, the mean loss over them, and the metrics of the run.

        Raises:
            RunStateError: while another run of this Trainer is live.

        Examples:
            >>> trainer.train().global_step
            200
            >>> trainer.train(resume_from_checkpoint="auto").global_step  # it has ended, and is not trained again
            200
        """
        if kwargs:
            resume_from_checkpoint = old_model_path(kwargs)
        self._trial = trial
        if self._live_trial is not None or is_overridden(self, "_hp_search_setup"):
            self._hp_search_setup(trial)
        resume_from_checkpoint = self._named_location(resume_from_checkpoint)
        return self._train_to_the_end(resume_from_checkpoint, ignore_keys_for_eval)

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

    def stream(
        self, resume_from_checkpoint: str | bool | None = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Generator[AnyEvent, None, None]:
        """Return the run as a generator of events, driven by the caller; `close()` ends it and releases everything.

        The run starts with the first `next`.

        Args:
            resume_from_checkpoint: as in `train`.
            ignore_keys_for_eval: keys of the model's outputs that evaluations during training leave out of the
                predictions.

        Raises:
            RunStateError: while another run of this Trainer is live.

        Examples:
            >>> from hexloop import StepEnded
            >>> for event in trainer.stream():
            ...     if isinstance(event, StepEnded) and event.step == 10:
            ...         trainer.request_stop("ten steps are enough")
            >>> trainer.state.global_step
            10
        """
        driving.refuse_second_run(None if self._session is None else self._session.run)
        self._refuse_stream()
        if is_overridden(self, "_get_output_dir"):
            self._use_folder(str(self._get_output_dir(self._trial)))
        self.ignore_keys_for_eval = ignore_keys_for_eval
        drive = driving.find_batch_size if self.args.auto_find_batch_size else driving.drive
        return driving.EventStream(drive(self._run_host(), self._named_location(resume_from_checkpoint)))

    def astream(
        self,
        resume_from_checkpoint: str | bool | None = None,
        ignore_keys_for_eval: list[str] | None = None,
        *,
        save_on_close: bool = False,
        executor: Executor | None = None,
    ) -> AsyncGenerator[AnyEvent, None]:
        """Return the run as an asynchronous generator of events; its steps run in a thread, with the caller's context.

        A cancelled task finishes the step that is running and closes the run. A paused run waits until it is resumed.

        Args:
            resume_from_checkpoint: As for `train`.
            ignore_keys_for_eval: As for `train`.
            save_on_close: Whether a run that is cancelled or closed before its end saves a checkpoint.
            executor: Where steps run, one at a time. By default all runs of an event loop take turns in one thread.

        Raises:
            RunStateError: If another run of this Trainer is live.

        Examples:
            >>> import asyncio
            >>> from hexloop import StepEnded
            >>> async def count_steps():
            ...     return len([event async for event in trainer.astream() if isinstance(event, StepEnded)])
            >>> asyncio.run(count_steps())
            200
        """
        from hexloop.app.run import event_loops

        stream = self.stream(resume_from_checkpoint, ignore_keys_for_eval)
        return event_loops.events_of(stream, self._requests, save_on_close, executor)

    def _refuse_stream(self) -> None:
        """Raise ConfigurationError if a run by `stream` would leave out an overridden method."""
        if is_overridden(self, "_inner_training_loop") and not self._is_in_inner_loop:
            raise ConfigurationError(
                "_inner_training_loop is overridden, and stream() does not call it, because its caller is the loop; "
                "call train(), or remove the override."
            )

    def _drain(self, resume_from: str | bool | None, ignored: list[str] | None) -> TrainOutput:
        ended: TrainEnded | None = None
        with closing(self.stream(resume_from, ignored)) as events:
            while event := driving.next_of(events, Paused, TrainEnded, Finalized):
                if isinstance(event, Paused):
                    self._live("train").wait_while_paused()
                else:
                    ended = event  # type: ignore[assignment]
        assert ended is not None
        return output_of(ended)

    def _run_host(self) -> RunHost:
        """Return what a run calls while it is constructed, and where it leaves its results."""
        return RunHost(
            parts=self._collect_parts,
            memory=self._memory,
            renew_model=self._renew_model,
            prepare=self._prepare_run,
            forget_run=self._forget_run,
            set_active=partial(setattr, self, "_is_active"),
            attach=self._attach,
            set_outcome=partial(setattr, self, "outcome"),
            set_train_batch_size=self._update_auto_batch_size,
        )

    def _use_folder(self, folder: str) -> None:
        """Let the next run save to `folder`."""
        current = self.adapters.storage.capabilities
        folder = self._started_in.locate(folder)
        if folder != as_location(current.local_folder or current.location):
            self.adapters.storage = storage_for(folder, signatures=current.signatures)
            self.state.checkpoints_folder = folder

    @standard
    def new_run_name(self) -> str:
        """Return a unique name for a run."""
        return uuid.uuid4().hex if self._live_trial is None else self._live_trial.run

    # Requests to a live run, from any thread

    def request_stop(self, reason: str = "", save: bool = False) -> None:
        """Stop the run at the next step boundary or during an evaluation; with `save`, save a checkpoint first.

        Args:
            reason: what the outcome reports.
            save: save a checkpoint first.
        """
        self._requests.request_stop(reason, save)

    def request_save(self) -> SaveRequest:
        """Save at the next step boundary; the handle's `wait()` returns the name of the durable checkpoint."""
        return self._requests.request_save()

    def pause(self) -> None:
        """Pause at the next step boundary: `train` waits, a stream yields Paused."""
        self._requests.pause()

    def resume(self) -> None:
        """Continue after a pause."""
        self._requests.resume()

    # Callbacks

    def add_callback(self, callback: Any) -> None:
        """Add a callback; a class is instantiated.

        Args:
            callback: an instance or a class.
        """
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove and return a callback, or the first of a class; return None if there is none.

        transformers' class of a tracker, such as WandbCallback, stands for hexloop's.

        Args:
            callback: an instance or a class.
        """
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback, or the first of a class; transformers' class of a tracker stands for hexloop's.

        Args:
            callback: an instance or a class.
        """
        self.callback_handler.remove_callback(callback)

    # Copies, by `copy.deepcopy` and by pickle

    def __copy__(self) -> Any:
        """Return a second Trainer with the same attributes, which shares them."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy takes over. Raises RunStateError while a run is live."""
        if self._session is not None or self._is_active or self._is_in_own_train:
            raise RunStateError(
                "A Trainer with a live run cannot be copied or pickled, because the run is part of it; do so before "
                "train(), or after it has returned. A function that processes are to receive, such as a data collator, "
                "must not refer to the Trainer."
            )
        kept = {name: value for name, value in vars(self).items() if name not in MADE_AGAIN}
        accelerator = kept.pop("_accelerator", None)
        if getattr(accelerator, "is_made", False):
            accelerator = accelerator.real
            if self._own_gather_function == self.accelerator.gather:
                kept["_own_gather_function"] = "accelerator"
        return {**kept, "_accelerator": accelerator}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Take over what another Trainer left."""
        accelerator = kept.pop("_accelerator", None)
        vars(self).update(kept)
        if isinstance(kept.get("state"), TrainerState):
            self.state.checkpoints_folder, self.state.spelled = str(self.args.output_dir), self._started_in.spelled
        if accelerator is not None:
            self.adapters  # noqa: B018  # made now, because an accelerator is compared with them
            self.accelerator = accelerator
        if kept.get("_own_gather_function") == "accelerator":
            self._own_gather_function = self.accelerator.gather
