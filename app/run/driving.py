"""Drives runs and evaluations: yields their events and calls the callbacks; finds a batch size that fits."""

from __future__ import annotations

import atexit
import gc
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from functools import partial
from typing import Any

from hexloop.app.assembly.learner import EMA
from hexloop.app.assembly.parts import TrainerParts
from hexloop.app.assembly.random_state import IsolatedRandomness
from hexloop.app.overrides.evaluation import evaluation_by_override, looped_by_override
from hexloop.app.run.checkpoint_compatibility import likely_checkpoint
from hexloop.app.run.checkpoints import callbacks_state, restore_callbacks
from hexloop.app.run.failed_steps import add_note_of_evaluation
from hexloop.app.run.messages import log_evaluation
from hexloop.app.run.session import RunHost, open_session
from hexloop.domain import evaluation
from hexloop.domain.errors import CheckpointError, CollectiveError, RunStateError
from hexloop.domain.evaluation import EvalLoopOutput, PredictionOutput
from hexloop.domain.events import AnyEvent, Evaluated
from hexloop.domain.json_documents import read_bytes, read_json
from hexloop.domain.loop import apply_requests, train
from hexloop.domain.ranges import LARGEST_BATCH
from hexloop.domain.run import Evaluation, Run
from hexloop.domain.run_folder import TRAINER_STATE
from hexloop.ports.storage import Storage

Events = Generator[AnyEvent, None, None]


def drive(host: RunHost, resume_from: str | bool | None, run_name: str | None = None) -> Events:
    """Yield the events of one run, which resumes from `resume_from`.

    run_name: the name of a run that starts again, with the model as it is; otherwise `model_init` rebuilds the model.
    """
    parts = host.parts()
    refuse_second_run(parts.run)
    collectives, fails_alone = parts.adapters.collectives, parts.live_trial is None
    del parts  # it refers to the model
    host.memory.start("train")
    try:
        if run_name is None:
            host.renew_model()
        session = open_session(host, resume_from, run_name)
        dispatch, take_global_state = session.stages.dispatch, session.global_state.take
        with closing(session.stages.watch(train(session.run))) as events:
            for event in events:
                try:
                    dispatch(event)
                    yield event
                    take_global_state()
                except BaseException as error:  # of a callback, or of the caller that closes this generator
                    session.run.failure = error
                    raise
    except BaseException as error:
        explained = collectives.explain(error)
        try:
            if explained is not error:
                raise explained from error
            if fails_alone and not isinstance(error, CollectiveError):  # a search lets all ranks agree on a failure
                collectives.tell_failure(f"{type(error).__name__}: {error}")
            raise
        finally:
            del explained  # its traceback refers to this frame
    finally:
        host.memory.abandon("train")


class EventStream(Generator[AnyEvent, None, None]):
    """The events of a run as a generator that any thread may advance and close, one at a time.

    `close` waits until a step that another thread is in has ended. An open stream is closed when the program exits:
    Python would close it later, when the globals of modules are already gone.
    """

    def __init__(self, events: Events) -> None:
        self._events, self._turn, self._closes = events, threading.RLock(), False
        reference = weakref.ref(self)

        def close() -> None:
            left = reference()
            if left is not None and left._turn.acquire(blocking=False):  # not if a daemon thread is in a step
                left.close()

        atexit.register(close)
        weakref.finalize(self, atexit.unregister, close).atexit = False

    def __next__(self) -> AnyEvent:
        """Return the next event; end the run if another thread waits to close it, which may never get its turn."""
        with self._turn:
            if self._closes:
                self._events.close()
            return next(self._events)

    def send(self, value: None) -> AnyEvent:
        """Return the next event."""
        return next(self)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> AnyEvent:
        """Raise an exception where the run is, and return the next event."""
        with self._turn:
            return self._events.throw(kind if value is None else value)

    def close(self) -> None:
        """End the run and release everything, after the current step.

        Raises RunStateError inside of a step of the run itself, such as in a callback.
        """
        self._closes = True
        with self._turn:
            if inspect.getgeneratorstate(self._events) == inspect.GEN_RUNNING:
                self._closes = False
                raise RunStateError(
                    "A run cannot be closed inside of its own step, such as in a callback; use "
                    "trainer.request_stop(), or close it after the step."
                )
            self._events.close()


def next_of(events: Events, *kinds: type[AnyEvent]) -> AnyEvent | None:
    """Return the next event of one of these types; None if there is none. It is one turn of an EventStream."""
    if isinstance(events, EventStream):
        with events._turn:
            return next_of(events._events, *kinds)
    for event in events:
        if type(event) in kinds:
            return event
    return None


def refuse_second_run(run: Run[Any, Any] | None) -> None:
    """Raise RunStateError if a run of the Trainer is live."""
    if run is not None:
        raise RunStateError(
            "A run of this Trainer is live already; finish it, close its stream, or use another Trainer."
        )


# auto_find_batch_size

FACTOR = 0.9
"""The factor for the next batch size after running out of memory, as in transformers."""


def find_batch_size(host: RunHost, resume_from: str | bool | None) -> Events:
    """Yield the events of a run that starts again with a smaller batch each time the device runs out of memory.

    Each attempt starts from the same weights, callbacks and checkpoint; checkpoints that a failed attempt saved are not
    resumed. Raises RunStateError if not even a batch of one sample fits.
    """
    refuse_second_run(host.parts().run)
    host.renew_model()
    restore, parts = _keep_start(host), host.parts()
    device, run_name = parts.adapters.device, str(parts.hooks.new_run_name())
    size = _saved_batch_size(parts.adapters.storage, resume_from) or parts.train_batch_size
    del parts  # it refers to the model
    while True:
        host.set_train_batch_size(size)
        try:
            yield from drive(host, resume_from, run_name)
            return
        except Exception as error:
            if not device.is_out_of_memory(error):
                raise
            size = _smaller(size, device.name, error)
        restore()


def _smaller(size: int, device: str, error: Exception) -> int:
    smaller = int(size * FACTOR)
    if smaller == 0:
        raise RunStateError(
            f"{device} has not enough memory for a batch of one sample, so auto_find_batch_size=True finds no size; "
            "train a smaller model, in fewer bits, or with activation_checkpointing=True."
        ) from error
    message = "%s has not enough memory for batches of %d samples; the run starts again with batches of %d."
    logging.getLogger("hexloop").warning(message, device, size, smaller)
    return smaller


def _saved_batch_size(own: Storage, resume_from: str | bool | None) -> int | None:
    """Return the batch size that the run had found when it wrote the checkpoint; None if it is not known."""
    if not resume_from:
        return None
    with suppress(CheckpointError, OSError, ValueError, AttributeError):
        storage, name = likely_checkpoint(own, resume_from)
        size = (
            read_json(read_bytes(storage.read(f"{name}/{TRAINER_STATE}")), finite=False).get("train_batch_size")
            if name
            else None
        )
        return size if type(size) is int and 0 < size <= LARGEST_BATCH else None
    return None


def _keep_start(host: RunHost) -> Callable[[], None]:
    """Keep weights and buffers in host memory, the user's optimizer and schedule, and callbacks, without earlier runs.

    Return what restores them and releases the memory of the run.
    """
    host.forget_run()
    before = host.parts()
    restore_weights = before.adapters.framework.kept_on_host(before.model)
    optimizer = None if before.optimizer is None else deepcopy(before.optimizer.state_dict())
    lr_scheduler = None if before.lr_scheduler is None else deepcopy(before.lr_scheduler.state_dict())
    callbacks = deepcopy(callbacks_state(before.callback_handler, before.control))

    def restore() -> None:
        host.forget_run()
        parts = host.parts()
        restore_weights(parts.model)
        if optimizer is not None:
            parts.optimizer.load_state_dict(deepcopy(optimizer))
        if lr_scheduler is not None:
            parts.lr_scheduler.load_state_dict(deepcopy(lr_scheduler))
        restore_callbacks(parts.callback_handler, parts.control, deepcopy(callbacks), parts.notices)
        gc.collect()
        parts.adapters.device.release_memory()

    return restore


# Evaluation and prediction, during a run and outside of one


def _randomness(parts: TrainerParts) -> IsolatedRandomness:
    """Return the context for the random draws of an evaluation."""
    return IsolatedRandomness(parts.adapters.device, leaks=not parts.rules.own_order)


def evaluation_in_training(parts: TrainerParts) -> Evaluation:
    """Yield the events of an evaluation that is due in a run.

    An overridden `evaluate` or `_evaluate` is one opaque action.
    """
    hooks, ignored = parts.hooks, parts.ignore_keys_for_eval
    if hooks.evaluates:
        return (yield from evaluation_by_override(parts, _randomness(parts)))
    found = yield from evaluation_events(parts, None, ignored, "eval", within_run=True)
    if found is not None:
        in_search = parts.live_trial is not None
        hooks.report_to_hp_search.call_if(in_search, parts.trial, parts.state.global_step, dict(found))
    return found


def evaluation_events(
    parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool = False
) -> Evaluation:
    """Yield the events of an evaluation; return the metrics of all data sets together.

    within_run: requests to the live run may interrupt it. The random streams of a live run are not affected.
    Averages of weights that are kept beside the trained ones are evaluated as well, under a prefix of their own.
    """
    metrics = yield from _evaluate_all(parts, dataset, ignore_keys, prefix, within_run)
    averages = parts.averages.weights
    if metrics is None or not averages.beside:
        return metrics
    averages.show()
    try:
        further = yield from _evaluate_all(parts, dataset, ignore_keys, f"{prefix}_{EMA}", within_run)
    finally:
        averages.hide()
    return None if further is None else {**metrics, **further}


def _evaluate_all(
    parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str, within_run: bool
) -> Evaluation:
    """Yield the events of an evaluation of the weights in the model; return the metrics of all data sets together."""
    given = dataset is not None
    dataset = dataset if given else parts.eval_dataset
    if not isinstance(dataset, dict):
        with _randomness(parts) as draws:
            return (yield from _evaluate_one(parts, dataset, ignore_keys, prefix, within_run, draws))
    together: dict[str, float] = {}
    for name, one in dataset.items():
        chosen = one if given else name
        metrics = yield from _evaluate_all(parts, chosen, ignore_keys, f"{prefix}_{name}", within_run)
        if metrics is None:
            return None
        together |= metrics
    return together


def _evaluate_one(
    parts: TrainerParts,
    dataset: Any,
    ignore_keys: list[str] | None,
    prefix: str,
    within_run: bool,
    draws: IsolatedRandomness,
) -> Evaluation:
    loader = parts.hooks.get_eval_dataloader(dataset)
    loss_only = True if parts.compute_metrics is None else None
    step, clock = parts.state.global_step, parts.adapters.clock
    began = clock.monotonic()
    output = looped_by_override(parts, loader, loss_only, ignore_keys, prefix)
    if output is not None:
        metrics = _with_speed(parts, output, prefix, clock.monotonic() - began)
        parts.hooks.log(metrics)
        yield Evaluated(step, metrics)
        return metrics
    log_evaluation(parts, loader, "Evaluation")
    run = parts.run if within_run else None

    def apply_run_requests() -> Iterator[AnyEvent]:
        if run is not None and run.agreement.waiting:
            with draws.suspended():
                yield from apply_requests(run)

    return (
        yield from evaluation.evaluate(
            parts.adapters.framework.evaluator(parts, loader, loss_only, ignore_keys, prefix, keep=False),
            prefix=prefix,
            step=step,
            clock=clock,
            report=parts.hooks.log,
            apply_requests=apply_run_requests,
            interrupted=lambda: run is not None and run.stopped,
            explain=partial(add_note_of_evaluation, parts.args, parts.adapters),
        )
    )


def _with_speed(parts: TrainerParts, output: EvalLoopOutput, prefix: str, seconds: float) -> dict[str, float]:
    """Return the metrics of an evaluation loop, with its speed in full batches."""
    samples = output.num_samples or 0
    steps = -(-samples // max(1, parts.args.eval_batch_size))
    return {**(output.metrics or {}), **evaluation.speed_metrics(prefix, seconds, samples, steps)}


def evaluate(parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, float]:
    """Evaluate now, and call the callbacks."""
    parts.args.check_stored()
    events = evaluation_events(parts, dataset, ignore_keys, prefix)
    while True:
        try:
            parts.dispatcher.dispatch(next(events))
        except StopIteration as ended:
            return dict(ended.value)


def evaluation_loop(
    parts: TrainerParts,
    loader: Any,
    description: str,
    loss_only: bool | None,
    ignore_keys: list[str] | None,
    prefix: str,
) -> EvalLoopOutput:
    """Predict every batch of `loader`, and call the callbacks. The outputs of a "Prediction" are always kept."""
    parts.args.check_stored()
    log_evaluation(parts, loader, description)
    with _randomness(parts):
        keep = description == "Prediction"
        evaluator: Any = parts.adapters.framework.evaluator(parts, loader, loss_only, ignore_keys, prefix, keep)
        explain = partial(add_note_of_evaluation, parts.args, parts.adapters)
        for event in evaluation.predict(evaluator, parts.state.global_step, lambda: iter(()), lambda: False, explain):
            parts.dispatcher.dispatch(event)
        metrics = evaluator.metrics()
    return EvalLoopOutput(evaluator.predictions, evaluator.label_ids, metrics, evaluator.samples)


def predict(parts: TrainerParts, dataset: Any, ignore_keys: list[str] | None, prefix: str) -> PredictionOutput:
    """Predict a data set, and call the callbacks."""
    parts.args.check_stored()
    clock = parts.adapters.clock
    with _randomness(parts):
        loader = parts.hooks.get_test_dataloader(dataset)
        began = clock.monotonic()
        output = parts.hooks.evaluation_loop(
            loader, description="Prediction", ignore_keys=ignore_keys, metric_key_prefix=prefix
        )
    metrics = _with_speed(parts, output, prefix, clock.monotonic() - began)
    parts.dispatcher.call("on_predict", metrics=metrics)
    return PredictionOutput(output.predictions, output.label_ids, metrics)
