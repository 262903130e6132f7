"""The Trainer: a model, its data and its arguments, trained by the loop."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, Unpack

from hexloop.app.arguments import TrainingArguments
from hexloop.app.arguments.arguments import from_transformers
from hexloop.app.callbacks import CallbackHandler, EventDispatcher, TrainerControl, TrainerState
from hexloop.app.callbacks.flow import JITCheckpointCallback, all_callbacks
from hexloop.app.notices import notices_in_force
from hexloop.app.run import checks, driving, model_card, saving
from hexloop.app.run.checkpoint_folders import make_output_folder
from hexloop.app.run.determinism import enable_full_determinism, seeded
from hexloop.app.run.memory_metrics import measured, memory_stages_for
from hexloop.app.run.messages import set_log_level, warn_of_unsmoothed_labels
from hexloop.app.run.session import Session
from hexloop.app.run.stages import Finalized
from hexloop.app.run.tracking import make_tracker_loggers
from hexloop.app.trainer.compatibility import (
    LegacyNames,
    log_retired_internals,
    old_model_path,
    refuse_overridden_internals,
)
from hexloop.app.trainer.copies import PassedAdapters, TrainerCopies
from hexloop.app.trainer.stages import TrainOutput, output_of
from hexloop.app.wiring.adapters import Injected, choose_adapters
from hexloop.app.wiring.combinations import log_ineffective_arguments
from hexloop.app.wiring.data import default_collator, import_before_seeding
from hexloop.app.wiring.evaluation import EvalLoopOutput, PredictionOutput, refuse_metrics
from hexloop.app.wiring.model import apply_liger_kernels, default_label_names, unwrapped
from hexloop.app.wiring.parts import KeptLoaders, PreparationTime, is_overridden, standard
from hexloop.app.wiring.state import is_sharded, refuse_unprepared
from hexloop.app.wiring.storage import WorkingFolder
from hexloop.domain.events import AnyEvent, Paused, TrainEnded
from hexloop.domain.redaction import remember_secrets, secret_values
from hexloop.domain.requests import Requests, SaveRequest
from hexloop.domain.run import Evaluation
from hexloop.ports.logger import Record


class Trainer(TrainerCopies, LegacyNames):
    """Trains, evaluates and predicts, with the constructor, methods and hooks of transformers' Trainer.

    Every method may be overridden; methods that are not overridden cost nothing. Adapters may be injected by keyword
    (device, precision, parallelism, collectives, storage, hub, loggers, clock, interrupts, journal); the arguments
    choose the others. Passing `loggers` replaces all default output: no progress bar and no printing callback is added.

    Raises ConfigurationError with every problem that can be known without data.
    """

    arguments_class: ClassVar[type[TrainingArguments]] = TrainingArguments
    """The class of the arguments if no `args` are passed, and of a recipe's `arguments`."""

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
        self._started_in, self._passed = WorkingFolder(), PassedAdapters(injected)
        remember_secrets(secret_values(os.environ))
        if tokenizer is not None:
            processing_class = self.take_tokenizer(tokenizer, processing_class)
        calls = {"model_init": model_init, "compute_loss_func": compute_loss_func, "compute_metrics": compute_metrics}
        checks.refuse_wrong_objects(args, callbacks, calls, partial(is_overridden, self))
        self.args = from_transformers(args or self.arguments_class("tmp_trainer"), self.arguments_class)
        with checks.Refusals() as refusals:
            self.adapters = choose_adapters(self.args, injected, self._started_in)
            self._memory = memory_stages_for(self.args, self.adapters.device)
        with refusals:
            refuse_overridden_internals(type(self), Trainer)
        with refusals:
            checks.refuse_parts(model, model_init, optimizers, optimizer_cls_and_kwargs, data_collator)
        with refusals:
            refuse_metrics(self.args, compute_metrics)
        refusals.settle()
        self._session, self._requests, self._preparation = None, Requests(), PreparationTime()
        self._notices = notices_in_force()
        self._kept_loaders = KeptLoaders()
        make_output_folder(self.args, self.adapters.storage, self.adapters.mesh.writes)
        self._memory.start("init")
        self.model_init = model_init
        set_log_level(self.args, self._notices)
        log_ineffective_arguments(self.args)
        log_retired_internals(type(self), Trainer)
        if self.args.reproduce is not None:
            import_before_seeding()
            if self.args.full_determinism:
                enable_full_determinism(self.args.seed)
        with seeded(self.adapters.device, self.args.seed):
            self.model = self.call_model_init() if model_init is not None else model
        checks.refuse_untrainable_model(self.model)
        warn_of_unsmoothed_labels(unwrapped(self.model), self.args, self._notices)
        self.model_wrapped = self.model
        self.note_model()
        apply_liger_kernels(unwrapped(self.model), self.args)
        self.create_accelerator_and_postprocess()
        if is_overridden(self, "_move_model_to_device"):
            self._move_by_override()
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.processing_class = processing_class
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.data_collator = default_collator(processing_class) if data_collator is None else data_collator
        smoothed, overridden = bool(self.args.label_smoothing_factor), is_overridden(self, "compute_loss")
        has_own_loss = compute_loss_func is not None or smoothed or overridden
        has_own_loss = has_own_loss and self.args.reproduce is None  # transformers does not look for such labels
        given_names = self.args.label_names
        self.label_names = default_label_names(self.model, has_own_loss) if given_names is None else given_names
        self.main_input_name: str = getattr(unwrapped(self.model), "main_input_name", "input_ids")
        self.ignore_keys_for_eval: list[str] | None = None
        self.control = TrainerControl()
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        self.state.checkpoints_folder, self.state.spelled = str(self.args.output_dir), self._started_in.spelled
        listeners = all_callbacks(self.args, callbacks or (), injected.get("loggers") is not None)
        handled = self.model, processing_class, self.optimizer, self.lr_scheduler
        self.callback_handler = CallbackHandler(listeners, *handled)
        for each in listeners:
            if isinstance(each, JITCheckpointCallback):
                each.set_trainer(self)
        self._dispatcher = EventDispatcher(self.callback_handler, self.args, self.state, self.control)
        checks.refuse_missing_data(self._collect_parts())
        make_tracker_loggers(self._collect_parts())
        if is_overridden(self, "_validate_args"):
            self._validate_args()
        if self.args.push_to_hub:
            self._find_repository()
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

        resume_from_checkpoint: the folder of a checkpoint, True for the newest good one in the output folder, or "auto"
        to resume from that one if it exists and to start a new run otherwise; a finished run is not trained again.
        `model_path` is its old name. trial: passed to overridden methods, and to `model_init` if it takes one.
        Raises RunStateError while another run of this Trainer is live.
        """
        if kwargs:
            resume_from_checkpoint = old_model_path(kwargs)
        self._trial = trial
        resume_from_checkpoint = self._named_location(resume_from_checkpoint)
        if is_overridden(self, "_hp_search_setup"):
            self._hp_search_setup(trial)
        return self._train_to_the_end(resume_from_checkpoint, ignore_keys_for_eval)

    def _drain(self, resume_from: str | bool | None, ignored: list[str] | None) -> TrainOutput:
        ended: TrainEnded | None = None
        with closing(self.stream(resume_from, ignored)) as events:
            for event in events:
                kind = type(event)
                if kind is Paused:
                    self._live("train").wait_while_paused()
                elif kind is TrainEnded or kind is Finalized:
                    ended = event  # type: ignore[assignment]
        assert ended is not None
        return output_of(ended)

    def stream(
        self, resume_from_checkpoint: str | bool | None = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Generator[AnyEvent, None, None]:
        """Return the run as a generator of events, driven by the caller; `close()` ends it and releases everything.

        The run starts with the first `next`. Raises RunStateError while another run of this Trainer is live.
        """
        driving.refuse_second_run(None if self._session is None else self._session.run)
        self._refuse_stream()
        if is_overridden(self, "_get_output_dir"):
            self._use_folder(str(self._get_output_dir(self._trial)))
        self.ignore_keys_for_eval = ignore_keys_for_eval
        drive = driving.find_batch_size if self.args.auto_find_batch_size else driving.drive
        return driving.Stream(drive(self._run_host(), self._named_location(resume_from_checkpoint)))

    # Requests to a live run, from any thread

    def request_stop(self, reason: str = "", save: bool = False) -> None:
        """Stop the run at the next step boundary or during an evaluation; with `save`, save a checkpoint first."""
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

    # Evaluation and prediction

    @standard
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return the metrics on `eval_dataset` (by default the Trainer's), under the prefix, and log them.

        The data sets of a dictionary are evaluated one by one, each under "<prefix>_<name>"; an overridden method is
        called for each.
        """
        several = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(several, dict) and is_overridden(self, "evaluate"):
            return self._evaluate_each(several, eval_dataset is not None, ignore_keys, metric_key_prefix)
        with measured(self._memory, "eval") as figures:
            metrics = driving.evaluate(self._collect_parts(), eval_dataset, ignore_keys, metric_key_prefix)
        return {**metrics, **figures}

    def _evaluate_each(
        self, several: dict[str, Any], given: bool, ignore_keys: list[str] | None, prefix: str
    ) -> dict[str, float]:
        """Call an overridden `evaluate` for each of several data sets; return all metrics together."""
        together: dict[str, float] = {}
        self._asks_for_each = True
        try:
            for name, one in several.items():
                together |= self.evaluate(
                    eval_dataset=one if given else name, ignore_keys=ignore_keys, metric_key_prefix=f"{prefix}_{name}"
                )
        finally:
            self._asks_for_each = False
        return together

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return predictions, labels and metrics on `test_dataset`, as arrays of shape (samples, ...)."""
        with measured(self._memory, "test") as figures:
            output = driving.predict(self._collect_parts(), test_dataset, ignore_keys, metric_key_prefix)
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
        """Predict every batch of `dataloader`; return predictions, labels, metrics and the number of samples."""
        return driving.evaluation_loop(
            self._collect_parts(), dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
        )

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Call `evaluation_loop`, whose name this was in version 4 of transformers."""
        return self.evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

    @standard
    def evaluation_in_training(self) -> Evaluation:
        """Return the evaluation that the loop runs when one is due."""
        return driving.evaluation_in_training(self._collect_parts())

    # Logs and files

    @standard
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the epoch to `logs`, append them to the history, and pass them to callbacks and loggers."""
        state, session = self.state, self._session
        logs["epoch"] = state.epoch
        if self.args.include_num_input_tokens_seen != "no":
            if session is not None:
                session.counters.settle()
            logs["num_input_tokens_seen"] = tokens = state.num_input_tokens_seen
            if session is not None and "loss" in logs:
                logs |= session.token_speed(tokens)
        state.log_history.append({**logs, "step": state.global_step})
        self.control.should_log = False
        self._dispatcher.call("on_log", logs=logs)
        if session is not None and session.loggers is not None:
            session.loggers.write(Record(state.global_step, state.epoch, dict(logs)))

    @standard
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, its configuration and the processing class to a folder, by default the output folder.

        The first of several processes writes. All processes must call it if the model is sharded: each writes its part.
        With `push_to_hub`, the model is also published.
        """
        refuse_unprepared(self.adapters, self.model)
        if self.args.should_save or is_sharded(self.adapters.parallelism, self.model):
            self._save(self._received(output_dir))
        if self.args.push_to_hub and not _internal_call:
            self._publish_saved_model(output_dir in (None, str(self.args.output_dir)))

    @standard
    def new_run_name(self) -> str:
        """Return a unique name for a run."""
        return uuid.uuid4().hex

    def log_metrics(self, split: str, metrics: dict[str, Any]) -> None:
        """Print the metrics of a split ("train", "eval", "test") in aligned lines, formatted by `metrics_format`."""
        if self.is_world_process_zero():
            print(saving.table(split, metrics))

    def save_metrics(self, split: str, metrics: dict[str, Any], combined: bool = True) -> None:
        """Write `<split>_results.json` in the output folder.

        With `combined`, also add them to all_results.json, where they replace metrics of the same names.
        """
        if self.is_world_process_zero():
            saving.save_metrics(self._collect_parts(), split, metrics, combined)

    @staticmethod
    def metrics_format(metrics: dict[str, Any]) -> dict[str, Any]:
        """Return a readable copy: memory in MB, floating-point operations in GF, times as h:mm:ss.cc, four decimals."""
        return saving.readable(metrics)

    def save_state(self) -> None:
        """Write the state to trainer_state.json in the output folder."""
        if self.is_world_process_zero():
            saving.save_state(self._collect_parts())

    @staticmethod
    def num_tokens(train_dl: Any, max_steps: int | None = None) -> int:
        """Return the tokens of all batches of a loader, or `max_steps` times those of its first batch.

        Returns 0 with a warning if its batches have no "input_ids".
        """
        return saving.count_tokens(train_dl, max_steps)

    def compare_trainer_and_checkpoint_args(self, training_args: Any, trainer_state: Any) -> None:
        """Log a warning for each interval or batch size that differs from the state of a checkpoint."""
        saving.warn_of_differences(training_args, trainer_state, self._notices)

    def create_model_card(
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        tasks: str | list[str] | None = None,
        dataset_tags: str | list[str] | None = None,
        dataset: str | list[str] | None = None,
        dataset_args: str | list[str] | None = None,
    ) -> None:
        """Write a model card to README.md in the output folder: metadata, hyperparameters, results and versions.

        The first of several processes writes. Tags of a card that is there already are kept.
        """
        if self.is_world_process_zero():
            lists = map(model_card.as_list, (language, tags, tasks, dataset_tags, dataset, dataset_args))
            languages, all_tags, all_tasks, all_dataset_tags, names, arguments = lists
            facts = model_card.CardFacts(
                languages, license, all_tags, model_name, finetuned_from, all_tasks, all_dataset_tags, names, arguments
            )
            model_card.write_model_card(self._collect_parts(), facts)

    def is_world_process_zero(self) -> bool:
        """Return whether this process is the first of the run."""
        return self.adapters.mesh.writes

    def is_local_process_zero(self) -> bool:
        """Return whether this process is the first of its machine."""
        return self.args.local_process_index == 0


def session_of(trainer: Trainer) -> Session | None:
    """Return the live run of a Trainer and what belongs to it; None between runs."""
    return trainer._session
