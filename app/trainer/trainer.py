"""The Trainer: a model, its data and its arguments, trained by the loop."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, ClassVar, NamedTuple, Unpack

from torch import Tensor

from hexloop.adapters.evaluator.torch.outputs import EvalLoopOutput, PredictionOutput
from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.adoption import adopted
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.remarks import say_what_has_no_effect
from hexloop.app.trainer.former import Former, without_old_names
from hexloop.app.trainer.making import Making
from hexloop.app.trainer.results import Results
from hexloop.app.trainer.seams import Seams
from hexloop.app.trainer.sizes import Sizes
from hexloop.app.trainer.steps import Steps
from hexloop.app.training import evaluating, reporting
from hexloop.app.training.batch_size import find_batch_size
from hexloop.app.training.callbacks import all_callbacks
from hexloop.app.training.driving import follow
from hexloop.app.training.evaluators import standard_prediction_step
from hexloop.app.training.hooks import standard
from hexloop.app.training.inputs import default_label_names
from hexloop.app.training.internals import refuse_overridden_internals
from hexloop.app.training.live import seeded
from hexloop.app.training.memory_metrics import measured, memory_stages_for
from hexloop.app.training.pausing import wait_while_paused
from hexloop.app.training.refusals import Refusals, refuse_metrics, refuse_parts
from hexloop.app.training.sharded import is_sharded, refuse_unprepared
from hexloop.app.training.verbosity import set_log_level
from hexloop.app.wiring import Injected, choose_adapters
from hexloop.domain.errors import ConfigurationError, RunStateError
from hexloop.domain.events import AnyEvent, Paused, TrainEnded
from hexloop.domain.requests import Requests, SaveRequest
from hexloop.domain.run import Evaluation


class TrainOutput(NamedTuple):
    """What `Trainer.train` gives: the steps done, the mean loss over them, and the figures of the run."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class Trainer(Steps, Making, Sizes, Results, Seams, Former):
    """Trains, evaluates and predicts with the reference library's constructor, methods and hooks.

    Every method may be overridden; what a subclass leaves alone costs nothing. Adapters may be injected by keyword
    (device, precision, parallelism, collectives, storage, hub, loggers, clock, interrupts, journal); the arguments
    choose the others. Whoever passes `loggers` decides alone what is shown: no progress bar and no printing callback is
    added.

    Raises ConfigurationError with every problem that can be known without data.
    """

    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    """What is made where no `args` are given, and out of a recipe's `arguments`."""

    loss_is_scaled_for_ga: bool | None = None
    """Whether an overridden `compute_loss` divides by `num_items_in_batch`; None: where the model's own loss does."""

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
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
        if tokenizer is not None:
            processing_class = self.take_tokenizer(tokenizer, processing_class)
        self.args = self.arguments_class() if args is None else adopted(args, self.arguments_class)
        with Refusals() as refusals:
            if (model is None) == (model_init is None):
                raise ConfigurationError(["A Trainer needs a model or a model_init, one of the two; pass exactly one."])
        with refusals:
            self.adapters = choose_adapters(self.args, injected)
            self._memory = memory_stages_for(self.args, self.adapters.device)
        with refusals:
            refuse_overridden_internals(type(self), Trainer)
        with refusals:
            refuse_parts(model_init, optimizers, optimizer_cls_and_kwargs, data_collator)
        with refusals:
            refuse_metrics(self.args, compute_metrics)
        refusals.settle()
        self._memory.begin("init")
        self.model_init = model_init
        set_log_level(self.args)
        say_what_has_no_effect(self.args)
        with seeded(self.adapters.device, self.args.seed):
            self.model = self.call_model_init() if model_init is not None else model
        self.model_wrapped = self.model
        self.note_model()
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.data_collator = data_collator or self._default_collator()
        self.label_names = default_label_names(self) if self.args.label_names is None else self.args.label_names
        self.main_input_name: str = getattr(self.model, "main_input_name", "input_ids")
        self._requests, self._session = Requests(), None
        self.ignore_keys_for_eval: list[str] | None = None
        self.control = TrainerControl()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        self.state.checkpoints_folder = str(self.args.output_dir)
        own_loggers = injected.get("loggers") is not None
        self.callback_handler = CallbackHandler(
            all_callbacks(self.args, callbacks or (), own_loggers),
            self.model,
            processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        self._dispatcher = EventDispatcher(self.callback_handler, self.args, self.state, self.control)
        self._dispatcher.call("on_init_end")
        self._memory.end("init")

    # Training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
        **kwargs: Any,
    ) -> TrainOutput:
        """Train to the end, waiting while the run is paused.

        resume_from_checkpoint: a checkpoint's folder, True for the newest good one in the output folder, or "auto" for
        that one if there is any: the run then starts or goes on, whichever fits, and one that is finished is not
        trained again. `model_path` is its old name.
        Raises RunStateError while another run of this Trainer is live.
        """
        if kwargs:
            given = without_old_names("train", kwargs, {"model_path": "resume_from_checkpoint"})
            resume_from_checkpoint = given["resume_from_checkpoint"]
        ended: TrainEnded | None = None
        with closing(self.stream(resume_from_checkpoint, ignore_keys_for_eval)) as events:
            for event in events:
                kind = type(event)
                if kind is Paused:
                    wait_while_paused(self)
                elif kind is TrainEnded:
                    ended = event  # type: ignore[assignment]
        assert ended is not None
        return TrainOutput(ended.step, ended.metrics["train_loss"], dict(ended.metrics))

    def stream(
        self, resume_from_checkpoint: str | bool | None = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Generator[AnyEvent, None, None]:
        """The run as a generator of events, which whoever iterates drives; `close()` ends it and releases everything.

        The run begins with the first `next`. Raises RunStateError while another run of this Trainer is live.
        """
        self.refuse_second_run()
        self.ignore_keys_for_eval = ignore_keys_for_eval
        events = find_batch_size if self.args.auto_find_batch_size else follow
        return events(self, resume_from_checkpoint)

    def refuse_second_run(self) -> None:
        """Raise RunStateError while a run is live. Called by the run itself."""
        if self._session is not None:
            raise RunStateError(
                "You asked this Trainer for a second run, but one is live; finish it, close its stream, or use "
                "another Trainer."
            )

    def end_session(self) -> None:
        """The live run is over; the Trainer may begin another. Called by the run itself."""
        self._session = None

    @property
    def is_in_train(self) -> bool:
        """Whether a run is live."""
        return self._session is not None

    # Asking a live run, from any thread

    def request_stop(self, reason: str = "", save: bool = False) -> None:
        """End the run at the next step boundary, or within a running evaluation; with `save`, save there first."""
        self._requests.request_stop(reason, save)

    def request_save(self) -> SaveRequest:
        """Save at the next step boundary; the handle's `wait()` gives the checkpoint's name once it is durable."""
        return self._requests.request_save()

    def pause(self) -> None:
        """Stand still at the next step boundary: `train` waits, a stream yields Paused."""
        self._requests.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._requests.resume()

    # Evaluation and prediction

    @standard
    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """The metrics on `eval_dataset` (the Trainer's own where None), logged and under the prefix.

        A dictionary of data sets is evaluated one by one, each under "<prefix>_<name>"; an overridden method is asked
        for each.
        """
        return evaluating.evaluate(self, eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions, labels and metrics on `test_dataset`, as arrays of shape (samples, ...)."""
        with measured(self._memory, "test") as figures:
            output = evaluating.predict(self, test_dataset, ignore_keys, metric_key_prefix)
        return output._replace(metrics={**(output.metrics or {}), **figures})

    @standard
    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Predict every batch of `dataloader`; gives predictions, labels, metrics and the number of samples."""
        return evaluating.evaluation_loop(
            self, dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The name that `evaluation_loop` had in the reference library's version 4."""
        return self.evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

    @standard
    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """The loss, the logits and the labels of a batch, each None where there is none or it is not asked for."""
        step = standard_prediction_step(self)
        predicted: tuple[Tensor | None, Any, Any] = step(model, inputs, prediction_loss_only, ignore_keys)
        return predicted

    def evaluation_in_training(self) -> Evaluation:
        """The evaluation that the loop asks for when one is due."""
        return evaluating.evaluation_in_training(self)

    # Logs and files

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Complete `logs` with the epoch, enter them in the history, and show them to callbacks and loggers."""
        reporting.log(self, logs)

    def watch(self, run: Any) -> tuple[Callable[[], None], ...]:
        """Tell the loggers and the sources of interrupts that a run begins; gives what ends that."""
        return reporting.watch(self, run)

    @standard
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its configuration and the processing class to a folder (the output folder where None).

        Of several processes the first writes. All call it where the weights are spread: each writes its share.
        """
        refuse_unprepared(self)
        if self.args.should_save or is_sharded(self):
            self._save(output_dir or str(self.args.output_dir))

    def new_run_name(self) -> str:
        """A name that no other run has."""
        return uuid.uuid4().hex

    # Callbacks

    def add_callback(self, callback: Any) -> None:
        """Call this callback too; a class stands for an instance of it."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Take out a callback, or the first of a class, and give it back; None where there is none."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Take out a callback, or the first of a class."""
        self.callback_handler.remove_callback(callback)
